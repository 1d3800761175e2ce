-- works with: 8
-- What the last holder of a duty has left for the next one.

ALTER TABLE holdfast_duty ADD COLUMN note TEXT;
