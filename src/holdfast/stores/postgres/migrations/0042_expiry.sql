-- works with: 32
-- Jobs that are not started after an instant. Older workers start them all the same.

ALTER TABLE {schema}.job ADD COLUMN expires_at float8;  -- wall time

-- A row as one JSON array, in the order of core/records.py: Job. What most jobs do not have is left out of them: there the
-- record has it by default.
CREATE OR REPLACE FUNCTION {schema}.as_json(job {schema}.job) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE AS $$
SELECT CASE
WHEN NOT job.workflow AND job.parent IS NULL AND NOT job.undoable AND job.open_step IS NULL AND job.inbox = 0
    AND job.awaits IS NULL AND NOT job.undo_requested AND NOT job.backoff_full AND job.releases = 0
    AND job.stop_reason IS NULL AND job.rollback_cause IS NULL AND job.grp IS NULL
    AND job.error_kind IS NULL AND job.callbacks IS NULL AND job.fingerprint IS NULL
    AND job.batch IS NULL AND job.key_scope IS NULL AND job.beat_data IS NULL AND job.expires_at IS NULL
THEN json_build_array(
    job.id, job.task, job.queue, job.payload, job.key, job.priority, job.state, job.run_at, job.created_at, job.attempt,
    job.fence, job.claim_id, job.worker, job.lease_until, job.claimed_at, job.started, job.failures, job.crashes,
    job.zombies, job.suspects, job.cancel_requested, job.rolling_back, job.attempts_max, job.backoff_base_s,
    job.backoff_cap_s, job.backoff_jitter, job.crashes_max, job.on_crash, job.lease_s, job.beat_s, job.timeout_s,
    job.stall_s, job.error, job.result, job.progress, job.note, job.ended_at, job.log, job.moved_at
)
ELSE json_build_array(
    job.id, job.task, job.queue, job.payload,
    coalesce(job.key, job.scoped_key), job.priority, job.state, job.run_at, job.created_at, job.attempt,
    job.fence, job.claim_id, job.worker, job.lease_until, job.claimed_at, job.started, job.failures, job.crashes,
    job.zombies, job.suspects, job.cancel_requested, job.rolling_back, job.attempts_max, job.backoff_base_s,
    job.backoff_cap_s, job.backoff_jitter, job.crashes_max, job.on_crash, job.lease_s, job.beat_s, job.timeout_s,
    job.stall_s, job.error, job.result, job.progress, job.note, job.ended_at, job.log, job.moved_at,
    job.workflow, job.parent, job.undoable, job.open_step, job.inbox, job.wake_at, job.awaits, job.question,
    job.undo_requested, job.in_steps, job.backoff_full, job.releases,
    CASE WHEN job.rolling_back OR job.state = 'rolled_back' OR job.stop_fence IS NULL OR job.stop_fence = job.fence
    THEN job.stop_reason END, job.rollback_cause, job.grp, job.error_kind, job.callbacks,
    job.fingerprint, job.release, job.erred_at, job.batch, job.key_scope, job.beat_data,
    job.expires_at
)
END
$$;

CREATE OR REPLACE VIEW {schema}.jobs AS
SELECT id, task, queue, coalesce(key, scoped_key) AS key, state, priority, attempt, failures, crashes, zombies, fence, worker,
    to_timestamp(run_at) AS run_at, to_timestamp(created_at) AS created_at, to_timestamp(claimed_at) AS claimed_at,
    to_timestamp(lease_until) AS lease_until, to_timestamp(moved_at) AS moved_at, to_timestamp(wake_at) AS wake_at,
    to_timestamp(ended_at) AS ended_at, progress, note, error,
    CASE WHEN rolling_back OR state = 'rolled_back' OR stop_fence IS NULL OR stop_fence = fence THEN stop_reason END
    AS stop_reason, rollback_cause, grp AS "group",
    fingerprint, release, to_timestamp(erred_at) AS erred_at, batch, key_scope,
    to_timestamp(expires_at) AS expires_at
FROM {schema}.job;

