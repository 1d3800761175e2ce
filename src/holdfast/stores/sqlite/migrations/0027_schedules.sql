-- works with: 25
-- Schedules that were made at run time and need no declaration; how many missed instants count; jitter.

ALTER TABLE holdfast_schedule ADD COLUMN missed_max INTEGER NOT NULL DEFAULT 1;
ALTER TABLE holdfast_schedule ADD COLUMN jitter_s REAL NOT NULL DEFAULT 0;
ALTER TABLE holdfast_schedule ADD COLUMN kept INTEGER NOT NULL DEFAULT 0 CHECK (kept IN (0, 1));
