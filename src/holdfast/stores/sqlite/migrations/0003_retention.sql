-- Retention asks for one state at a time: those that are kept for ever must not be read again and again.
DROP INDEX holdfast_job_ended;
CREATE INDEX holdfast_job_ended ON holdfast_job (state, ended_at) WHERE ended_at IS NOT NULL;