-- A claim from one queue with limits, a rate or groups, in one call: the server carries it out to the end, so a client
-- that is frozen meanwhile holds no lock. Each statement of it has its own snapshot. So what it counts, it counts after
-- every claim that had the lock of the queue's row before it.
-- It answers with ids; the rows are read after the commit, because a client that is slow to take a large answer would
-- keep the transaction open. core/limits.py says what the turns, the rate and the cursor are.
-- state: 'gone' the worker is not enrolled; 'given' this claim was answered before; 'locked' another claim has the queue;
-- 'refused' the worker's row is locked, or limits were set meanwhile: ask again after `claim_locked`; 'paused'; 'taken'.
CREATE OR REPLACE FUNCTION {schema}.claim_by_turns(
    the_worker text, the_claim text, the_queue text, the_tasks text[], wanted bigint, as_started boolean, is_first boolean,
    the_try bigint, is_row_locked boolean, the_wall float8, the_lease float8, cursors json, begin_at text, probes bigint,
    spare bigint
)
RETURNS json LANGUAGE plpgsql
SET lock_timeout = '100ms'
-- It may be planned while the tables are empty, and has an index for all that it reads.
SET enable_seqscan = off
SET enable_bitmapscan = off
SET enable_sort = off
SET enable_incremental_sort = off
AS $$
#variable_conflict use_column
DECLARE
    seen     bigint;
    held     record;
    limited  boolean;
    counts   boolean;
    free     bigint;
    number   bigint;
    booked   float8;
    mark     float8;
    lane     bigint;
    the_turn text;
    enough   bigint;
    ids      json;
    taken    bigint;
    last     text;
    walked   bigint;
    opened   bigint;
    ended_at text;
    whole    boolean := true;
    all_ids  json[] := '{{}}';
    total    bigint := 0;
    turns    jsonb := '{{}}';
    wall     float8;
    lease    float8;
