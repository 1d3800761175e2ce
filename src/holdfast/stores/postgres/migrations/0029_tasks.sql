-- works with: 28
-- What workers have published of their tasks, for enqueues by name. A row outlives the workers.

CREATE TABLE {schema}.task (
    name         text   NOT NULL PRIMARY KEY,
    task         text   NOT NULL,  -- JSON: its queue, its policy, its parameters and their schema
    published_at float8 NOT NULL   -- wall time
);
