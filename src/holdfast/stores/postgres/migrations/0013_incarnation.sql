-- works with: 9
-- By what a store is known that was replaced, rewound or emptied, and who has noticed it.

INSERT INTO {schema}.meta (name, value) VALUES ('removals', '0');

-- A person who accepts the store as it is begins another one. Rows are never deleted: the number must not fall.
CREATE TABLE {schema}.incarnation (
    number bigint PRIMARY KEY,
    at     float8 NOT NULL,
    actor  text,
    note   text
);

INSERT INTO {schema}.incarnation (number, at) VALUES (1, extract(epoch FROM clock_timestamp())::float8);

CREATE TABLE {schema}.doubt (
    incarnation bigint           NOT NULL,
    kind        text COLLATE "C" NOT NULL CHECK (kind IN ('replaced', 'rewound', 'emptied')),
    evidence    text COLLATE "C" NOT NULL,
    worker      text COLLATE "C" NOT NULL,                -- the name of the one that noticed; empty: the server itself
    seen        text             NOT NULL,
    found       text             NOT NULL,
    at          float8           NOT NULL,
    PRIMARY KEY (incarnation, evidence, worker)
);

-- Nothing of ours truncates. Whoever does it by hand is noticed even when no worker runs.
CREATE FUNCTION {schema}.note_truncate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.doubt (incarnation, kind, evidence, worker, seen, found, at)
    SELECT max(number), 'emptied', 'truncate', '', TG_TABLE_NAME, session_user,
        extract(epoch FROM clock_timestamp())::float8
    FROM {schema}.incarnation
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;

CREATE TRIGGER job_truncate AFTER TRUNCATE ON {schema}.job
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.note_truncate();
