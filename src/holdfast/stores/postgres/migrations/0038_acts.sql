-- works with: 32
-- Jobs by their last error, newest first: one that has never failed has no entry. Acts of people: other events have none.

CREATE INDEX job_erred ON {schema}.job (fingerprint, seq) WHERE fingerprint IS NOT NULL;
CREATE INDEX journal_actor ON {schema}.journal (seq) WHERE actor IS NOT NULL;
