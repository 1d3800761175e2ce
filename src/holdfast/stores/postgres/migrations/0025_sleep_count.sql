-- works with: 9
-- How often a worker has gone to sleep. A producer that finds it unchanged since its last hint wakes nobody.

CREATE SEQUENCE {schema}.sleep_count;
