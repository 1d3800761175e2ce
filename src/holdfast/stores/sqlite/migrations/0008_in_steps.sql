-- In which steps a workflow is now, as its last beat told; and when a step was undone, beside when it ended.

ALTER TABLE holdfast_job ADD COLUMN in_steps TEXT;        -- JSON array of `PATH NAME`; only workflows have any
ALTER TABLE holdfast_step ADD COLUMN undone_at REAL;      -- wall time

UPDATE holdfast_step SET undone_at = ended_at, ended_at = NULL WHERE state = 'undone';  -- when these ended is lost

DROP INDEX holdfast_job_question;                         -- no statement could use it

DROP VIEW holdfast_row;

-- A row as one JSON array, in the order of core/records.py: Job. What only workflows and their children have is left out
-- of others, most of all jobs: there the record has it by default.
CREATE VIEW holdfast_row AS
SELECT *, CASE
WHEN workflow = 0 AND parent IS NULL AND undoable = 0 AND open_step IS NULL AND inbox = 0 AND awaits IS NULL
    AND undo_requested = 0
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
    workflow, parent, undoable, open_step, inbox, wake_at, json(awaits), question, undo_requested, json(in_steps)
)
END AS row
FROM holdfast_job;
