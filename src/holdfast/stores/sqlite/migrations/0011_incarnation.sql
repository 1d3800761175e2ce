-- works with: 8
-- By what a store is known that was replaced, rewound or emptied, and who has noticed it.

INSERT INTO holdfast_meta (name, value) VALUES ('identity', lower(hex(randomblob(16)))), ('removals', '0');

-- A person who accepts the store as it is begins another one. Rows are never deleted: the number must not fall.
CREATE TABLE holdfast_incarnation (
    number INTEGER PRIMARY KEY,
    at     REAL    NOT NULL,                              -- wall time
    actor  TEXT,
    note   TEXT
) STRICT;

INSERT INTO holdfast_incarnation (number, at) VALUES (1, CAST(strftime('%s', 'now') AS REAL));

CREATE TABLE holdfast_doubt (
    incarnation INTEGER NOT NULL,
    kind        TEXT    NOT NULL CHECK (kind IN ('replaced', 'rewound', 'emptied')),
    evidence    TEXT    NOT NULL,
    worker      TEXT    NOT NULL,                         -- the name of the one that noticed
    seen        TEXT    NOT NULL,
    found       TEXT    NOT NULL,
    at          REAL    NOT NULL,                         -- wall time
    PRIMARY KEY (incarnation, evidence, worker)
) STRICT, WITHOUT ROWID;
