-- works with: 9
-- When a worker last beat while somebody had locked its row. No reference to that row: to check it would wait for the lock.

CREATE TABLE {schema}.beat_aside (
    worker text COLLATE "C" PRIMARY KEY,
    at     float8 NOT NULL
);
