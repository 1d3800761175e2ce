-- works with: 20
-- What workers have published of their tasks, for enqueues by name. A row outlives the workers.

CREATE TABLE holdfast_task (
    name         TEXT NOT NULL PRIMARY KEY,
    task         TEXT NOT NULL,  -- JSON: its queue, its policy, its parameters and their schema
    published_at REAL NOT NULL   -- wall time
) STRICT, WITHOUT ROWID;
