-- works with: 9
-- What the last holder of a duty has left for the next one.

ALTER TABLE {schema}.duty ADD COLUMN note text;
