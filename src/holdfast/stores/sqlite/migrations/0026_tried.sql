-- works with: 25
-- The jobs that wait for another try, newest first. One that has never failed has no entry.

CREATE INDEX holdfast_job_tried ON holdfast_job (seq) WHERE state = 'ready' AND failures + crashes > 0;
