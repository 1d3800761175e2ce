-- The number of a worker's last try to claim; one that was sent before it comes too late (queries.sql: claim_again).
ALTER TABLE {schema}.worker ADD COLUMN claim_try bigint NOT NULL DEFAULT 0;
