-- works with: 9
-- The tally has no key, and a server that replicates logically (CREATE PUBLICATION … FOR ALL TABLES) refuses to delete
-- from such a table. With the whole row as its identity it may.

ALTER TABLE {schema}.tally REPLICA IDENTITY FULL;
