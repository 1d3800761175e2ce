-- works with: 32
-- What attempts ended with: on the row of the job for the last one, and counted for all.

ALTER TABLE {schema}.job
    ADD COLUMN fingerprint text COLLATE "C",  -- core/error_fingerprint.py
    ADD COLUMN release text,                  -- of the worker that ran that attempt
    ADD COLUMN erred_at float8;               -- wall time of that ending

-- Written with the settlements of attempts that failed or were lost, and with no others. Each adds lines of its own, as to
-- `tally`; those of a minute that is over are folded into one for each error.
CREATE TABLE {schema}.error (
    slot        bigint           NOT NULL,                -- the minute
    task        text COLLATE "C" NOT NULL,
    fingerprint text COLLATE "C" NOT NULL,
    release     text COLLATE "C" NOT NULL,                -- '': the worker was told none
    kind        text             NOT NULL,
    origin      text,
    message     text             NOT NULL,
    attempts    bigint           NOT NULL,
    first_at    float8           NOT NULL,                -- wall time
    last_at     float8           NOT NULL,
    job_id      text COLLATE "C" NOT NULL,                -- whose attempt was the last
    folded      boolean          NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

ALTER TABLE {schema}.error REPLICA IDENTITY FULL;  -- it has no key, and logical replication wants one

CREATE INDEX error_slot ON {schema}.error (slot);
CREATE INDEX error_new ON {schema}.error (slot) WHERE NOT folded;

-- A row as one JSON array, in the order of core/records.py: Job. What most jobs do not have is left out of them: there the
-- record has it by default.
CREATE OR REPLACE FUNCTION {schema}.as_json(job {schema}.job) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT CASE
WHEN NOT job.workflow AND job.parent IS NULL AND NOT job.undoable AND job.open_step IS NULL AND job.inbox = 0
    AND job.awaits IS NULL AND NOT job.undo_requested AND NOT job.backoff_full AND job.releases = 0
    AND job.stop_reason IS NULL AND job.rollback_cause IS NULL AND job.grp IS NULL
    AND job.error_kind IS NULL AND job.callbacks IS NULL AND job.fingerprint IS NULL
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
    job.fingerprint, job.release, job.erred_at
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
    fingerprint, release, to_timestamp(erred_at) AS erred_at
FROM {schema}.job;
