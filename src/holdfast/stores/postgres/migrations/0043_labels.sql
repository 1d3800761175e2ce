-- works with: 32
-- Tags and metadata of jobs.

ALTER TABLE {schema}.job
    ADD COLUMN tags json,
    ADD COLUMN meta json;

-- A row as one JSON array, in the order of core/records.py: Job. What most jobs do not have is left out of them: there the
-- record has it by default.
CREATE OR REPLACE FUNCTION {schema}.as_json(job {schema}.job) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT CASE
WHEN NOT job.workflow AND job.parent IS NULL AND NOT job.undoable AND job.open_step IS NULL AND job.inbox = 0
    AND job.awaits IS NULL AND NOT job.undo_requested AND NOT job.backoff_full AND job.releases = 0
    AND job.stop_reason IS NULL AND job.rollback_cause IS NULL AND job.grp IS NULL
    AND job.error_kind IS NULL AND job.callbacks IS NULL AND job.fingerprint IS NULL
    AND job.batch IS NULL AND job.key_scope IS NULL AND job.beat_data IS NULL AND job.expires_at IS NULL
    AND job.tags IS NULL AND job.meta IS NULL
THEN json_build_array(
    job.id, job.task, job.queue, job.payload, job.key, job.priority, job.state, job.run_at, job.created_at, job.attempt,
    job.fence, job.claim_id, job.worker, job.lease_until, job.claimed_at, job.started, job.failures, job.crashes,
    job.zombies, job.suspects, job.cancel_requested, job.rolling_back, job.attempts_max, job.backoff_base_s,
    job.backoff_cap_s, job.backoff_jitter, job.crashes_max, job.on_crash, job.lease_s, job.beat_s, job.timeout_s,
    job.stall_s, job.error, job.result, job.progress, job.note, job.ended_at, job.log, job.moved_at
)
ELSE json_build_array(
    job.id, job.task, job.queue, job.payload,
    coalesce(job.key, job.scoped_key), job.priority, job.state, job.run_at, job.created_at, job.attempt,
    job.fence, job.claim_id, job.worker, job.lease_until, job.claimed_at, job.started, job.failures, job.crashes,
    job.zombies, job.suspects, job.cancel_requested, job.rolling_back, job.attempts_max, job.backoff_base_s,
    job.backoff_cap_s, job.backoff_jitter, job.crashes_max, job.on_crash, job.lease_s, job.beat_s, job.timeout_s,
    job.stall_s, job.error, job.result, job.progress, job.note, job.ended_at, job.log, job.moved_at,
    job.workflow, job.parent, job.undoable, job.open_step, job.inbox, job.wake_at, job.awaits, job.question,
    job.undo_requested, job.in_steps, job.backoff_full, job.releases,
    CASE WHEN job.rolling_back OR job.state = 'rolled_back' OR job.stop_fence IS NULL OR job.stop_fence = job.fence
    THEN job.stop_reason END, job.rollback_cause, job.grp, job.error_kind, job.callbacks,
    job.fingerprint, job.release, job.erred_at, job.batch, job.key_scope, job.beat_data,
    job.expires_at, job.tags::text, job.meta::text
)
END
$$;

CREATE OR REPLACE VIEW {schema}.jobs AS
SELECT id, task, queue, coalesce(key, scoped_key) AS key, state, priority, attempt, failures, crashes, zombies, fence, worker,
    to_timestamp(run_at) AS run_at, to_timestamp(created_at) AS created_at, to_timestamp(claimed_at) AS claimed_at,
    to_timestamp(lease_until) AS lease_until, to_timestamp(moved_at) AS moved_at, to_timestamp(wake_at) AS wake_at,
    to_timestamp(ended_at) AS ended_at, progress, note, error,
    CASE WHEN rolling_back OR state = 'rolled_back' OR stop_fence IS NULL OR stop_fence = fence THEN stop_reason END
    AS stop_reason, rollback_cause, grp AS "group",
    fingerprint, release, to_timestamp(erred_at) AS erred_at, batch, key_scope,
    to_timestamp(expires_at) AS expires_at, tags, meta
FROM {schema}.job;
