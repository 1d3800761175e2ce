-- works with: 9
-- The id of a signal is unique within its workflow: one event may concern several workflows. The key begins with the id
-- because statements look for an id.

ALTER TABLE {schema}.signal DROP CONSTRAINT signal_pkey, ADD PRIMARY KEY (id, job_id);
