-- works with: 20
-- Tokens of the HTTP API. The secret itself is nowhere.

CREATE TABLE holdfast_token (
    name       TEXT NOT NULL PRIMARY KEY,
    role       TEXT NOT NULL,
    queues     TEXT,                   -- JSON: the only queues that it sees; NULL means all
    sha256     TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,          -- wall time, and so are the next two
    used_at    REAL,
    expires_at REAL
) STRICT, WITHOUT ROWID;
