-- works with: 9
-- Whether a worker is stopping: it claims nothing more, and lets its running jobs finish.

ALTER TABLE {schema}.worker ADD COLUMN stopping boolean NOT NULL DEFAULT false;

CREATE OR REPLACE VIEW {schema}.workers AS
SELECT id, name, host, pid, supervisor, slots, beats, to_timestamp(started_at) AS started_at,
    to_timestamp(beat_at) AS beat_at, to_timestamp(gone_at) AS gone_at, gone_cause, exit_kind, exit_code, stopping
FROM {schema}.worker;
