-- The last lines that the running attempt has logged, for its autopsy. A settlement takes them off the row.

ALTER TABLE holdfast_job ADD COLUMN log TEXT;

-- A row as one JSON array, in the order of core/records.py: Job.
DROP VIEW holdfast_row;
CREATE VIEW holdfast_row AS
SELECT *, json_array(
    id, task, queue, payload, key, priority, state, run_at, created_at, attempt, fence, claim_id, worker, lease_until,
    claimed_at, started, failures, crashes, zombies, suspects, cancel_requested, rolling_back, attempts_max,
    backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s, timeout_s, stall_s,
    error, result, progress, note, ended_at, log
) AS row
FROM holdfast_job;
