-- works with: 9
-- A job that runs, and one that has ended, have no entry in this index any more: each costs a drain a tenth of its time.
-- Those that run are few; ended ones are listed by the index of their queues.

DROP INDEX {schema}.job_list;
CREATE INDEX job_list ON {schema}.job (state, seq) WHERE state IN ('ready', 'waiting', 'held');
