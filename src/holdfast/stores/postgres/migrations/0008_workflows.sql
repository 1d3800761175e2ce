-- Workflows: what the judge must know of one stands on its row; its steps and signals have tables of their own.

ALTER TABLE {schema}.job
    ADD COLUMN workflow       boolean NOT NULL DEFAULT false,
    ADD COLUMN parent         text COLLATE "C",            -- the workflow that started it, and is woken by its end
    ADD COLUMN undoable       boolean NOT NULL DEFAULT false,
    ADD COLUMN open_step      text,                        -- begun, not recorded, and not to be repeated
    ADD COLUMN inbox          bigint  NOT NULL DEFAULT 0,
    ADD COLUMN wake_at        float8,
    ADD COLUMN awaits         json,
    ADD COLUMN question       text,
    ADD COLUMN undo_requested boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT job_waits CHECK (state = 'waiting' OR (wake_at IS NULL AND awaits IS NULL AND question IS NULL));

CREATE INDEX job_wake ON {schema}.job (wake_at) WHERE state = 'waiting' AND wake_at IS NOT NULL;
CREATE INDEX job_workflow ON {schema}.job (seq) WHERE workflow;
CREATE INDEX job_question ON {schema}.job (seq) WHERE question IS NOT NULL;

-- A row as one JSON array, in the order of core/records.py: Job. What only workflows and their children have is left out
-- of others, most of all jobs: there the record has it by default.
CREATE OR REPLACE FUNCTION {schema}.as_json(job {schema}.job) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT CASE
WHEN NOT job.workflow AND job.parent IS NULL AND NOT job.undoable AND job.open_step IS NULL AND job.inbox = 0
    AND job.awaits IS NULL AND NOT job.undo_requested
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
    job.undo_requested
)
END
$$;

-- Whether the job waits for any of these.
CREATE FUNCTION {schema}.awaits(job {schema}.job, things text[]) RETURNS boolean LANGUAGE sql STABLE AS $$
SELECT job.state = 'waiting' AND EXISTS (
    SELECT FROM json_array_elements_text(job.awaits) AS one WHERE one = ANY (things)
)
$$;

DROP TABLE {schema}.step;                              -- nothing was ever written to it

CREATE TABLE {schema}.step (
    job_id     text COLLATE "C" NOT NULL,
    aside      bigint           NOT NULL,              -- the fence at which it was set aside; 0: it counts
    position   bigint           NOT NULL,              -- the order of the first writing
    path       text             NOT NULL,              -- what the code knows it by
    kind       text             NOT NULL,
    name       text             NOT NULL,
    state      text COLLATE "C" NOT NULL CHECK (state IN ('started', 'recorded', 'undone')),
    attempt    integer          NOT NULL,
    fence      bigint           NOT NULL,
    has_undo   boolean          NOT NULL,
    repeatable boolean          NOT NULL,
    arguments  text,
    result     text,
    error      text,
    error_kind text,
    started_at float8,
    ended_at   float8,
    PRIMARY KEY (job_id, aside, position)
);

CREATE TABLE {schema}.signal (
    seq     bigint           NOT NULL GENERATED ALWAYS AS IDENTITY,
    id      text COLLATE "C" NOT NULL PRIMARY KEY,
    job_id  text COLLATE "C" NOT NULL,
    name    text             NOT NULL,
    value   text,
    actor   text,
    sent_at float8           NOT NULL,
    taken   bigint                                     -- the position of the step that took it
);

CREATE INDEX signal_job ON {schema}.signal (job_id, seq);
