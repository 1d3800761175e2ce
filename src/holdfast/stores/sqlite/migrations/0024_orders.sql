-- works with: 20
-- What people have asked of workers, by the name of the worker or of its supervisor; and what workers say of themselves.

CREATE TABLE holdfast_order (
    name  TEXT NOT NULL PRIMARY KEY,
    act   TEXT NOT NULL CHECK (act IN ('drain', 'stop')),
    actor TEXT,
    note  TEXT,
    at    REAL NOT NULL   -- wall time
) STRICT, WITHOUT ROWID;

-- Written with a beat, in one row for each worker, and only if there is news.
CREATE TABLE holdfast_recent (
    worker TEXT NOT NULL PRIMARY KEY,
    recent TEXT NOT NULL  -- JSON: core/records.py: Recent
) STRICT;
