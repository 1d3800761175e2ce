-- works with: 32
-- Rollups: attempts that ended and jobs that arrived, by queue, for each minute, for each hour and for ever.

-- A batch of settlements adds one row; the holder of the duty "rollups" folds them. Enqueueing writes nothing.
CREATE TABLE {schema}.delta (
    minute bigint NOT NULL,
    lines  text   NOT NULL                             -- JSON: core/rollups.py
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

ALTER TABLE {schema}.delta REPLICA IDENTITY FULL;

CREATE TABLE {schema}.rollup (
    span    integer          NOT NULL,                 -- seconds: 60, 3600; 0 is for ever
    slot    bigint           NOT NULL,
    queue   text COLLATE "C" NOT NULL,
    arrived bigint           NOT NULL,
    came    bigint           NOT NULL,
    endings text             NOT NULL,                 -- JSON: core/rollups.py
    PRIMARY KEY (span, slot, queue)
);

-- What came to an empty store from now on has arrived; of other stores nobody knows when their jobs came.
INSERT INTO {schema}.rollup (span, slot, queue, arrived, came, endings)
SELECT 0, 0, '', 0, 0, '[]' WHERE NOT EXISTS (SELECT FROM {schema}.job);
