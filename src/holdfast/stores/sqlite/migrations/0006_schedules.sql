-- What is to be enqueued at which instants (core/schedule.py), and how far that has come. A row is never deleted: its
-- mark says what was fired, and must not fall.

CREATE TABLE holdfast_schedule (
    key         TEXT    NOT NULL PRIMARY KEY,
    spec        TEXT    NOT NULL,
    tz          TEXT    NOT NULL,
    missed      TEXT    NOT NULL CHECK (missed IN ('last', 'skip')),
    job         TEXT    NOT NULL,                     -- what each instant stores, as JSON
    mark        REAL    NOT NULL,                     -- wall: instants up to here are dealt with; only ever rises
    fired_at    REAL,                                 -- the last instant that was fired
    job_id      TEXT,                                 -- and its job
    paused      INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)),
    declared_at REAL    NOT NULL,                     -- when a program last said that it still declares it
    CHECK (fired_at IS NULL OR fired_at <= mark)
) STRICT, WITHOUT ROWID;
