-- works with: 28
-- What people have asked of workers, by the name of the worker or of its supervisor; and what workers say of themselves.

CREATE TABLE {schema}.worker_order (
    name  text COLLATE "C" NOT NULL PRIMARY KEY,
    act   text COLLATE "C" NOT NULL CHECK (act IN ('drain', 'stop')),
    actor text,
    note  text,
    at    float8 NOT NULL   -- wall time
);

-- Written with a beat, in one row for each worker, and only if there is news.
CREATE TABLE {schema}.worker_recent (
    worker text COLLATE "C" NOT NULL PRIMARY KEY,
    recent text NOT NULL  -- JSON: core/records.py: Recent
);
