-- works with: 9
-- Why a job was held, buried or rolled back, beside its error; and why it is rolled back, once its error is that of an undo.
-- Errors that are there, and those of older programs, say it in their own words, and keep them. No row has a reason yet, so
-- none is read to check it.

ALTER TABLE {schema}.job
    ADD COLUMN stop_reason text COLLATE "C",
    ADD COLUMN rollback_cause text,
    ADD CONSTRAINT job_stop_reason CHECK (stop_reason IN (
        'attempts_max', 'crashes_max', 'final', 'on_crash', 'open_step', 'still_running', 'suspected', 'diverged'
    )) NOT VALID;

-- A row as one JSON array, in the order of core/records.py: Job. What most jobs do not have is left out of them: there the
-- record has it by default.
CREATE OR REPLACE FUNCTION {schema}.as_json(job {schema}.job) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT CASE
WHEN NOT job.workflow AND job.parent IS NULL AND NOT job.undoable AND job.open_step IS NULL AND job.inbox = 0
    AND job.awaits IS NULL AND NOT job.undo_requested AND NOT job.backoff_full AND job.releases = 0
    AND job.stop_reason IS NULL AND job.rollback_cause IS NULL
THEN json_build_array(
    job.id, job.task, job.queue, job.payload, job.key, job.priority, job.state, job.run_at, job.created_at, job.attempt,
    job.fence, job.claim_id, job.worker, job.lease_until, job.claimed_at, job.started, job.failures, job.crashes,
    job.zombies, job.suspects, job.cancel_requested, job.rolling_back, job.attempts_max, job.backoff_base_s,
    job.backoff_cap_s, job.backoff_jitter, job.crashes_max, job.on_crash, job.lease_s, job.beat_s, job.timeout_s,
    job.stall_s, job.error, job.result, job.progress, job.note, job.ended_at, job.log, job.moved_at
)
ELSE json_build_array(
    job.id, job.task, job.queue, job.payload, job.key, job.priority, job.state, job.run_at, job.created_at, job.attempt,
    job.fence, job.claim_id, job.worker, job.lease_until, job.claimed_at, job.started, job.failures, job.crashes,
    job.zombies, job.suspects, job.cancel_requested, job.rolling_back, job.attempts_max, job.backoff_base_s,
    job.backoff_cap_s, job.backoff_jitter, job.crashes_max, job.on_crash, job.lease_s, job.beat_s, job.timeout_s,
    job.stall_s, job.error, job.result, job.progress, job.note, job.ended_at, job.log, job.moved_at,
    job.workflow, job.parent, job.undoable, job.open_step, job.inbox, job.wake_at, job.awaits, job.question,
    job.undo_requested, job.in_steps, job.backoff_full, job.releases, job.stop_reason, job.rollback_cause
)
END
$$;

CREATE OR REPLACE VIEW {schema}.jobs AS
SELECT id, task, queue, key, state, priority, attempt, failures, crashes, zombies, fence, worker,
    to_timestamp(run_at) AS run_at, to_timestamp(created_at) AS created_at, to_timestamp(claimed_at) AS claimed_at,
    to_timestamp(lease_until) AS lease_until, to_timestamp(moved_at) AS moved_at, to_timestamp(wake_at) AS wake_at,
    to_timestamp(ended_at) AS ended_at, progress, note, error, stop_reason, rollback_cause
FROM {schema}.job;
