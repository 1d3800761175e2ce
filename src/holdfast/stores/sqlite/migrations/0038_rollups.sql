-- works with: 25
-- Rollups: attempts that ended and jobs that arrived, by queue, for each minute, for each hour and for ever.

-- A batch of settlements adds one row; the holder of the duty "rollups" folds them. Enqueueing writes nothing.
CREATE TABLE holdfast_delta (
    id     INTEGER PRIMARY KEY,
    minute INTEGER NOT NULL,
    lines  TEXT    NOT NULL                            -- JSON: core/rollups.py
) STRICT;

CREATE TABLE holdfast_rollup (
    span    INTEGER NOT NULL,                          -- seconds: 60, 3600; 0 is for ever
    slot    INTEGER NOT NULL,
    queue   TEXT    NOT NULL,
    arrived INTEGER NOT NULL,
    came    INTEGER NOT NULL,
    endings TEXT    NOT NULL,                          -- JSON: core/rollups.py
    PRIMARY KEY (span, slot, queue)
) STRICT, WITHOUT ROWID;

-- What came to an empty store from now on has arrived; of other stores nobody knows when their jobs came.
INSERT INTO holdfast_rollup (span, slot, queue, arrived, came, endings)
SELECT 0, 0, '', 0, 0, '[]' WHERE NOT EXISTS (SELECT 1 FROM holdfast_job);
