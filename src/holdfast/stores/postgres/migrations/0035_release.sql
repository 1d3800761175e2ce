-- works with: 32
-- The release of the user's code that a worker runs, as it was told.

ALTER TABLE {schema}.worker ADD COLUMN release text;

CREATE OR REPLACE VIEW {schema}.workers AS
SELECT id, name, host, pid, supervisor, slots, beats, to_timestamp(started_at) AS started_at,
    to_timestamp(beat_at) AS beat_at, to_timestamp(gone_at) AS gone_at, gone_cause, exit_kind, exit_code, stopping, release
FROM {schema}.worker;
