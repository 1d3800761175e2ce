-- works with: 8
-- The id of a signal is unique within its workflow: one event may concern several workflows. The index begins with the id
-- because statements look for an id.

DROP INDEX holdfast_signal_job;
ALTER TABLE holdfast_signal RENAME TO holdfast_signal_before;

CREATE TABLE holdfast_signal (
    seq     INTEGER PRIMARY KEY,
    id      TEXT NOT NULL,
    job_id  TEXT NOT NULL,
    name    TEXT NOT NULL,
    value   TEXT,
    actor   TEXT,
    sent_at REAL NOT NULL,
    taken   INTEGER,                                  -- the position of the step that took it
    UNIQUE (id, job_id)
) STRICT;

INSERT INTO holdfast_signal (seq, id, job_id, name, value, actor, sent_at, taken)
SELECT seq, id, job_id, name, value, actor, sent_at, taken FROM holdfast_signal_before;

DROP TABLE holdfast_signal_before;
CREATE INDEX holdfast_signal_job ON holdfast_signal (job_id, seq);
