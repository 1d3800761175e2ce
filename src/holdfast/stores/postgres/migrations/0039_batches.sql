-- works with: 32
-- Batches: several jobs, and one that is stored when all of them have ended.

ALTER TABLE {schema}.job ADD COLUMN batch text COLLATE "C";

CREATE TABLE {schema}.batch (
    id         text COLLATE "C" NOT NULL PRIMARY KEY,
    then_job   text,                            -- JSON: core/batches.py: Then
    abandon_s  float8  NOT NULL,
    created_at float8  NOT NULL,                -- wall time, and so are the next three
    added_at   float8  NOT NULL,
    closed_at  float8,
    ended_at   float8,
    complete   boolean NOT NULL DEFAULT false,  -- its producer closed it
    counts     text,                            -- JSON: its jobs by state when it ended
    CHECK (ended_at IS NULL OR (closed_at IS NOT NULL AND counts IS NOT NULL))
);

CREATE INDEX batch_unended ON {schema}.batch (id) WHERE ended_at IS NULL;
CREATE INDEX batch_created ON {schema}.batch (created_at);

-- Jobs of batches that were deleted; each deletion adds lines of its own.
CREATE TABLE {schema}.batch_removed (
    batch text COLLATE "C" NOT NULL,
    state text             NOT NULL,
    jobs  bigint           NOT NULL
);

ALTER TABLE {schema}.batch_removed REPLICA IDENTITY FULL;

CREATE INDEX batch_removed_batch ON {schema}.batch_removed (batch);

-- A row as one JSON array, in the order of core/records.py: Job. What most jobs do not have is left out of them: there the
-- record has it by default.
CREATE OR REPLACE FUNCTION {schema}.as_json(job {schema}.job) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT CASE
WHEN NOT job.workflow AND job.parent IS NULL AND NOT job.undoable AND job.open_step IS NULL AND job.inbox = 0
    AND job.awaits IS NULL AND NOT job.undo_requested AND NOT job.backoff_full AND job.releases = 0
    AND job.stop_reason IS NULL AND job.rollback_cause IS NULL AND job.grp IS NULL
    AND job.error_kind IS NULL AND job.callbacks IS NULL AND job.fingerprint IS NULL
    AND job.batch IS NULL
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
    job.undo_requested, job.in_steps, job.backoff_full, job.releases,
    CASE WHEN job.rolling_back OR job.state = 'rolled_back' OR job.stop_fence IS NULL OR job.stop_fence = job.fence
    THEN job.stop_reason END, job.rollback_cause, job.grp, job.error_kind, job.callbacks,
    job.fingerprint, job.release, job.erred_at, job.batch
)
END
$$;

CREATE OR REPLACE VIEW {schema}.jobs AS
SELECT id, task, queue, key, state, priority, attempt, failures, crashes, zombies, fence, worker,
    to_timestamp(run_at) AS run_at, to_timestamp(created_at) AS created_at, to_timestamp(claimed_at) AS claimed_at,
    to_timestamp(lease_until) AS lease_until, to_timestamp(moved_at) AS moved_at, to_timestamp(wake_at) AS wake_at,
    to_timestamp(ended_at) AS ended_at, progress, note, error,
    CASE WHEN rolling_back OR state = 'rolled_back' OR stop_fence IS NULL OR stop_fence = fence THEN stop_reason END
    AS stop_reason, rollback_cause, grp AS "group",
    fingerprint, release, to_timestamp(erred_at) AS erred_at, batch
FROM {schema}.job;

-- piece
-- Jobs without a batch have no entry.
CREATE INDEX job_batch ON {schema}.job (batch, state) WHERE batch IS NOT NULL;
