-- works with: 32
-- Counters that never fall: lost attempts and late reports by minute, and how many jobs have ever ended.

-- Each lost attempt adds a line of its own, as to `tally`; those of a minute that is over are folded.
CREATE TABLE {schema}.crash (
    slot     bigint           NOT NULL,                -- the minute
    kind     text COLLATE "C" NOT NULL,                -- zombie, stale_report
    task     text COLLATE "C" NOT NULL,                -- '': the job was deleted
    queue    text COLLATE "C" NOT NULL,
    detector text COLLATE "C" NOT NULL,
    decision text COLLATE "C" NOT NULL,
    attempts bigint           NOT NULL,
    folded   boolean          NOT NULL DEFAULT false
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

ALTER TABLE {schema}.crash REPLICA IDENTITY FULL;

CREATE INDEX crash_slot ON {schema}.crash (slot);

-- A trigger, because several verbs write these lines, and one that is there already counts once. Successes write none.
CREATE FUNCTION {schema}.count_crash() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.crash (slot, kind, task, queue, detector, decision, attempts)
    VALUES (
        floor(NEW.at / 60),
        NEW.kind,
        coalesce((SELECT task FROM {schema}.job WHERE id = NEW.job_id), ''),
        coalesce((SELECT queue FROM {schema}.job WHERE id = NEW.job_id), ''),
        CASE WHEN NEW.kind = 'zombie' THEN coalesce(NEW.detail ->> 'detector', '') ELSE '' END,
        CASE WHEN NEW.kind = 'zombie' THEN coalesce(NEW.detail ->> 'decision', '') ELSE '' END,
        1
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER journal_crash AFTER INSERT ON {schema}.journal FOR EACH ROW
WHEN (NEW.kind IN ('zombie', 'stale_report')) EXECUTE FUNCTION {schema}.count_crash();

-- NULL in a line of a settlement: as many as `jobs`, and none where jobs were deleted.
ALTER TABLE {schema}.tally ADD COLUMN ended bigint;
