-- Statements on a jobs table in PostgreSQL. {word} is a quoted name, or NULL for a column that the table does not have.

-- name: now
SELECT extract(epoch FROM clock_timestamp())::float8;

-- name: columns
SELECT attname, format_type(atttypid, atttypmod), attnotnull, coalesce((
    SELECT true FROM pg_index WHERE indrelid = attrelid AND indisprimary AND attnum = ANY (indkey)
), false)
FROM pg_attribute
WHERE attrelid = to_regclass(%(table)s) AND attnum > 0 AND NOT attisdropped
ORDER BY attnum;

-- name: definitions
SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = to_regclass(%(table)s) AND contype = 'c'
UNION ALL
SELECT attname || ' ' || string_agg(quote_literal(enumlabel), ', ' ORDER BY enumsortorder)
FROM pg_attribute JOIN pg_enum ON enumtypid = atttypid
WHERE attrelid = to_regclass(%(table)s)
GROUP BY attname;

-- name: statuses
SELECT {status}, count(*) FROM {table} GROUP BY 1 ORDER BY 2 DESC LIMIT 20;

-- name: running
SELECT {id}, {status}, {started}, {updated}, {worker}, {attempts}, {attempts_max}
FROM {table}
WHERE {status} = %(running)s
ORDER BY {started}
LIMIT %(limit)s;

-- name: rescue
-- Compare and set: a row that has moved since it was read is another row.
UPDATE {table} SET {status} = %(to_status)s, {attempts} = %(to_attempts)s, {error} = %(why)s{cleared}
WHERE {id} = %(id)s AND {status} = %(status)s AND {started} IS NOT DISTINCT FROM %(started)s
    AND {updated} IS NOT DISTINCT FROM %(updated)s AND {worker} IS NOT DISTINCT FROM %(worker)s
    AND {attempts} IS NOT DISTINCT FROM %(attempts)s;

-- name: journal_is_there
SELECT to_regclass(%(journal)s) IS NOT NULL;

-- name: journal_make
CREATE TABLE IF NOT EXISTS {journal} (
    at timestamptz NOT NULL,
    table_name text NOT NULL,
    job_id text NOT NULL,
    decision text NOT NULL,
    from_status text NOT NULL,
    to_status text NOT NULL,
    attempts bigint NOT NULL,
    worker text,
    last_sign_of_life timestamptz,
    why text NOT NULL,
    actor text NOT NULL
);

-- name: journal_add
INSERT INTO {journal}
    (at, table_name, job_id, decision, from_status, to_status, attempts, worker, last_sign_of_life, why, actor)
VALUES (
    %(at)s, %(table_name)s, %(job_id)s, %(decision)s, %(from_status)s, %(to_status)s, %(to_attempts)s,
    %(worker_name)s, %(last_sign)s, %(why)s, %(actor)s
);
