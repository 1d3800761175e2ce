-- works with: 25
-- Tags and metadata of jobs, as JSON.

ALTER TABLE holdfast_job ADD COLUMN tags TEXT;
ALTER TABLE holdfast_job ADD COLUMN meta TEXT;

DROP VIEW holdfast_row;

-- A row as one JSON array, in the order of core/records.py: Job. What most jobs do not have is left out of them: there the
-- record has it by default.
CREATE VIEW holdfast_row AS
SELECT *, CASE
WHEN workflow = 0 AND parent IS NULL AND undoable = 0 AND open_step IS NULL AND inbox = 0 AND awaits IS NULL
    AND undo_requested = 0 AND backoff_full = 0 AND releases = 0
    AND stop_reason IS NULL AND rollback_cause IS NULL AND grp IS NULL
    AND error_kind IS NULL AND callbacks IS NULL AND fingerprint IS NULL AND batch IS NULL AND key_scope IS NULL
    AND beat_data IS NULL AND expires_at IS NULL AND tags IS NULL AND meta IS NULL
THEN json_array(
    id, task, queue, payload, key, priority, state, run_at, created_at, attempt, fence, claim_id, worker, lease_until,
    claimed_at, started, failures, crashes, zombies, suspects, cancel_requested, rolling_back, attempts_max,
    backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s, timeout_s, stall_s,
    error, result, progress, note, ended_at, log, moved_at
)
ELSE json_array(
    id, task, queue, payload, coalesce(key, scoped_key), priority, state, run_at, created_at, attempt, fence, claim_id, worker, lease_until,
    claimed_at, started, failures, crashes, zombies, suspects, cancel_requested, rolling_back, attempts_max,
    backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s, timeout_s, stall_s,
    error, result, progress, note, ended_at, log, moved_at,
    workflow, parent, undoable, open_step, inbox, wake_at, iif(json_valid(awaits), json(awaits), awaits), question, undo_requested,
    iif(json_valid(in_steps), json(in_steps), in_steps),
    backoff_full, releases,
    CASE WHEN rolling_back OR state = 'rolled_back' OR stop_fence IS NULL OR stop_fence = fence THEN stop_reason END,
    rollback_cause, grp, error_kind, callbacks, fingerprint, release, erred_at, batch, key_scope, beat_data, expires_at,
    tags, meta
)
END AS row
FROM holdfast_job;
