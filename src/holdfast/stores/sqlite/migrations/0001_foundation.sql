-- The tables of the engine. Names begin with holdfast_ because the file may be the user's own.

CREATE TABLE holdfast_meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_job (
    seq              INTEGER PRIMARY KEY,
    id               TEXT    NOT NULL UNIQUE,
    task             TEXT    NOT NULL,
    queue            TEXT    NOT NULL,
    payload          TEXT    NOT NULL,
    key              TEXT,
    priority         INTEGER NOT NULL DEFAULT 0,
    state            TEXT    NOT NULL DEFAULT 'ready',
    run_at           REAL    NOT NULL,                -- wall time
    created_at       REAL    NOT NULL,                -- wall time
    attempt          INTEGER NOT NULL DEFAULT 0,
    fence            INTEGER NOT NULL DEFAULT 0,
    claim_id         TEXT,
    worker           TEXT,
    lease_until      REAL,                            -- lease clock of the worker's boot
    claimed_at       REAL,                            -- wall time
    started          INTEGER NOT NULL DEFAULT 0,
    failures         INTEGER NOT NULL DEFAULT 0,
    crashes          INTEGER NOT NULL DEFAULT 0,
    zombies          INTEGER NOT NULL DEFAULT 0,
    suspects         INTEGER NOT NULL DEFAULT 0,
    cancel_requested INTEGER NOT NULL DEFAULT 0,
    rolling_back     INTEGER NOT NULL DEFAULT 0,
    attempts_max     INTEGER NOT NULL,
    backoff_base_s   REAL    NOT NULL,
    backoff_cap_s    REAL    NOT NULL,
    backoff_jitter   INTEGER NOT NULL,
    crashes_max      INTEGER NOT NULL,
    on_crash         TEXT    NOT NULL,
    lease_s          REAL    NOT NULL,
    beat_s           REAL    NOT NULL,
    timeout_s        REAL,
    stall_s          REAL,
    error            TEXT,
    result           TEXT,
    progress         REAL,
    note             TEXT,
    ended_at         REAL,                            -- wall time

    CHECK (state IN ('ready', 'running', 'waiting', 'held', 'done', 'dead', 'cancelled', 'rolled_back')),
    CHECK (on_crash IN ('retry', 'hold', 'fail', 'rollback')),
    -- A running job without a lease cannot exist, nor a lease without a running job.
    CHECK ((state = 'running') = (lease_until IS NOT NULL)),
    CHECK ((state = 'running') = (worker IS NOT NULL)),
    CHECK (state <> 'running' OR claim_id IS NOT NULL),
    CHECK ((state IN ('done', 'dead', 'cancelled', 'rolled_back')) = (ended_at IS NOT NULL)),
    CHECK (fence >= attempt),
    CHECK (started IN (0, 1) AND cancel_requested IN (0, 1) AND rolling_back IN (0, 1) AND backoff_jitter IN (0, 1))
) STRICT;

-- A row as one JSON array, in the order of core/records.py: Job.
CREATE VIEW holdfast_row AS
SELECT *, json_array(
    id, task, queue, payload, key, priority, state, run_at, created_at, attempt, fence, claim_id, worker, lease_until,
    claimed_at, started, failures, crashes, zombies, suspects, cancel_requested, rolling_back, attempts_max,
    backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s, timeout_s, stall_s,
    error, result, progress, note, ended_at
) AS row
FROM holdfast_job;

-- Each index is partial: a finished job costs an entry in `id` and in `ended`, and nothing else.
CREATE INDEX holdfast_job_ready ON holdfast_job (queue, priority DESC, run_at, seq) WHERE state = 'ready';
CREATE INDEX holdfast_job_running ON holdfast_job (lease_until) WHERE state = 'running';
CREATE INDEX holdfast_job_worker ON holdfast_job (worker, claim_id) WHERE state = 'running';
CREATE INDEX holdfast_job_aside ON holdfast_job (state, seq) WHERE state IN ('waiting', 'held', 'dead', 'cancelled', 'rolled_back');
CREATE INDEX holdfast_job_ended ON holdfast_job (ended_at) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX holdfast_job_key ON holdfast_job (key) WHERE key IS NOT NULL AND state IN ('ready', 'running', 'waiting', 'held');

-- How many jobs have ended, so that counting does not read them. Written with the settlements.
CREATE TABLE holdfast_tally (
    queue TEXT    NOT NULL,
    state TEXT    NOT NULL,
    jobs  INTEGER NOT NULL,
    PRIMARY KEY (queue, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_journal (
    seq    INTEGER PRIMARY KEY,
    job_id TEXT    NOT NULL,
    at     REAL    NOT NULL,                          -- wall time
    kind   TEXT    NOT NULL,
    fence  INTEGER NOT NULL,
    worker TEXT,
    actor  TEXT,
    detail TEXT    NOT NULL DEFAULT '{}'
) STRICT;

CREATE INDEX holdfast_journal_job ON holdfast_journal (job_id, seq);
CREATE INDEX holdfast_journal_kind ON holdfast_journal (kind, at);
-- A returned zombie may knock many times; it is told each time and written down once.
CREATE UNIQUE INDEX holdfast_journal_stale ON holdfast_journal (job_id, fence) WHERE kind = 'stale_report';

CREATE TABLE holdfast_step (
    job_id     TEXT    NOT NULL,
    position   INTEGER NOT NULL,
    name       TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('started', 'recorded', 'undone')),
    attempt    INTEGER NOT NULL,
    fence      INTEGER NOT NULL,
    arguments  TEXT,
    result     TEXT,
    error      TEXT,
    started_at REAL,
    ended_at   REAL,
    PRIMARY KEY (job_id, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_worker (
    id         TEXT    NOT NULL PRIMARY KEY,
    name       TEXT    NOT NULL,
    host       TEXT    NOT NULL,
    pid        INTEGER NOT NULL,
    boot_id    TEXT    NOT NULL,
    supervisor TEXT,
    queues     TEXT    NOT NULL,                      -- JSON array
    slots      INTEGER NOT NULL,
    beat_s     REAL    NOT NULL,
    version    TEXT    NOT NULL,
    started_at REAL    NOT NULL,
    beat_at    REAL    NOT NULL,
    beats      INTEGER NOT NULL DEFAULT 0,
    rss_mb     REAL,
    gone_at    REAL,
    gone_cause TEXT,
    lock_inode INTEGER                                -- of the file that carries its liveness lock
) STRICT, WITHOUT ROWID;

CREATE VIEW holdfast_workforce AS
SELECT *, (SELECT count(*) FROM holdfast_job WHERE state = 'running' AND worker = holdfast_worker.id) AS running
FROM holdfast_worker;

CREATE INDEX holdfast_worker_gone ON holdfast_worker (gone_at);

CREATE TABLE holdfast_queue (
    name   TEXT    NOT NULL PRIMARY KEY,
    paused INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
