-- works with: 32
-- Schedules that were made at run time and need no declaration; how many missed instants count; jitter.

ALTER TABLE {schema}.schedule ADD COLUMN missed_max bigint NOT NULL DEFAULT 1;
ALTER TABLE {schema}.schedule ADD COLUMN jitter_s float8 NOT NULL DEFAULT 0;
ALTER TABLE {schema}.schedule ADD COLUMN kept boolean NOT NULL DEFAULT false;
