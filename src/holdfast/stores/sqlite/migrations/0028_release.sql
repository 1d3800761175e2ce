-- works with: 25
-- The release of the user's code that a worker runs, as it was told.

ALTER TABLE holdfast_worker ADD COLUMN release TEXT;
