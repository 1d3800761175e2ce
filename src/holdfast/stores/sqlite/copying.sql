-- Statements for a copy. TABLE, COLUMNS, KEYS and MARKS stand for the names that the file itself has for a table and its
-- columns, and for parameters (copying.py).

-- name: tables
SELECT each.name, column.name, column.type
FROM sqlite_schema AS each, pragma_table_info(each.name) AS column
WHERE each.type = 'table' AND each.name LIKE 'holdfast\_%' ESCAPE '\'
ORDER BY each.name, column.cid;

-- name: count
SELECT count(*) FROM "TABLE";

-- name: all
SELECT * FROM "TABLE";

-- name: first
SELECT * FROM "TABLE" ORDER BY KEYS LIMIT :limit;

-- name: after
SELECT * FROM "TABLE" WHERE (KEYS) > (MARKS) ORDER BY KEYS LIMIT :limit;

-- name: upto
SELECT * FROM "TABLE" WHERE (KEYS) <= (UPTO) ORDER BY KEYS LIMIT :limit;

-- name: between
SELECT * FROM "TABLE" WHERE (KEYS) > (MARKS) AND (KEYS) <= (UPTO) ORDER BY KEYS LIMIT :limit;

-- name: delete
DELETE FROM "TABLE" WHERE (KEYS) = (MARKS);

-- name: insert
INSERT INTO "TABLE" (COLUMNS) VALUES (MARKS);

-- name: copy_open
SELECT EXISTS (
    SELECT 1 FROM holdfast_doubt
    WHERE evidence = 'copy' AND seen = :source AND incarnation = (SELECT max(number) FROM holdfast_incarnation)
);
