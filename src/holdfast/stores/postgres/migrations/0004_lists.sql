-- Lists, newest first: one state after the other, so that none has to pass millions of another. An entry for each
-- version of a row, as `seq` had; `aside` had another one for those that were ready.
DROP INDEX {schema}.job_seq;
DROP INDEX {schema}.job_aside;
CREATE INDEX job_list ON {schema}.job (state, seq);
-- Finished jobs of a queue that has few among millions, and jobs with a key.
CREATE INDEX job_past ON {schema}.job (queue, state, seq) WHERE ended_at IS NOT NULL;
CREATE INDEX job_keys ON {schema}.job (key) WHERE key IS NOT NULL;
