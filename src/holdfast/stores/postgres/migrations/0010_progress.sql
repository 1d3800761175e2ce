-- works with: 9
-- Which programs may work on this schema, which schema each worker knows, and how far a migration has come.

ALTER TABLE {schema}.worker ADD COLUMN schema integer NOT NULL DEFAULT 9;  -- the last migration that its program knows

-- How far the migration after `schema` has come; at most one row.
CREATE TABLE {schema}.migration (
    number integer PRIMARY KEY,
    pieces integer NOT NULL,                              -- that are done
    after  bigint  NOT NULL                               -- the last row that the piece after them has changed
);

-- A program that is too old for the schema cannot start another worker, whatever it knows of this rule.
CREATE FUNCTION {schema}.refuse_too_old() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.schema < (SELECT value::integer FROM {schema}.meta WHERE name = 'works_with') THEN
        RAISE EXCEPTION 'this program is too old for the schema of the store: upgrade it';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER worker_too_old BEFORE INSERT ON {schema}.worker
FOR EACH ROW EXECUTE FUNCTION {schema}.refuse_too_old();
