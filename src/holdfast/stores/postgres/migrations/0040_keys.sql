-- works with: 32
-- Keys with rules: how long a job has its key, other than while it is live.

ALTER TABLE {schema}.job
    ADD COLUMN scoped_key text COLLATE "C",  -- outside of the unique index of live keys, which is on the column key
    ADD COLUMN key_scope  text COLLATE "C";  -- 'queued', 'ever', a number of seconds, or 'passed' to a newer job

-- The job that took a key last. It stays when the job is deleted.
CREATE TABLE {schema}.key (
    key    text COLLATE "C" NOT NULL PRIMARY KEY,
    job_id text COLLATE "C" NOT NULL,
    scope  text COLLATE "C" NOT NULL,
    until  float8  -- wall time; NULL: for ever, or while the job is queued
);

-- A row as one JSON array, in the order of core/records.py: Job. What most jobs do not have is left out of them: there the
-- record has it by default.
CREATE OR REPLACE FUNCTION {schema}.as_json(job {schema}.job) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT CASE
WHEN NOT job.workflow AND job.parent IS NULL AND NOT job.undoable AND job.open_step IS NULL AND job.inbox = 0
    AND job.awaits IS NULL AND NOT job.undo_requested AND NOT job.backoff_full AND job.releases = 0
    AND job.stop_reason IS NULL AND job.rollback_cause IS NULL AND job.grp IS NULL
    AND job.error_kind IS NULL AND job.callbacks IS NULL AND job.fingerprint IS NULL
    AND job.batch IS NULL AND job.key_scope IS NULL
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
    job.fingerprint, job.release, job.erred_at, job.batch, job.key_scope
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
    fingerprint, release, to_timestamp(erred_at) AS erred_at, batch, key_scope
FROM {schema}.job;

-- piece
-- Jobs whose keys have no rules have no entry.
CREATE INDEX job_scoped_key ON {schema}.job (scoped_key) WHERE scoped_key IS NOT NULL;
