-- works with: 28
-- Tokens of the HTTP API. The secret itself is nowhere.

CREATE TABLE {schema}.token (
    name       text   NOT NULL PRIMARY KEY,
    role       text   NOT NULL,
    queues     text,                   -- JSON: the only queues that it sees; NULL means all
    sha256     text   NOT NULL UNIQUE,
    created_at float8 NOT NULL,        -- wall time, and so are the next two
    used_at    float8,
    expires_at float8
);
