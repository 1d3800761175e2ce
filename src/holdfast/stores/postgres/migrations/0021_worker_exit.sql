-- works with: 9
-- How a worker ended, as facts. Before, the sentence about it began with them.

ALTER TABLE {schema}.worker
    ADD COLUMN exit_kind text COLLATE "C"
        CHECK (exit_kind IN ('exit', 'vanished', 'expired', 'stuck', 'restart', 'released')),
    ADD COLUMN exit_code integer,  -- a negative one is the number of a signal
    ADD COLUMN exit_excused boolean NOT NULL DEFAULT false;

UPDATE {schema}.worker SET exit_excused = true, gone_cause = substr(gone_cause, length('excused: ') + 1)
WHERE starts_with(gone_cause, 'excused: ');
UPDATE {schema}.worker SET exit_kind = split_part(gone_cause, ': ', 1),
    gone_cause = substr(gone_cause, length(split_part(gone_cause, ': ', 1)) + 3)
WHERE strpos(gone_cause, ': ') > 0
    AND split_part(gone_cause, ': ', 1) IN ('exit', 'vanished', 'expired', 'stuck', 'restart', 'released');

CREATE OR REPLACE VIEW {schema}.workers AS
SELECT id, name, host, pid, supervisor, slots, beats, to_timestamp(started_at) AS started_at,
    to_timestamp(beat_at) AS beat_at, to_timestamp(gone_at) AS gone_at, gone_cause, exit_kind, exit_code
FROM {schema}.worker;
