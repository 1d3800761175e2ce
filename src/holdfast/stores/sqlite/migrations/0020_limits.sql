-- works with: 20
-- Limits, rates and pauses of queues, and groups of jobs that take turns. Older programs would not count running jobs, and
-- could not read the index of ready jobs any more.

ALTER TABLE holdfast_job ADD COLUMN grp TEXT;             -- its group; the word itself belongs to SQL
-- Claimed from a queue that has a limit: the row stands in the index of places while it runs.
ALTER TABLE holdfast_job ADD COLUMN counted INTEGER NOT NULL DEFAULT 0 CHECK (counted IN (0, 1));

ALTER TABLE holdfast_queue ADD COLUMN paused_until REAL;  -- wall time; NULL: until it is resumed
ALTER TABLE holdfast_queue ADD COLUMN declared TEXT NOT NULL DEFAULT '{}';  -- limits as JSON: of the app,
ALTER TABLE holdfast_queue ADD COLUMN chosen TEXT NOT NULL DEFAULT '{}';    -- and of a person, which win
ALTER TABLE holdfast_queue ADD COLUMN booked_until REAL NOT NULL DEFAULT 0; -- wall time: what the rate has given out
ALTER TABLE holdfast_queue ADD COLUMN grouped INTEGER NOT NULL DEFAULT 0 CHECK (grouped IN (0, 1));

CREATE TABLE holdfast_paused_group (
    queue        TEXT NOT NULL,
    grp          TEXT NOT NULL,
    paused_until REAL,
    PRIMARY KEY (queue, grp)
) STRICT, WITHOUT ROWID;

-- The group that had the last turn; '' are the jobs without a group.
CREATE TABLE holdfast_turn (
    queue    TEXT    NOT NULL,
    priority INTEGER NOT NULL,
    grp      TEXT    NOT NULL,
    PRIMARY KEY (queue, priority)
) STRICT, WITHOUT ROWID;

-- A ready job has an entry in the first of these, or in the next two if it has a group; a running one in the last only
-- while it is counted.
DROP INDEX holdfast_job_ready;
CREATE INDEX holdfast_job_ready ON holdfast_job (queue, priority DESC, run_at, seq) WHERE state = 'ready' AND grp IS NULL;
CREATE INDEX holdfast_job_turns ON holdfast_job (queue, priority DESC, grp, run_at, seq)
    WHERE state = 'ready' AND grp IS NOT NULL;
CREATE INDEX holdfast_job_due ON holdfast_job (queue, run_at) WHERE state = 'ready' AND grp IS NOT NULL;
CREATE INDEX holdfast_job_places ON holdfast_job (queue, grp) WHERE state = 'running' AND counted = 1;

DROP VIEW holdfast_row;

-- A row as one JSON array, in the order of core/records.py: Job. What most jobs do not have is left out of them: there the
-- record has it by default.
CREATE VIEW holdfast_row AS
SELECT *, CASE
WHEN workflow = 0 AND parent IS NULL AND undoable = 0 AND open_step IS NULL AND inbox = 0 AND awaits IS NULL
    AND undo_requested = 0 AND backoff_full = 0 AND releases = 0
    AND stop_reason IS NULL AND rollback_cause IS NULL AND grp IS NULL
THEN json_array(
    id, task, queue, payload, key, priority, state, run_at, created_at, attempt, fence, claim_id, worker, lease_until,
    claimed_at, started, failures, crashes, zombies, suspects, cancel_requested, rolling_back, attempts_max,
    backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s, timeout_s, stall_s,
    error, result, progress, note, ended_at, log, moved_at
)
ELSE json_array(
    id, task, queue, payload, key, priority, state, run_at, created_at, attempt, fence, claim_id, worker, lease_until,
    claimed_at, started, failures, crashes, zombies, suspects, cancel_requested, rolling_back, attempts_max,
    backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s, timeout_s, stall_s,
    error, result, progress, note, ended_at, log, moved_at,
    workflow, parent, undoable, open_step, inbox, wake_at, json(awaits), question, undo_requested, json(in_steps),
    backoff_full, releases,
    CASE WHEN rolling_back OR state = 'rolled_back' OR stop_fence IS NULL OR stop_fence = fence THEN stop_reason END,
    rollback_cause, grp
)
END AS row
FROM holdfast_job;
