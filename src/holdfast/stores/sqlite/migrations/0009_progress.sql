-- works with: 8
-- Which programs may work on this schema, which schema each worker knows, and how far a migration has come.

ALTER TABLE holdfast_worker ADD COLUMN schema INTEGER NOT NULL DEFAULT 8;  -- the last migration that its program knows

-- How far the migration after `schema` has come; at most one row.
CREATE TABLE holdfast_migration (
    number INTEGER NOT NULL PRIMARY KEY,
    pieces INTEGER NOT NULL,                              -- that are done
    after  INTEGER NOT NULL                               -- the last row that the piece after them has changed
) STRICT, WITHOUT ROWID;

-- A program that is too old for the schema cannot start another worker, whatever it knows of this rule.
CREATE TRIGGER holdfast_worker_too_old BEFORE INSERT ON holdfast_worker
WHEN NEW.schema < (SELECT CAST(value AS INTEGER) FROM holdfast_meta WHERE name = 'works_with')
BEGIN
    SELECT RAISE(ABORT, 'this program is too old for the schema of the store: upgrade it');
END;
