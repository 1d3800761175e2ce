-- works with: 8
-- Whether a worker is stopping: it claims nothing more, and lets its running jobs finish.

ALTER TABLE holdfast_worker ADD COLUMN stopping INTEGER NOT NULL DEFAULT 0 CHECK (stopping IN (0, 1));
