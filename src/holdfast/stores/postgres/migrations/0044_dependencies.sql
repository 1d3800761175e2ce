-- works with: 32
-- Jobs that run after others: those that wait and that no worker has ever claimed. No other job has an entry.

-- piece
CREATE INDEX job_dependent ON {schema}.job (id) WHERE state = 'waiting' AND fence = 0;

-- piece
CREATE INDEX job_depends ON {schema}.job USING gin ((awaits::jsonb)) WHERE state = 'waiting' AND fence = 0;
