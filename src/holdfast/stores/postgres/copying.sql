-- Statements for a copy. TABLE, COLUMNS, KEYS, MARKS and UPTO stand for the names of a table and its columns, and for
-- parameters (copying.py). A row is one JSON text.

-- name: tables
SELECT class.relname, attribute.attname, format_type(attribute.atttypid, NULL)
FROM pg_attribute AS attribute
JOIN pg_class AS class ON class.oid = attribute.attrelid
JOIN pg_namespace AS space ON space.oid = class.relnamespace
WHERE space.nspname = %(schema)s AND class.relkind = 'r' AND attribute.attnum > 0 AND NOT attribute.attisdropped
ORDER BY class.relname, attribute.attnum;

-- name: count
SELECT count(*) FROM {schema}.TABLE;

-- name: all
SELECT row_to_json(each)::text FROM {schema}.TABLE AS each;

-- Lines that count as one are folded.
-- name: all_tally
SELECT row_to_json(each)::text FROM (
    SELECT queue, state, sum(jobs)::bigint AS jobs, sum(coalesce(ended, greatest(jobs, 0)))::bigint AS ended
    FROM {schema}.tally GROUP BY queue, state
) AS each;

-- name: all_batch_removed
SELECT row_to_json(each)::text FROM (
    SELECT batch, state, sum(jobs)::bigint AS jobs FROM {schema}.batch_removed GROUP BY batch, state
) AS each;

-- name: all_crash
SELECT row_to_json(each)::text FROM (
    SELECT slot, kind, task, queue, detector, decision, sum(attempts)::bigint AS attempts
    FROM {schema}.crash GROUP BY slot, kind, task, queue, detector, decision
) AS each;

-- name: all_error
SELECT row_to_json(each)::text FROM (
    SELECT slot, task, fingerprint, release,
        (array_agg(kind ORDER BY first_at, job_id))[1] AS kind,
        (array_agg(origin ORDER BY first_at, job_id))[1] AS origin,
        (array_agg(message ORDER BY first_at, job_id))[1] AS message,
        sum(attempts)::bigint AS attempts, min(first_at) AS first_at, max(last_at) AS last_at,
        (array_agg(job_id ORDER BY last_at DESC, job_id DESC))[1] AS job_id
    FROM {schema}.error GROUP BY slot, task, fingerprint, release
) AS each;

-- name: first
SELECT row_to_json(each)::text FROM {schema}.TABLE AS each ORDER BY KEYS LIMIT %(limit)s;

-- name: after
SELECT row_to_json(each)::text FROM {schema}.TABLE AS each WHERE (KEYS) > (MARKS) ORDER BY KEYS LIMIT %(limit)s;

-- name: upto
SELECT row_to_json(each)::text FROM {schema}.TABLE AS each WHERE (KEYS) <= (UPTO) ORDER BY KEYS LIMIT %(limit)s;

-- name: between
SELECT row_to_json(each)::text FROM {schema}.TABLE AS each
WHERE (KEYS) > (MARKS) AND (KEYS) <= (UPTO) ORDER BY KEYS LIMIT %(limit)s;

-- name: delete
DELETE FROM {schema}.TABLE WHERE (KEYS) = (MARKS);

-- name: insert
INSERT INTO {schema}.TABLE (COLUMNS) OVERRIDING SYSTEM VALUE
SELECT COLUMNS FROM json_populate_recordset(NULL::{schema}.TABLE, %(rows)s::json);

-- name: copy_open
SELECT EXISTS (
    SELECT FROM {schema}.doubt
    WHERE evidence = 'copy' AND seen = %(source)s AND incarnation = (SELECT max(number) FROM {schema}.incarnation)
);

-- name: next_number
SELECT setval(
    pg_get_serial_sequence('{schema}.TABLE', 'seq'), coalesce((SELECT max(seq) FROM {schema}.TABLE), 0) + 1, false
);
