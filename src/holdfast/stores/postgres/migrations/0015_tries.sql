-- works with: 9
-- How often a step was tried, and when it is tried again after a try that failed.

ALTER TABLE {schema}.step
    ADD COLUMN tries    integer NOT NULL DEFAULT 0,
    ADD COLUMN retry_at float8;

CREATE OR REPLACE VIEW {schema}.steps AS
SELECT job_id, position, path, kind, name, state, attempt, aside, to_timestamp(started_at) AS started_at,
    to_timestamp(ended_at) AS ended_at, to_timestamp(undone_at) AS undone_at, error, tries,
    to_timestamp(retry_at) AS retry_at
FROM {schema}.step;
