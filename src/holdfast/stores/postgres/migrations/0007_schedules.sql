-- What is to be enqueued at which instants (core/schedule.py), and how far that has come. A row is never deleted: its
-- mark says what was fired, and must not fall.

CREATE TABLE {schema}.schedule (
    key         text COLLATE "C" PRIMARY KEY,
    spec        text    NOT NULL,
    tz          text    NOT NULL,
    missed      text    NOT NULL CHECK (missed IN ('last', 'skip')),
    job         text    NOT NULL,                      -- what each instant stores, as JSON
    mark        float8  NOT NULL,                      -- wall: instants up to here are dealt with; only ever rises
    fired_at    float8,                                -- the last instant that was fired
    job_id      text,                                  -- and its job
    paused      boolean NOT NULL DEFAULT false,
    declared_at float8  NOT NULL,                      -- when a program last said that it still declares it
    CHECK (fired_at <= mark)
) WITH (fillfactor = 50);
