-- works with: 9
-- Instants that people can read and compare with now(), and the right to number jobs for those who may insert them.

CREATE VIEW {schema}.jobs AS
SELECT id, task, queue, key, state, priority, attempt, failures, crashes, zombies, fence, worker,
    to_timestamp(run_at) AS run_at, to_timestamp(created_at) AS created_at, to_timestamp(claimed_at) AS claimed_at,
    to_timestamp(lease_until) AS lease_until, to_timestamp(moved_at) AS moved_at, to_timestamp(wake_at) AS wake_at,
    to_timestamp(ended_at) AS ended_at, progress, note, error
FROM {schema}.job;

CREATE VIEW {schema}.events AS
SELECT seq, job_id, to_timestamp(at) AS at, kind, fence, worker, actor, detail
FROM {schema}.journal;

CREATE VIEW {schema}.workers AS
SELECT id, name, host, pid, supervisor, slots, beats, to_timestamp(started_at) AS started_at,
    to_timestamp(beat_at) AS beat_at, to_timestamp(gone_at) AS gone_at, gone_cause
FROM {schema}.worker;

CREATE VIEW {schema}.schedules AS
SELECT key, spec, tz, missed, paused, job_id, to_timestamp(mark) AS mark, to_timestamp(fired_at) AS fired_at,
    to_timestamp(declared_at) AS declared_at
FROM {schema}.schedule;

CREATE VIEW {schema}.steps AS
SELECT job_id, position, path, kind, name, state, attempt, aside, to_timestamp(started_at) AS started_at,
    to_timestamp(ended_at) AS ended_at, to_timestamp(undone_at) AS undone_at, error
FROM {schema}.step;

-- A user who may insert jobs draws their numbers, which the table did for it before.
GRANT USAGE ON SEQUENCE {schema}.job_seq_seq TO PUBLIC;
