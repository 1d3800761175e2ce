-- Workflows: what the judge must know of one stands on its row; its steps and signals have tables of their own.

ALTER TABLE holdfast_job ADD COLUMN workflow INTEGER NOT NULL DEFAULT 0 CHECK (workflow IN (0, 1));
ALTER TABLE holdfast_job ADD COLUMN parent TEXT;          -- the workflow that started it, and is woken by its end
ALTER TABLE holdfast_job ADD COLUMN undoable INTEGER NOT NULL DEFAULT 0 CHECK (undoable IN (0, 1));
ALTER TABLE holdfast_job ADD COLUMN open_step TEXT;       -- begun, not recorded, and not to be repeated
ALTER TABLE holdfast_job ADD COLUMN inbox INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holdfast_job ADD COLUMN wake_at REAL CHECK (wake_at IS NULL OR state = 'waiting');     -- wall time
ALTER TABLE holdfast_job ADD COLUMN awaits TEXT CHECK (awaits IS NULL OR state = 'waiting');       -- JSON array
ALTER TABLE holdfast_job ADD COLUMN question TEXT CHECK (question IS NULL OR state = 'waiting');
ALTER TABLE holdfast_job ADD COLUMN undo_requested INTEGER NOT NULL DEFAULT 0 CHECK (undo_requested IN (0, 1));

DROP VIEW holdfast_row;

-- A row as one JSON array, in the order of core/records.py: Job. What only workflows and their children have is left out
-- of others, most of all jobs: there the record has it by default.
CREATE VIEW holdfast_row AS
SELECT *, CASE
WHEN workflow = 0 AND parent IS NULL AND undoable = 0 AND open_step IS NULL AND inbox = 0 AND awaits IS NULL
    AND undo_requested = 0
THEN json_array(
    id, task, queue, payload, key, priority, state, run_at, created_at, attempt, fence, claim_id, worker, lease_until,
    claimed_at, started, failures, crashes, zombies, suspects, cancel_requested, rolling_back, attempts_max,
    backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s, timeout_s, stall_s,
    error, result, progress, note, ended_at, log, moved_at
)
ELSE json_array(
    id, task, queue, payload, key, priority, state, run_at, created_at, attempt, fence, claim_id, worker, lease_until,
    claimed_at, started, failures, crashes, zombies, suspects, cancel_requested, rolling_back, attempts_max,
    backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash, lease_s, beat_s, timeout_s, stall_s,
    error, result, progress, note, ended_at, log, moved_at,
    workflow, parent, undoable, open_step, inbox, wake_at, json(awaits), question, undo_requested
)
END AS row
FROM holdfast_job;

CREATE INDEX holdfast_job_wake ON holdfast_job (wake_at) WHERE state = 'waiting' AND wake_at IS NOT NULL;
CREATE INDEX holdfast_job_workflow ON holdfast_job (seq) WHERE workflow = 1;
CREATE INDEX holdfast_job_question ON holdfast_job (seq) WHERE question IS NOT NULL;

DROP TABLE holdfast_step;                             -- nothing was ever written to it

CREATE TABLE holdfast_step (
    job_id     TEXT    NOT NULL,
    aside      INTEGER NOT NULL,                      -- the fence at which it was set aside; 0: it counts
    position   INTEGER NOT NULL,                      -- the order of the first writing
    path       TEXT    NOT NULL,                      -- what the code knows it by
    kind       TEXT    NOT NULL,
    name       TEXT    NOT NULL,
    state      TEXT    NOT NULL CHECK (state IN ('started', 'recorded', 'undone')),
    attempt    INTEGER NOT NULL,
    fence      INTEGER NOT NULL,
    has_undo   INTEGER NOT NULL,
    repeatable INTEGER NOT NULL,
    arguments  TEXT,
    result     TEXT,
    error      TEXT,
    error_kind TEXT,
    started_at REAL,
    ended_at   REAL,
    PRIMARY KEY (job_id, aside, position)
) STRICT, WITHOUT ROWID;

CREATE TABLE holdfast_signal (
    seq     INTEGER PRIMARY KEY,
    id      TEXT NOT NULL UNIQUE,
    job_id  TEXT NOT NULL,
    name    TEXT NOT NULL,
    value   TEXT,
    actor   TEXT,
    sent_at REAL NOT NULL,
    taken   INTEGER                                   -- the position of the step that took it
) STRICT;

CREATE INDEX holdfast_signal_job ON holdfast_signal (job_id, seq);
