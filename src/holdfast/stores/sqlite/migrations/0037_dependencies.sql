-- works with: 25
-- Jobs that run after others: those that wait and that no worker has ever claimed. No other job has an entry.

CREATE INDEX holdfast_job_dependent ON holdfast_job (id) WHERE state = 'waiting' AND fence = 0;
