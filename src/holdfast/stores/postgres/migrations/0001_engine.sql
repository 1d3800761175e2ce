-- The tables of the engine, in a schema of their own.
--
-- Text is compared byte by byte (COLLATE "C"): faster, and the same on every host and after every upgrade of the
-- system's locales. Instants are seconds: of the epoch where people read them, of the server's clock for leases.

CREATE TABLE {schema}.meta (
    name  text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);

-- By this a connection is known to lead to this very store.
INSERT INTO {schema}.meta (name, value) VALUES ('identity', gen_random_uuid()::text);

CREATE TABLE {schema}.job (
    seq              bigint           NOT NULL GENERATED ALWAYS AS IDENTITY,
    id               text COLLATE "C" NOT NULL PRIMARY KEY,
    task             text COLLATE "C" NOT NULL,
    queue            text COLLATE "C" NOT NULL,
    payload          text             NOT NULL,
    key              text COLLATE "C",
    priority         bigint           NOT NULL DEFAULT 0,
    state            text COLLATE "C" NOT NULL DEFAULT 'ready',
    run_at           float8           NOT NULL,
    created_at       float8           NOT NULL,
    attempt          integer          NOT NULL DEFAULT 0,
    fence            bigint           NOT NULL DEFAULT 0,
    claim_id         text COLLATE "C",
    worker           text COLLATE "C",
    lease_until      float8,
    claimed_at       float8,
    started          boolean          NOT NULL DEFAULT false,
    failures         integer          NOT NULL DEFAULT 0,
    crashes          integer          NOT NULL DEFAULT 0,
    zombies          integer          NOT NULL DEFAULT 0,
    suspects         integer          NOT NULL DEFAULT 0,
    cancel_requested boolean          NOT NULL DEFAULT false,
    rolling_back     boolean          NOT NULL DEFAULT false,
    attempts_max     bigint           NOT NULL,
    backoff_base_s   float8           NOT NULL,
    backoff_cap_s    float8           NOT NULL,
    backoff_jitter   boolean          NOT NULL,
    crashes_max      bigint           NOT NULL,
    on_crash         text COLLATE "C" NOT NULL,
    lease_s          float8           NOT NULL,
    beat_s           float8           NOT NULL,
    timeout_s        float8,
    stall_s          float8,
    error            text,
    result           text,
    progress         float8,
    note             text,
    ended_at         float8,

    CONSTRAINT job_state CHECK (state IN ('ready', 'running', 'waiting', 'held', 'done', 'dead', 'cancelled', 'rolled_back')),
    CONSTRAINT job_on_crash CHECK (on_crash IN ('retry', 'hold', 'fail', 'rollback')),
    -- A running job without a lease cannot exist, nor a lease without a running job.
    CONSTRAINT job_lease CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CONSTRAINT job_worker CHECK ((state = 'running') = (worker IS NOT NULL)),
    CONSTRAINT job_claim CHECK (state <> 'running' OR claim_id IS NOT NULL),
    CONSTRAINT job_ended CHECK ((state IN ('done', 'dead', 'cancelled', 'rolled_back')) = (ended_at IS NOT NULL)),
    CONSTRAINT job_fence CHECK (fence >= attempt AND attempt >= 0),
    CONSTRAINT job_counts CHECK (failures >= 0 AND crashes >= 0 AND zombies >= 0 AND suspects >= 0)
) WITH (
    -- Every job changes its row twice; a page keeps room for that, and vacuum comes by count, not by share of the table.
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0.2,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000,
    autovacuum_vacuum_cost_delay = 0
);

-- Each of these is partial: a finished job costs an entry in `id`, in `seq` and in `ended`, and nothing else.
CREATE INDEX job_seq ON {schema}.job (seq);
CREATE INDEX job_ready ON {schema}.job (queue, priority DESC, run_at, seq) WHERE state = 'ready';
CREATE INDEX job_running ON {schema}.job (lease_until) WHERE state = 'running';
CREATE INDEX job_worker ON {schema}.job (worker, claim_id) WHERE state = 'running';
CREATE INDEX job_cancel ON {schema}.job (worker) WHERE state = 'running' AND cancel_requested;
CREATE INDEX job_aside ON {schema}.job (state, seq)
    WHERE state IN ('ready', 'waiting', 'held', 'dead', 'cancelled', 'rolled_back');  -- lists, newest first