BEGIN
    -- Before the queue's row is read: if limits are set in between, this number is no longer the worker's.
    SELECT worker.limits_seen INTO seen FROM {schema}.worker AS worker
    WHERE worker.id = the_worker AND worker.gone_at IS NULL;
    IF NOT FOUND THEN
        RETURN json_build_object('state', 'gone');
    END IF;
    IF is_first AND EXISTS (
        SELECT FROM {schema}.job AS job
        WHERE job.state = 'running' AND job.worker = the_worker AND job.claim_id = the_claim
    ) THEN
        RETURN json_build_object('state', 'given');
    END IF;
    SELECT * INTO held FROM {schema}.queue AS queue WHERE queue.name = the_queue;
    IF NOT FOUND THEN
        RETURN json_build_object('state', 'paused');
    END IF;
    IF held.running_max IS NOT NULL OR held.group_running_max IS NOT NULL OR held.rate_step_s IS NOT NULL THEN
        BEGIN
            SELECT * INTO held FROM {schema}.queue AS queue WHERE queue.name = the_queue FOR NO KEY UPDATE;
        EXCEPTION WHEN lock_not_available THEN
            RETURN json_build_object('state', 'locked');
        END;
    END IF;
    counts := held.running_max IS NOT NULL OR held.group_running_max IS NOT NULL;
    limited := counts OR held.rate_step_s IS NOT NULL;
    wall := coalesce(the_wall, extract(epoch FROM clock_timestamp())::float8);
    lease := coalesce(the_lease, extract(epoch FROM clock_timestamp())::float8);
    IF held.paused AND (held.paused_until IS NULL OR held.paused_until > wall) OR limited AND NOT as_started THEN
        RETURN json_build_object('state', 'paused');
    END IF;

    free := wanted;
    IF held.running_max IS NOT NULL THEN
        SELECT count(*) INTO number FROM (
            SELECT FROM {schema}.job AS job WHERE job.state = 'running' AND job.counted AND job.queue = the_queue
            LIMIT held.running_max
        ) AS places;
        free := least(free, held.running_max - number);
    END IF;
    IF held.rate_step_s IS NOT NULL THEN
        booked := least(greatest(held.booked_until, wall), wall + held.burst * held.rate_step_s);
        number := held.burst + floor((wall - booked) / held.rate_step_s);
        WHILE number < held.burst AND booked + (number + 1 - held.burst) * held.rate_step_s <= wall LOOP
            number := number + 1;
        END LOOP;
        WHILE number > 0 AND booked + (number - held.burst) * held.rate_step_s > wall LOOP
            number := number - 1;
        END LOOP;
        free := least(free, number);
    END IF;

    IF free > 0 THEN
        -- The worker as it is now, and stays until this ends. Nobody finds out by waiting whether a stranger has locked
        -- the row: with is_row_locked the lock of `claim_locked` keeps the worker as it is.
        IF is_row_locked THEN
            PERFORM FROM {schema}.worker AS worker
            WHERE worker.id = the_worker AND worker.gone_at IS NULL AND worker.claim_try <= the_try
                AND worker.limits_seen = seen;
        ELSE
            PERFORM FROM {schema}.worker AS worker
            WHERE worker.id = the_worker AND worker.gone_at IS NULL AND worker.claim_try <= the_try
                AND worker.limits_seen = seen
            FOR SHARE SKIP LOCKED;
        END IF;
        IF NOT FOUND THEN
            RETURN json_build_object('state', 'refused');
        END IF;
        SELECT max(each.priority) INTO lane FROM (
            (SELECT job.priority FROM {schema}.job AS job
            WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = the_queue
            ORDER BY job.priority DESC LIMIT 1)
            UNION ALL
            (SELECT job.priority FROM {schema}.job AS job
            WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = the_queue
            ORDER BY job.priority DESC LIMIT 1)
        ) AS each;
    END IF;
    WHILE free > 0 AND lane IS NOT NULL LOOP
        enough := free + spare;
        IF limited THEN
            SELECT turn.grp INTO the_turn FROM {schema}.turn AS turn
            WHERE turn.queue = the_queue AND turn.priority = lane;
            the_turn := coalesce(the_turn, '');
        ELSE
            the_turn := coalesce(cursors ->> lane::text, begin_at);
        END IF;
        WITH RECURSIVE step (number, grp, places, found) AS (
            SELECT 0::bigint, the_turn COLLATE "C", 0::bigint, 0::bigint
            UNION ALL
            SELECT step.number + 1, following.grp, room.places, step.found + (step.places > 0)::integer
            FROM step
            CROSS JOIN LATERAL (
                SELECT CASE WHEN step.number = 0 OR step.grp > the_turn COLLATE "C" THEN coalesce((
                    SELECT job.grp FROM {schema}.job AS job
                    WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = the_queue AND job.priority = lane
                        AND job.grp > step.grp
                    ORDER BY job.grp LIMIT 1
                ), '')
                ELSE (
                    SELECT job.grp FROM {schema}.job AS job
                    WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = the_queue AND job.priority = lane
                        AND job.grp > step.grp AND job.grp <= the_turn
                    ORDER BY job.grp LIMIT 1
                )
                END AS grp
                OFFSET 0
            ) AS following
            CROSS JOIN LATERAL (
                SELECT CASE
                WHEN following.grp = '' THEN CASE WHEN (
                    SELECT job.run_at FROM {schema}.job AS job
                    WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = the_queue AND job.priority = lane
                    ORDER BY job.run_at LIMIT 1
                ) <= wall THEN free ELSE 0 END
                WHEN (
                    SELECT job.run_at FROM {schema}.job AS job
                    WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = the_queue AND job.priority = lane
                        AND job.grp = following.grp
                    ORDER BY job.run_at, job.seq LIMIT 1  -- `seq` keeps the planner from the index by instant
                ) > wall THEN 0
                WHEN EXISTS (
                    SELECT FROM {schema}.paused_group AS each
                    WHERE each.queue = the_queue AND each.grp = following.grp
                        AND (each.paused_until IS NULL OR each.paused_until > wall)
                ) THEN 0
                WHEN held.group_running_max IS NULL THEN free
                ELSE held.group_running_max - (
                    SELECT count(*) FROM (
                        SELECT FROM {schema}.job AS job
                        WHERE job.state = 'running' AND job.counted AND job.queue = the_queue AND job.grp = following.grp
                        LIMIT held.group_running_max
                    ) AS places
                )
                END AS places
                OFFSET 0
            ) AS room
            WHERE following.grp IS NOT NULL
                AND step.number < probes AND step.found + (step.places > 0)::integer < enough
        ),
        groups AS MATERIALIZED (
            SELECT step.number, step.grp, step.places, greatest(1, 2 * free / count(*) OVER ()) AS most
            FROM step WHERE step.number > 0 AND step.places > 0
        ),
        -- The inner LIMIT is a number that the planner knows of, the outer one stops the locking.
        lot AS MATERIALIZED (
            SELECT groups.number, groups.grp, mine.spot, mine.run_at, mine.seq
            FROM groups
            CROSS JOIN LATERAL (
                SELECT one.* FROM (
                    SELECT job.ctid AS spot, job.run_at, job.seq FROM {schema}.job AS job
                    WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = the_queue AND job.priority = lane
                        AND job.grp = groups.grp
                        AND job.run_at <= wall
                        AND job.task = ANY (the_tasks)
                        AND (as_started OR job.on_crash = 'retry')
                        AND (job.expires_at IS NULL OR job.expires_at > wall OR job.fence > 0)
                    ORDER BY job.run_at, job.seq
                    LIMIT free
                    FOR NO KEY UPDATE SKIP LOCKED
                ) AS one
                LIMIT least(groups.places, groups.most)
            ) AS mine
            WHERE groups.grp <> ''
        ),
        others AS MATERIALIZED (
            SELECT groups.number, groups.grp, mine.spot, mine.run_at, mine.seq
            FROM groups
            CROSS JOIN LATERAL (
                SELECT one.* FROM (
                    SELECT job.ctid AS spot, job.run_at, job.seq FROM {schema}.job AS job
                    WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = the_queue AND job.priority = lane
                        AND job.run_at <= wall
                        AND job.task = ANY (the_tasks)
                        AND (as_started OR job.on_crash = 'retry')
                        AND (job.expires_at IS NULL OR job.expires_at > wall OR job.fence > 0)
                    ORDER BY job.run_at, job.seq
                    LIMIT free
                    FOR NO KEY UPDATE SKIP LOCKED
                ) AS one
                LIMIT groups.most
            ) AS mine
            WHERE groups.grp = ''
        ),
        chosen AS MATERIALIZED (
            SELECT ranked.spot, ranked.grp, row_number() OVER (ORDER BY ranked.round, ranked.number) AS place
            FROM (
                SELECT each.*, row_number() OVER (PARTITION BY each.number ORDER BY each.run_at, each.seq) AS round
                FROM (SELECT * FROM lot UNION ALL SELECT * FROM others) AS each
            ) AS ranked
            ORDER BY ranked.round, ranked.number
            LIMIT free
        ),
        claimed AS (
            UPDATE {schema}.job AS job SET
                state = 'running',
                worker = the_worker,
                claim_id = the_claim,
                fence = job.fence + 1,
                attempt = job.attempt + 1,
                lease_until = lease + job.lease_s,
                claimed_at = wall,
                started = as_started,
                progress = NULL,
                note = NULL,
                moved_at = NULL,
                in_steps = NULL,
                counted = counts
            FROM chosen
            WHERE job.ctid = chosen.spot
            RETURNING job.id, chosen.place, chosen.grp
        )
        SELECT
            coalesce((SELECT json_agg(claimed.id ORDER BY claimed.place) FROM claimed), '[]'),
            (SELECT count(*) FROM claimed),
            (SELECT claimed.grp FROM claimed ORDER BY claimed.place DESC LIMIT 1),
            (SELECT count(*) FROM step WHERE step.number > 0),
            (SELECT count(*) FROM groups),
            (SELECT step.grp FROM step ORDER BY step.number DESC LIMIT 1)
        INTO ids, taken, last, walked, opened, ended_at;

        -- core/limits.py: saw_all, next_cursor
        IF taken = free OR (taken > 0 AND opened < enough AND walked < probes) THEN
            ended_at := last;
        ELSIF opened < enough AND walked < probes THEN
            ended_at := the_turn;
        END IF;
        whole := whole AND opened < enough AND walked < probes;
        IF limited AND ended_at <> the_turn THEN
            -- Claims of the queue follow each other, so only a stranger can have locked this row. The jobs are started
            -- all the same, and the next claim begins with the same groups.
            BEGIN
                INSERT INTO {schema}.turn AS turn (queue, priority, grp) VALUES (the_queue, lane, ended_at)
                ON CONFLICT (queue, priority) DO UPDATE SET grp = excluded.grp;
            EXCEPTION WHEN lock_not_available THEN
                NULL;
            END;
        END IF;
        turns := turns || jsonb_build_object(lane::text, ended_at);
        all_ids := array_append(all_ids, ids);
        total := total + taken;
        free := free - taken;
        SELECT max(each.priority) INTO lane FROM (
            (SELECT job.priority FROM {schema}.job AS job
            WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = the_queue AND job.priority < lane
            ORDER BY job.priority DESC LIMIT 1)
            UNION ALL
            (SELECT job.priority FROM {schema}.job AS job
            WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = the_queue AND job.priority < lane
            ORDER BY job.priority DESC LIMIT 1)
        ) AS each;
    END LOOP;

    IF held.rate_step_s IS NOT NULL THEN
        mark := booked + total * held.rate_step_s;
        IF total > 0 OR mark < held.booked_until THEN
            UPDATE {schema}.queue AS queue SET booked_until = mark WHERE queue.name = the_queue;
        END IF;
    END IF;
    RETURN json_build_object(
        'state', 'taken', 'ids', to_json(all_ids), 'whole', whole, 'by_turns', held.by_turns, 'turns', CASE WHEN limited THEN '{{}}' ELSE turns END
    );
END
$$;

-- piece
-- Jobs without an expiry have no entry, nor has one that was claimed.
CREATE INDEX job_expires ON {schema}.job (expires_at) WHERE state = 'ready' AND fence = 0 AND expires_at IS NOT NULL;
