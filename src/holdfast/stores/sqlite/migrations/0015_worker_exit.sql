-- works with: 8
-- How a worker ended, as facts. Before, the sentence about it began with them.

ALTER TABLE holdfast_worker ADD COLUMN exit_kind TEXT
CHECK (exit_kind IN ('exit', 'vanished', 'expired', 'stuck', 'restart', 'released'));
ALTER TABLE holdfast_worker ADD COLUMN exit_code INTEGER;  -- a negative one is the number of a signal
ALTER TABLE holdfast_worker ADD COLUMN exit_excused INTEGER NOT NULL DEFAULT 0 CHECK (exit_excused IN (0, 1));

UPDATE holdfast_worker SET exit_excused = 1, gone_cause = substr(gone_cause, length('excused: ') + 1)
WHERE gone_cause LIKE 'excused: %';
UPDATE holdfast_worker SET exit_kind = substr(gone_cause, 1, instr(gone_cause, ': ') - 1),
    gone_cause = substr(gone_cause, instr(gone_cause, ': ') + 2)
WHERE substr(gone_cause, 1, instr(gone_cause, ': ') - 1)
    IN ('exit', 'vanished', 'expired', 'stuck', 'restart', 'released');
