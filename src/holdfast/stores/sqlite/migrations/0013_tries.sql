-- works with: 8
-- How often a step was tried, and when it is tried again after a try that failed.

ALTER TABLE holdfast_step ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;
ALTER TABLE holdfast_step ADD COLUMN retry_at REAL;
