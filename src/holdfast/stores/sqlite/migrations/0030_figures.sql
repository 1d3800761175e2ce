-- works with: 25
-- Counters that never fall: lost attempts and late reports by minute, and how many jobs have ever ended.

CREATE TABLE holdfast_crash (
    slot     INTEGER NOT NULL,                         -- the minute
    kind     TEXT    NOT NULL,                         -- zombie, stale_report
    task     TEXT    NOT NULL,                         -- '': the job was deleted
    queue    TEXT    NOT NULL,
    detector TEXT    NOT NULL,
    decision TEXT    NOT NULL,
    attempts INTEGER NOT NULL,
    PRIMARY KEY (slot, kind, task, queue, detector, decision)
) STRICT, WITHOUT ROWID;

-- A trigger, because several verbs write these lines, and one that is there already counts once. Successes write none.
CREATE TRIGGER holdfast_journal_crash AFTER INSERT ON holdfast_journal WHEN NEW.kind IN ('zombie', 'stale_report')
BEGIN
    INSERT INTO holdfast_crash (slot, kind, task, queue, detector, decision, attempts)
    VALUES (
        CAST(NEW.at / 60 AS INTEGER),
        NEW.kind,
        coalesce((SELECT task FROM holdfast_job WHERE id = NEW.job_id), ''),
        coalesce((SELECT queue FROM holdfast_job WHERE id = NEW.job_id), ''),
        iif(NEW.kind = 'zombie', coalesce(NEW.detail ->> 'detector', ''), ''),
        iif(NEW.kind = 'zombie', coalesce(NEW.detail ->> 'decision', ''), ''),
        1
    )
    ON CONFLICT (slot, kind, task, queue, detector, decision) DO UPDATE SET attempts = attempts + 1;
END;

ALTER TABLE holdfast_tally ADD COLUMN ended INTEGER NOT NULL DEFAULT 0;  -- ever; `jobs` are those that are kept

UPDATE holdfast_tally SET ended = max(jobs, 0);
