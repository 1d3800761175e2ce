-- works with: 9
-- The tasks that each worker has, as it published them when it enrolled. Not a column of the worker's row: that is
-- written again with every beat.

CREATE TABLE {schema}.published (
    worker text COLLATE "C" PRIMARY KEY,
    tasks  json NOT NULL                               -- an object: what is known of each task, by its name
);

CREATE FUNCTION {schema}.forget_published() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM {schema}.published WHERE worker = OLD.id;
    RETURN NULL;
END
$$;

CREATE TRIGGER worker_published AFTER DELETE ON {schema}.worker
FOR EACH ROW EXECUTE FUNCTION {schema}.forget_published();
