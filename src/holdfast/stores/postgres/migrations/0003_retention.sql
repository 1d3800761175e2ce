-- Retention asks for one state at a time: those that are kept for ever must not be read again and again.
DROP INDEX {schema}.job_ended;
CREATE INDEX job_ended ON {schema}.job (state, ended_at) WHERE ended_at IS NOT NULL;
