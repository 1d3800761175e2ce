-- works with: 8
-- The tasks that each worker has, as it published them when it enrolled. Not a column of the worker's row: that is
-- written again with every beat.

CREATE TABLE holdfast_published (
    worker TEXT NOT NULL PRIMARY KEY,
    tasks  TEXT NOT NULL                              -- a JSON object: what is known of each task, by its name
) STRICT, WITHOUT ROWID;

CREATE TRIGGER holdfast_published_gone AFTER DELETE ON holdfast_worker
BEGIN
    DELETE FROM holdfast_published WHERE worker = OLD.id;
END;
