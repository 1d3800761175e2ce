-- Statements on a jobs table in SQLite. {word} is a quoted name, or NULL for a column that the table does not have.

-- name: columns
SELECT name, type, "notnull", pk FROM pragma_table_info(:table);

-- name: definitions
SELECT coalesce(sql, '') FROM sqlite_master WHERE name = :table;

-- name: statuses
SELECT {status}, count(*) FROM {table} GROUP BY 1 ORDER BY 2 DESC LIMIT 20;

-- name: running
-- The unary plus keeps a caller's converters away: the comparison below needs the values as they are stored.
SELECT +{id}, +{status}, +{started}, +{updated}, +{worker}, +{attempts}, +{attempts_max}
FROM {table}
WHERE {status} = :running
ORDER BY {started} IS NULL, {started}
LIMIT :limit;

-- name: rescue
-- Compare and set: a row that has moved since it was read is another row.
UPDATE {table} SET {status} = :to_status, {attempts} = :to_attempts, {error} = :why{cleared}
WHERE {id} = :id AND {status} IS :status AND {started} IS :started AND {updated} IS :updated
    AND {worker} IS :worker AND {attempts} IS :attempts;

-- name: journal_make
CREATE TABLE IF NOT EXISTS {journal} (
    at TEXT NOT NULL,
    table_name TEXT NOT NULL,
    job_id TEXT NOT NULL,
    decision TEXT NOT NULL,
    from_status TEXT NOT NULL,
    to_status TEXT NOT NULL,
    attempts INTEGER NOT NULL,
    worker TEXT,
    last_sign_of_life TEXT,
    why TEXT NOT NULL,
    actor TEXT NOT NULL
);

-- name: journal_add
INSERT INTO {journal}
    (at, table_name, job_id, decision, from_status, to_status, attempts, worker, last_sign_of_life, why, actor)
VALUES (
    :at, :table_name, :job_id, :decision, :from_status, :to_status, :to_attempts, :worker_name, :last_sign, :why, :actor
);
