-- works with: 25
-- Jobs by their last error, newest first: one that has never failed has no entry. Acts of people: other events have none.

CREATE INDEX holdfast_job_erred ON holdfast_job (fingerprint, seq) WHERE fingerprint IS NOT NULL;
CREATE INDEX holdfast_journal_actor ON holdfast_journal (seq) WHERE actor IS NOT NULL;