CREATE INDEX job_ended ON {schema}.job (ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX job_key ON {schema}.job (key) WHERE key IS NOT NULL AND state IN ('ready', 'running', 'waiting', 'held');

-- A row as one JSON array, in the order of core/records.py: Job.
CREATE FUNCTION {schema}.as_json(job {schema}.job) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT json_build_array(
    job.id, job.task, job.queue, job.payload, job.key, job.priority, job.state, job.run_at, job.created_at, job.attempt,
    job.fence, job.claim_id, job.worker, job.lease_until, job.claimed_at, job.started, job.failures, job.crashes,
    job.zombies, job.suspects, job.cancel_requested, job.rolling_back, job.attempts_max, job.backoff_base_s,
    job.backoff_cap_s, job.backoff_jitter, job.crashes_max, job.on_crash, job.lease_s, job.beat_s, job.timeout_s,
    job.stall_s, job.error, job.result, job.progress, job.note, job.ended_at
)
$$;

-- How many jobs have ended, so that counting does not read them. Every settlement adds a line of its own, because a row
-- that all of them change would be waited for, and would grow slow while an old transaction keeps its versions; the
-- lines are folded into one now and then.
CREATE TABLE {schema}.tally (
    queue text COLLATE "C" NOT NULL,
    state text COLLATE "C" NOT NULL,
    jobs  bigint           NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE TABLE {schema}.journal (
    seq    bigint           NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id text COLLATE "C" NOT NULL,
    at     float8           NOT NULL,
    kind   text COLLATE "C" NOT NULL,
    fence  bigint           NOT NULL,
    worker text COLLATE "C",
    actor  text,
    detail json             NOT NULL DEFAULT '{{}}'
);

CREATE INDEX journal_job ON {schema}.journal (job_id, seq);
CREATE INDEX journal_kind ON {schema}.journal (kind, at);
-- A returned zombie may knock many times; it is told each time and written down once.
CREATE UNIQUE INDEX journal_stale ON {schema}.journal (job_id, fence) WHERE kind = 'stale_report';

CREATE TABLE {schema}.step (
    job_id     text COLLATE "C" NOT NULL,
    position   bigint           NOT NULL,
    name       text             NOT NULL,
    state      text COLLATE "C" NOT NULL CHECK (state IN ('started', 'recorded', 'undone')),
    attempt    integer          NOT NULL,
    fence      bigint           NOT NULL,
    arguments  text,
    result     text,
    error      text,
    started_at float8,
    ended_at   float8,
    PRIMARY KEY (job_id, position)
);

CREATE TABLE {schema}.worker (
    id           text COLLATE "C" PRIMARY KEY,
    name         text             NOT NULL,
    host         text             NOT NULL,
    pid          bigint           NOT NULL,
    boot_id      text             NOT NULL,
    supervisor   text COLLATE "C",
    queues       json             NOT NULL,
    slots        integer          NOT NULL,
    beat_s       float8           NOT NULL,
    version      text             NOT NULL,
    started_at   float8           NOT NULL,
    beat_at      float8           NOT NULL,
    beats        bigint           NOT NULL DEFAULT 0,
    rss_mb       float8,
    gone_at      float8,
    gone_cause   text,
    server       text                                  -- the run of it that its liveness lock was taken on; NULL: has none
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Which run of the server this is: every lock ends with it. The server's start does not tell: when one of its processes
-- is killed, it ends all sessions and begins anew without starting anew. Its helpers are new then; they belong to no user,
-- and whoever is not allowed to know more sees their numbers.
CREATE FUNCTION {schema}.server() RETURNS text LANGUAGE sql STABLE AS $$
SELECT concat(extract(epoch FROM pg_postmaster_start_time()), ' ', min(pid))
FROM pg_stat_get_activity(NULL) WHERE usesysid IS NULL
$$;

CREATE INDEX worker_gone ON {schema}.worker (gone_at);

CREATE TABLE {schema}.queue (
    name   text COLLATE "C" PRIMARY KEY,
    paused boolean          NOT NULL DEFAULT false
);

-- The right to a fleet-wide chore. A row is never deleted: its term must not fall.
CREATE TABLE {schema}.duty (
    name   text COLLATE "C" PRIMARY KEY,
    holder text COLLATE "C",                           -- NULL: resigned
    term   bigint           NOT NULL,
    until  float8           NOT NULL
) WITH (fillfactor = 50);
