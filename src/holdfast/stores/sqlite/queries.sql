-- The statements of the SQLite store, named like the protocol's verbs and in their order.
--
-- Three habits look odd and have one reason: the driver lets other threads run before and after every row that it
-- steps to, and under load each of these costs milliseconds. So batches come in as one JSON parameter (json_each),
-- rows go out as one JSON value (json_group_array), and the hot verbs are a handful of single steps.
--
-- :wall is wall time; :lease is the lease clock; both come from the store's clock.

-- fragment: new_job
-- The columns of a job that is stored.
id, task, queue, payload, key, priority, run_at, created_at,
    attempts_max, backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash,
    lease_s, beat_s, timeout_s, stall_s, backoff_full, workflow, parent, grp, callbacks, expires_at, tags, meta

-- fragment: claimed
-- One statement sets the lease, raises the fence and counts the attempt.
state = 'running',
    worker = :worker,
    claim_id = :claim_id,
    fence = fence + 1,
    attempt = attempt + 1,
    lease_until = :lease + lease_s,
    claimed_at = :wall,
    started = :started,
    progress = NULL,
    note = NULL,
    moved_at = NULL,
    in_steps = NULL

-- fragment: queue_rows
-- What is set for queues, in the order of core/limits.py: Queue.
SELECT '[' || coalesce(group_concat(json_array(
        name, paused, paused_until, (
            SELECT json_group_object(grp, each.paused_until) FROM holdfast_paused_group AS each
            WHERE each.queue = holdfast_queue.name
        ), declared, chosen, booked_until, grouped
    )), '') || ']'
    FROM holdfast_queue

-- fragment: order
-- In the order of core/records.py: Order.
json_array(given.name, given.act, given.actor, given.note, given.at)

-- fragment: found
SELECT '[' || coalesce(group_concat(row), '') || ']' FROM (
    SELECT row FROM holdfast_row

-- fragment: page
AND (:before IS NULL OR seq < (SELECT seq FROM holdfast_job WHERE id = :before))
    ORDER BY seq DESC
    LIMIT :limit
);

-- fragment: page_of_few
-- The plus keeps SQLite from walking over all jobs by seq to find a few of them in that order.
AND (:before IS NULL OR seq < (SELECT seq FROM holdfast_job WHERE id = :before))
    ORDER BY +seq DESC
    LIMIT :limit
);

-- fragment: in_time
-- A job that was never claimed is not started after its expiry. A person who has acted on it wants it.
(expires_at IS NULL OR expires_at > :wall OR fence > 0)

-- fragment: ready
AND (:later IS NULL OR state <> 'ready' OR run_at > :later)
        AND (:tried IS NULL OR state <> 'ready' OR (failures + crashes > 0) = :tried)

-- fragment: lanes
-- Queues and priorities of ready jobs, found by leaping, as in `claim_lanes`.
WITH RECURSIVE plain (queue) AS (
    SELECT min(queue) FROM holdfast_job WHERE state = 'ready' AND grp IS NULL
    UNION ALL
    SELECT (
        SELECT min(job.queue) FROM holdfast_job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue > plain.queue
    )
    FROM plain WHERE plain.queue IS NOT NULL
),
lane (queue, priority) AS (
    SELECT queue, (
        SELECT max(job.priority) FROM holdfast_job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = plain.queue
    )
    FROM plain WHERE queue IS NOT NULL
    UNION ALL
    SELECT lane.queue, (
        SELECT max(job.priority) FROM holdfast_job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = lane.queue AND job.priority < lane.priority
    )
    FROM lane WHERE lane.priority IS NOT NULL
),
grouped (queue) AS (
    SELECT min(queue) FROM holdfast_job WHERE state = 'ready' AND grp IS NOT NULL
    UNION ALL
    SELECT (
        SELECT min(job.queue) FROM holdfast_job AS job
        WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue > grouped.queue
    )
    FROM grouped WHERE grouped.queue IS NOT NULL
)

-- fragment: later
SELECT one.seq FROM lane
        CROSS JOIN holdfast_job AS one
        WHERE lane.priority IS NOT NULL AND one.state = 'ready' AND one.grp IS NULL AND one.queue = lane.queue
            AND one.priority = lane.priority AND one.run_at > :later
        UNION ALL
        SELECT one.seq FROM grouped
        CROSS JOIN holdfast_job AS one
        WHERE grouped.queue IS NOT NULL AND one.state = 'ready' AND one.grp IS NOT NULL AND one.queue = grouped.queue
            AND one.run_at > :later

-- fragment: filters
AND (:queue IS NULL OR queue = :queue)
        AND (:task IS NULL OR task = :task)
        AND (:key IS NULL OR key = :key OR scoped_key = :key)
        AND (:group IS NULL OR grp = :group)
        AND (:cancel_requested IS NULL OR cancel_requested = :cancel_requested)
        AND (:fingerprint IS NULL OR fingerprint = :fingerprint)
        AND (:release IS NULL OR release = :release)
        AND (:tags IS NULL OR NOT EXISTS (
            SELECT 1 FROM json_each(:tags) AS wanted
            WHERE wanted.value NOT IN (SELECT has.value FROM json_each(iif(json_valid(tags), tags, '[]')) AS has)
        ))
        AND (:meta IS NULL OR NOT EXISTS (
            SELECT 1 FROM json_each(:meta) AS wanted WHERE NOT EXISTS (
                SELECT 1 FROM json_each(iif(json_valid(meta), meta, '{}')) AS has
                WHERE has.key = wanted.key AND has.value = wanted.value
            )
        ))
        AND (:since IS NULL OR iif(:of_errors, erred_at, coalesce(ended_at, erred_at, created_at)) >= :since)
        AND (:until IS NULL OR iif(:of_errors, erred_at, coalesce(ended_at, erred_at, created_at)) < :until)

-- fragment: schedule_given
value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6

-- fragment: schedule_set
spec = excluded.spec,
    tz = excluded.tz,
    missed = excluded.missed,
    job = excluded.job,
    missed_max = excluded.missed_max,
    jitter_s = excluded.jitter_s,
    declared_at = excluded.declared_at

-- fragment: batch_row
-- In the order of core/batches.py: Batch. `added_at` with all its digits: it is compared with the row again.
json_array(
        id, then_job, abandon_s, created_at, json(printf('%!.17g', added_at)), closed_at, ended_at, complete, counts, EXISTS (
            SELECT 1 FROM holdfast_job AS job
            WHERE job.batch = found.id AND job.state IN ('running', 'ready', 'waiting', 'held')
        )
    )

-- fragment: wanted_events
(:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
        AND (:since IS NULL OR at >= :since)
        AND (:before IS NULL OR seq < :before)

-- fragment: kinds
AND (:workflow IS NULL OR workflow = :workflow)
        AND (:asking IS NULL OR (question IS NOT NULL) = :asking)

-- fragment: event
json_array(
        seq, job_id, at, kind, fence, worker, actor,
        iif(json_valid(detail), json(detail), json_object('unreadable', detail))
    )

-- name: add
INSERT INTO holdfast_job (
    {new_job}, batch
)
SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
    coalesce(value ->> 6, :wall + (value ->> 7)), :wall,
    value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13,
    value ->> 14, value ->> 15, value ->> 16, value ->> 17, value ->> 18, value ->> 19, value ->> 20, value ->> 21,
    value ->> 22, :wall + (value ->> 23), value ->> 24, value ->> 25, :batch
FROM json_each(:jobs)
WHERE true
ON CONFLICT DO NOTHING;

-- name: add_one
-- The same for one job, whose values come one by one: a third of the cost. The wall time comes before and after the delay.
INSERT INTO holdfast_job (
    {new_job}
)
VALUES (
    ?, ?, ?, ?, ?, ?, coalesce(?, ? + ?), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
)
ON CONFLICT DO NOTHING;

-- name: add_alike
-- The same for many jobs that differ in their id, payload and key only: a third of the cost.
INSERT INTO holdfast_job (
    {new_job}
)
SELECT
    value ->> 0, ?, ?, value ->> 1, value ->> 2, ?, coalesce(?, ? + ?), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?
FROM json_each(?)
WHERE true
ON CONFLICT DO NOTHING;

-- name: add_awaiting
-- Jobs of this very transaction that run after others.
UPDATE holdfast_job AS job SET state = 'waiting', awaits = new.value ->> 1
FROM json_each(:jobs) AS new
WHERE job.id = new.value ->> 0;

-- name: add_answers
-- For each wanted job: the id that is stored, and whether it was there before :last.
SELECT json_group_array(json_array(coalesce(own.id, holder.id), coalesce(own.seq, holder.seq) <= :last))
FROM json_each(:jobs) AS wanted
LEFT JOIN holdfast_job AS own ON own.id = wanted.value ->> 0
LEFT JOIN holdfast_job AS holder
    ON own.id IS NULL
    AND holder.key = wanted.value ->> 4
    AND holder.state IN ('ready', 'running', 'waiting', 'held');

-- name: claim_worker
SELECT 1 FROM holdfast_worker WHERE id = :worker AND gone_at IS NULL;

-- name: add_grouped
INSERT INTO holdfast_queue (name, grouped)
SELECT value, 1 FROM json_each(:queues)
WHERE true
ON CONFLICT (name) DO UPDATE SET grouped = 1 WHERE grouped = 0;

-- name: claim_lanes
-- The (queue, priority) pairs that have ready jobs, found by leaping from one to the next in the index, so that a
-- million scheduled jobs of one priority are not read to get at the next; and what is set for these queues.
WITH RECURSIVE lane (queue, priority) AS (
    SELECT wanted.value, (
        SELECT max(job.priority) FROM holdfast_job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = wanted.value
    )
    FROM json_each(:queues) AS wanted
    UNION ALL
    SELECT lane.queue, (
        SELECT max(job.priority) FROM holdfast_job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = lane.queue AND job.priority < lane.priority
    )
    FROM lane WHERE lane.priority IS NOT NULL
)
SELECT json_group_array(json_array(queue, priority)), (
    {queue_rows} WHERE name IN (SELECT value FROM json_each(:queues))
)
FROM lane WHERE priority IS NOT NULL;

-- name: claim
-- Jobs are claimed ahead of a free slot only with on_crash = 'retry', the only policy that a claim looks at: if the
-- worker dies, nobody knows whether the handler of such a job had begun, and only a job that may run again needs no answer.
UPDATE holdfast_job SET
    {claimed}
WHERE seq IN (
    SELECT seq FROM holdfast_job
    WHERE state = 'ready' AND grp IS NULL AND queue = :queue AND priority = :priority AND run_at <= :wall
        AND task IN (SELECT value FROM json_each(:tasks))
        AND (:started = 1 OR on_crash = 'retry')
        AND {in_time}
    ORDER BY run_at, seq
    LIMIT :limit
);

-- name: claim_first
-- The jobs that `claim` would take, for when one of them cannot be changed.
SELECT json_group_array(seq) FROM (
    SELECT seq FROM holdfast_job
    WHERE state = 'ready' AND grp IS NULL AND queue = :queue AND priority = :priority AND run_at <= :wall
        AND task IN (SELECT value FROM json_each(:tasks))
        AND (:started = 1 OR on_crash = 'retry')
        AND {in_time}
    ORDER BY run_at, seq
    LIMIT :limit
);

-- name: claim_refused
-- A job that could not be claimed.
SELECT '[' || coalesce(group_concat(row), '') || ']' FROM holdfast_row WHERE seq = :seq;

-- name: claim_places
-- How many places of a queue are taken: counted from the rows that run, never kept as a number. Not more are counted than
-- the limit has.
SELECT count(*) FROM (
    SELECT 1 FROM holdfast_job WHERE state = 'running' AND counted = 1 AND queue = :queue LIMIT :most
);

-- name: claim_priorities
-- The priorities that have ready jobs, with a group or without, found by leaping from one to the next.
WITH RECURSIVE lane (priority) AS (
    SELECT max(priority) FROM (
        SELECT max(priority) AS priority FROM holdfast_job
        WHERE state = 'ready' AND grp IS NULL AND queue = :queue
        UNION ALL
        SELECT max(priority) FROM holdfast_job
        WHERE state = 'ready' AND grp IS NOT NULL AND queue = :queue
    )
    UNION ALL
    SELECT (
        SELECT max(priority) FROM (
            SELECT max(priority) AS priority FROM holdfast_job
            WHERE state = 'ready' AND grp IS NULL AND queue = :queue AND priority < lane.priority
            UNION ALL
            SELECT max(priority) FROM holdfast_job
            WHERE state = 'ready' AND grp IS NOT NULL AND queue = :queue AND priority < lane.priority
        )
    )
    FROM lane WHERE lane.priority IS NOT NULL
)
SELECT json_group_array(json_array(priority, (
    SELECT grp FROM holdfast_turn WHERE queue = :queue AND holdfast_turn.priority = lane.priority
))) FROM lane WHERE priority IS NOT NULL;

-- name: claim_walk
-- The groups of one priority in the order of their turns: those behind :cursor, then the jobs without a group (''), then
-- the other groups. Each is found by one leap in the index, however many jobs stand before it. Two steps for each group:
-- to its name, and to the number of its jobs that may start. Step 0 is where the walk begins. It ends with the groups,
-- when :enough of them are open, or after :probes.
WITH RECURSIVE step (number, is_named, grp, places, found) AS (
    VALUES (0, 0, :cursor, 0, 0)
    UNION ALL
    SELECT
        number + (is_named = 0),
        is_named = 0,
        CASE
        WHEN is_named THEN grp
        WHEN number = 0 OR grp > :cursor THEN coalesce((
            SELECT min(job.grp) FROM holdfast_job AS job
            WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = :queue AND job.priority = :priority
                AND job.grp > step.grp
        ), '')
        ELSE (
            SELECT min(job.grp) FROM holdfast_job AS job
            WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = :queue AND job.priority = :priority
                AND job.grp > step.grp AND job.grp <= :cursor
        )
        END,
        CASE
        WHEN NOT is_named THEN NULL
        WHEN grp = '' THEN iif((
            SELECT min(job.run_at) FROM holdfast_job AS job
            WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = :queue AND job.priority = :priority
        ) <= :wall, :all, 0)
        WHEN (
            SELECT min(job.run_at) FROM holdfast_job AS job
            WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = :queue AND job.priority = :priority
                AND job.grp = step.grp
        ) > :wall THEN 0
        WHEN EXISTS (
            SELECT 1 FROM holdfast_paused_group AS each
            WHERE each.queue = :queue AND each.grp = step.grp
                AND (each.paused_until IS NULL OR each.paused_until > :wall)
        ) THEN 0
        WHEN :group_limit IS NULL THEN :all
        ELSE :group_limit - (
            SELECT count(*) FROM (
                SELECT 1 FROM holdfast_job AS job
                WHERE job.state = 'running' AND job.counted = 1 AND job.queue = :queue AND job.grp = step.grp
                LIMIT :group_limit
            )
        )
        END,
        found + (coalesce(places, 0) > 0)
    FROM step
    WHERE grp IS NOT NULL
        AND (is_named OR (number < :probes AND found + (places > 0) < :enough))
)
SELECT json_group_array(json_array(grp, places)) FROM (
    SELECT grp, places FROM step WHERE NOT is_named AND number > 0 ORDER BY number
);

-- name: claim_candidates
-- The first due jobs of each of these groups, :most of each.
SELECT json_group_array(json_array(grp, seq)) FROM (
    SELECT open.value AS grp, job.seq, job.run_at
    FROM json_each(:groups) AS open
    CROSS JOIN holdfast_job AS job
    WHERE open.value <> '' AND job.seq IN (
        SELECT one.seq FROM holdfast_job AS one
        WHERE one.state = 'ready' AND one.grp IS NOT NULL AND one.queue = :queue AND one.priority = :priority
            AND one.grp = open.value AND one.run_at <= :wall
            AND one.task IN (SELECT value FROM json_each(:tasks))
            AND (:started = 1 OR one.on_crash = 'retry')
            AND {in_time}
        ORDER BY one.run_at, one.seq
        LIMIT :most
    )
    UNION ALL
    SELECT '', seq, run_at FROM (
        SELECT one.seq, one.run_at FROM holdfast_job AS one
        WHERE one.state = 'ready' AND one.grp IS NULL AND one.queue = :queue AND one.priority = :priority
            AND one.run_at <= :wall
            AND one.task IN (SELECT value FROM json_each(:tasks))
            AND (:started = 1 OR one.on_crash = 'retry')
            AND {in_time}
            AND EXISTS (SELECT 1 FROM json_each(:groups) WHERE value = '')
        ORDER BY one.run_at, one.seq
        LIMIT :most
    )
    ORDER BY run_at, seq
);

-- name: claim_these
UPDATE holdfast_job SET
    {claimed},
    counted = :counted
WHERE seq IN (SELECT value FROM json_each(:seqs)) AND state = 'ready';

-- name: claim_turn
INSERT INTO holdfast_turn (queue, priority, grp) VALUES (:queue, :priority, :cursor)
ON CONFLICT (queue, priority) DO UPDATE SET grp = excluded.grp;

-- name: claim_booked
UPDATE holdfast_queue SET booked_until = :booked_until WHERE name = :queue;

-- name: claim_answers
{found}
    WHERE state = 'running' AND worker = :worker AND claim_id = :claim_id
    ORDER BY started DESC, queue, priority DESC, run_at, seq
);

-- name: beat_worker
-- Not `supervisor IS NOT NULL`: inside RETURNING SQLite 3.40 takes that for true.
UPDATE holdfast_worker
SET beats = beats + 1, beat_at = :wall, rss_mb = coalesce(:rss_mb, rss_mb), stopping = :stopping
WHERE id = :worker AND gone_at IS NULL
RETURNING (
    SELECT {order} FROM holdfast_order AS given
    WHERE given.name = holdfast_worker.name
        OR (
            coalesce(holdfast_worker.supervisor, '') <> ''
            AND given.name || '/' = rtrim(holdfast_worker.name, '0123456789')
        )
    ORDER BY given.act = 'stop' DESC, given.name
    LIMIT 1
);

-- name: beat_recent
INSERT INTO holdfast_recent (worker, recent) VALUES (:worker, :recent)
ON CONFLICT (worker) DO UPDATE SET recent = excluded.recent;

-- name: beat
-- A lease never gets shorter, and nothing but the current attempt may extend it.
UPDATE holdfast_job AS job SET
    lease_until = max(job.lease_until, :lease + job.lease_s),
    started = max(job.started, pulse.started),
    progress = coalesce(pulse.progress, job.progress),
    note = coalesce(pulse.note, job.note),
    log = coalesce(pulse.log, job.log),
    moved_at = coalesce(:wall - pulse.still_s, job.moved_at),
    in_steps = coalesce(pulse.in_steps, job.in_steps),
    beat_data = coalesce(pulse.beat_data, job.beat_data)
FROM (
    SELECT value ->> 0 AS id, value ->> 1 AS fence, value ->> 2 AS claim_id, value ->> 3 AS started,
        value ->> 4 AS progress, value ->> 5 AS note, value ->> 6 AS log, value ->> 7 AS still_s,
        value ->> 8 AS in_steps, value ->> 9 AS beat_data
    FROM json_each(:pulses)
) AS pulse
WHERE job.id = pulse.id
    AND job.fence = pulse.fence
    AND job.claim_id = pulse.claim_id
    AND job.state = 'running';

-- name: beat_lost
-- Whose lease is not the current one. An attempt that settled itself still has its fence on the row: not lost.
SELECT json_group_array(json_array(pulse.value ->> 0, pulse.value ->> 1, job.state, job.fence))
FROM json_each(:pulses) AS pulse
LEFT JOIN holdfast_job AS job ON job.id = pulse.value ->> 0
WHERE job.id IS NULL OR job.fence <> pulse.value ->> 1 OR job.claim_id IS NOT pulse.value ->> 2;

-- name: beat_cancelled
SELECT json_group_array(id) FROM (
    SELECT id FROM holdfast_job
    WHERE state = 'running' AND worker = :worker AND cancel_requested = 1
    ORDER BY seq
);

-- name: settle
-- The only way out of `running`: every conjunct below is a guard, and tests/mutants drops each of them.
-- Leases never get shorter, so one that ends no later than what the reaper saw was not renewed; the millionth of a
-- second covers what JSON rounds off.
-- A job for which something came after it had looked (inbox) is judged again.
UPDATE holdfast_job AS job SET
    state = ending.state,
    wake_at = ending.wake_at,
    awaits = ending.awaits,
    question = ending.question,
    run_at = coalesce(ending.run_at, job.run_at),
    open_step = nullif(coalesce(ending.open_step, job.open_step), ''),
    undo_requested = coalesce(ending.undo_requested, job.undo_requested),
    error = nullif(coalesce(ending.error, job.error), ''),
    error_kind = iif(ending.error IS NULL, job.error_kind, ending.error_kind),
    stop_reason = nullif(coalesce(ending.stop_reason, job.stop_reason), ''),
    stop_fence = iif(ending.stop_reason IS NULL, job.stop_fence, job.fence + ending.raises_fence),
    rollback_cause = coalesce(ending.rollback_cause, job.rollback_cause),
    result = coalesce(ending.result, job.result),
    failures = iif(ending.fresh_budgets, 0, job.failures) + ending.failures,
    crashes = iif(ending.fresh_budgets, 0, job.crashes) + ending.crashes,
    zombies = job.zombies + ending.zombies,
    releases = ending.releases,
    suspects = coalesce(ending.suspects, job.suspects),
    rolling_back = coalesce(ending.rolling_back, job.rolling_back),
    cancel_requested = coalesce(ending.cancel_requested, job.cancel_requested),
    priority = coalesce(ending.priority, job.priority),
    fence = job.fence + ending.raises_fence,
    claim_id = iif(ending.raises_fence, NULL, job.claim_id),
    worker = NULL,
    lease_until = NULL,
    started = 0,
    progress = coalesce(ending.progress, job.progress),
    note = coalesce(ending.note, job.note),
    ended_at = iif(ending.ended, :wall, NULL),
    log = NULL,
    beat_data = NULL,
    release = iif(ending.fingerprint IS NULL, job.release, ending.release),
    erred_at = iif(ending.fingerprint IS NULL, job.erred_at, :wall),
    fingerprint = coalesce(ending.fingerprint, job.fingerprint)
FROM (
    SELECT value ->> 0 AS id, value ->> 1 AS fence, value ->> 2 AS claim_id, value ->> 3 AS seen_lease_until,
        value ->> 4 AS seen_cancel, value ->> 5 AS state, value ->> 6 AS ended, value ->> 7 AS run_at,
        value ->> 8 AS error, value ->> 9 AS result, value ->> 10 AS failures, value ->> 11 AS crashes,
        value ->> 12 AS zombies, value ->> 13 AS suspects, value ->> 14 AS rolling_back,
        value ->> 15 AS cancel_requested, value ->> 16 AS priority, value ->> 17 AS fresh_budgets,
        value ->> 18 AS raises_fence, value ->> 19 AS open_step, value ->> 20 AS undo_requested,
        value ->> 21 AS wake_at, value ->> 22 AS awaits, value ->> 23 AS question, value ->> 24 AS inbox,
        value ->> 25 AS seen_open_step, value ->> 26 AS seen_undoable, value ->> 27 AS progress, value ->> 28 AS note,
        value ->> 29 AS releases, value ->> 30 AS stop_reason, value ->> 31 AS rollback_cause, value ->> 32 AS error_kind,
        value ->> 33 AS fingerprint, value ->> 34 AS release
    FROM json_each(:endings)
) AS ending
WHERE job.id = ending.id
    AND job.fence = ending.fence
    AND job.claim_id = ending.claim_id
    AND job.state = 'running'
    AND (ending.seen_lease_until IS NULL OR job.lease_until <= ending.seen_lease_until + 0.000001)
    AND (ending.state = 'done' OR job.cancel_requested = ending.seen_cancel)
    AND (ending.seen_open_step IS NULL OR coalesce(job.open_step, '') = ending.seen_open_step)
    AND (ending.seen_undoable IS NULL OR job.undoable = ending.seen_undoable)
    AND (ending.inbox IS NULL OR job.inbox = ending.inbox);

-- name: settle_done
-- The same guards for the plain success, which is most of all endings.
UPDATE holdfast_job AS job SET
    state = 'done',
    result = coalesce(ending.result, job.result),
    releases = 0,
    worker = NULL,
    lease_until = NULL,
    started = 0,
    progress = coalesce(ending.progress, job.progress),
    note = coalesce(ending.note, job.note),
    ended_at = :wall,
    log = NULL,
    beat_data = NULL
FROM (
    SELECT value ->> 0 AS id, value ->> 1 AS fence, value ->> 2 AS claim_id, value ->> 3 AS result,
        value ->> 4 AS progress, value ->> 5 AS note
    FROM json_each(:endings)
) AS ending
WHERE job.id = ending.id
    AND job.fence = ending.fence
    AND job.claim_id = ending.claim_id
    AND job.state = 'running';

-- name: settle_seen
-- What stands in the way of a settlement that was not applied.
SELECT fence = :fence AND claim_id IS :claim_id, state, fence, coalesce(lease_until > :seen_lease_until + 0.000001, 0),
    cancel_requested, open_step, undoable, inbox
FROM holdfast_job WHERE id = :id;

-- name: settle_before
-- This very ending of the attempt was accepted, and the job has moved on since: the journal knows the fence.
SELECT 1 FROM holdfast_journal
WHERE job_id = :id AND fence = :fence AND kind = :kind AND detail = :detail;

-- name: settle_tally
INSERT INTO holdfast_tally (queue, state, jobs, ended)
SELECT value ->> 0, value ->> 1, value ->> 2, max(value ->> 2, 0) FROM json_each(:tallies)
WHERE true
ON CONFLICT (queue, state) DO UPDATE SET jobs = jobs + excluded.jobs, ended = ended + excluded.ended;

-- name: settle_errors
INSERT INTO holdfast_error AS error (
    slot, job_id, task, fingerprint, release, kind, origin, message, attempts, first_at, last_at
)
SELECT :slot, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, 1, :wall, :wall
FROM json_each(:errors)
WHERE true
ON CONFLICT (slot, task, fingerprint, release) DO UPDATE SET
    attempts = error.attempts + 1,
    first_at = min(error.first_at, excluded.first_at),
    job_id = CASE
    WHEN excluded.last_at > error.last_at THEN excluded.job_id
    WHEN excluded.last_at < error.last_at THEN error.job_id
    ELSE max(error.job_id, excluded.job_id)
    END,
    last_at = max(error.last_at, excluded.last_at);

-- name: settle_errors_old
DELETE FROM holdfast_error WHERE slot < :oldest;

-- name: settle_delta
INSERT INTO holdfast_delta (minute, lines) VALUES (:minute, :lines);

-- name: settle_journal
-- The second look of a zombie finds its stale_report already there.
INSERT INTO holdfast_journal (job_id, at, kind, fence, worker, actor, detail)
SELECT value ->> 0, :wall, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
FROM json_each(:events)
WHERE true
ON CONFLICT DO NOTHING;

-- name: transaction
SELECT 1 FROM holdfast_job WHERE id = :id AND fence = :fence AND claim_id = :claim_id AND state = 'running';

-- name: record_owned
-- Which of these leases, by their place in the list, are the current ones. Every conjunct is a guard.
SELECT json_group_array(token.key)
FROM json_each(:tokens) AS token
JOIN holdfast_job AS job
    ON job.id = token.value ->> 0
    AND job.fence = token.value ->> 1
    AND job.claim_id = token.value ->> 2
    AND job.state = 'running';

-- name: record
-- A step that is recorded does not change any more, unless it is undone.
INSERT INTO holdfast_step AS step (
    job_id, position, path, kind, name, state, attempt, fence, has_undo, repeatable,
    arguments, result, error, error_kind, started_at, ended_at, aside, undone_at, tries, retry_at
)
SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, value ->> 7,
    value ->> 8, value ->> 9, value ->> 10, value ->> 11, value ->> 12, value ->> 13, value ->> 14, value ->> 15,
    value ->> 16, value ->> 17, value ->> 18, value ->> 19
FROM json_each(:steps)
WHERE true
ON CONFLICT (job_id, aside, position) DO UPDATE SET
    state = excluded.state,
    attempt = excluded.attempt,
    fence = excluded.fence,
    has_undo = iif(step.state = 'started', excluded.has_undo, step.has_undo),
    repeatable = iif(step.state = 'started', excluded.repeatable, step.repeatable),
    arguments = iif(step.state = 'started', excluded.arguments, step.arguments),
    result = iif(step.state = 'started', excluded.result, step.result),
    error = iif(step.state = 'started', excluded.error, step.error),
    error_kind = iif(step.state = 'started', excluded.error_kind, step.error_kind),
    started_at = iif(step.state = 'started', excluded.started_at, step.started_at),
    ended_at = excluded.ended_at,
    undone_at = excluded.undone_at,
    tries = iif(step.state = 'started', excluded.tries, step.tries),
    retry_at = iif(step.state = 'started', excluded.retry_at, step.retry_at)
WHERE step.state = 'started' OR (step.state = 'recorded' AND excluded.state = 'undone');

-- name: record_facts
-- What the judge must know of a workflow that is in the middle of something.
UPDATE holdfast_job AS job SET
    open_step = nullif(coalesce(fact.open_step, job.open_step), ''),
    undoable = max(job.undoable, fact.undoable)
FROM (
    SELECT value ->> 0 AS id, value ->> 1 AS open_step, value ->> 2 AS undoable FROM json_each(:facts)
) AS fact
WHERE job.id = fact.id;

-- name: record_taken
-- The plus keeps SQLite from looking at all signals of the workflow to find these by their ids.
UPDATE holdfast_signal SET taken = :position
WHERE +job_id = :id AND id IN (SELECT value FROM json_each(:signals)) AND taken IS NULL;

-- name: record_child
-- The job that has the id of a child, if it is this very child. Every conjunct is a guard.
SELECT 1 FROM holdfast_job WHERE id = :id AND parent IS :parent AND task = :task;

-- name: record_seen
-- What stands on the row of a lease that is not the current one.
SELECT fence = :fence AND claim_id IS :claim_id, state, fence FROM holdfast_job WHERE id = :id;

-- name: steps
SELECT json_group_array(json_array(
    position, path, kind, name, state, attempt, fence, has_undo, repeatable,
    arguments, result, error, error_kind, started_at, ended_at, aside, undone_at, tries, retry_at
)) FROM (
    SELECT * FROM holdfast_step
    WHERE job_id = :id AND aside = 0 AND position > :after
    ORDER BY position
    LIMIT :limit
);

-- name: steps_aside
SELECT json_group_array(json_array(
    position, path, kind, name, state, attempt, fence, has_undo, repeatable,
    arguments, result, error, error_kind, started_at, ended_at, aside, undone_at, tries, retry_at
)) FROM (
    SELECT * FROM holdfast_step
    WHERE job_id = :id AND position > :after
    ORDER BY position, aside
    LIMIT :limit
);

-- name: signal
INSERT INTO holdfast_signal (id, job_id, name, value, actor, sent_at)
VALUES (:signal, :id, :name, :value, :actor, :wall);

-- name: signal_known
SELECT 1 FROM holdfast_signal WHERE id = :signal AND job_id = :id;

-- name: signal_reach
-- Something came for a workflow. It is woken if it awaits that; if it is about to wait, it will see the higher count.
UPDATE holdfast_job SET
    inbox = inbox + 1,
    state = iif(state = 'waiting' AND :what IN (SELECT value FROM json_each(awaits)), 'ready', state),
    run_at = iif(state = 'waiting' AND :what IN (SELECT value FROM json_each(awaits)), :wall, run_at),
    wake_at = iif(state = 'waiting' AND :what IN (SELECT value FROM json_each(awaits)), NULL, wake_at),
    question = iif(state = 'waiting' AND :what IN (SELECT value FROM json_each(awaits)), NULL, question),
    awaits = iif(state = 'waiting' AND :what IN (SELECT value FROM json_each(awaits)), NULL, awaits)
WHERE id = :id
    AND workflow = 1
    AND state IN ('ready', 'running', 'waiting', 'held')
    AND (:seen_fence IS NULL OR fence = :seen_fence AND :what IN (SELECT value FROM json_each(awaits)))
RETURNING fence;

-- name: inbox
SELECT inbox FROM holdfast_job WHERE id = :id;

-- name: inbox_signals
SELECT json_group_array(json_array(id, job_id, name, value, actor, sent_at)) FROM (
    SELECT * FROM holdfast_signal
    WHERE job_id = :id AND taken IS NULL AND (:name IS NULL OR name = :name)
    ORDER BY seq
    LIMIT :limit
);

-- name: wake_due
UPDATE holdfast_job SET state = 'ready', run_at = :wall, wake_at = NULL, awaits = NULL, question = NULL
WHERE seq IN (
    SELECT seq FROM holdfast_job
    WHERE state = 'waiting' AND wake_at IS NOT NULL AND wake_at <= :wall
    ORDER BY wake_at
    LIMIT :limit
);

-- name: wake_due_next
SELECT min(wake_at) FROM holdfast_job WHERE state = 'waiting' AND wake_at IS NOT NULL;

-- name: expired
{found}
    WHERE state = 'ready' AND fence = 0 AND expires_at <= :wall
    ORDER BY expires_at
    LIMIT :limit
);

-- name: dependents
-- Of a job that was never claimed, `awaits` names the jobs that it runs after.
SELECT json_group_array(json_array(id, is_over)) FROM (
    SELECT job.id, NOT EXISTS (
        SELECT 1 FROM json_each(iif(json_valid(job.awaits), job.awaits, '[]')) AS each
        JOIN holdfast_job AS other ON other.id = substr(each.value, 7)
        WHERE each.value GLOB 'after:*' AND other.state IN ('ready', 'running', 'waiting', 'held')
    ) AS is_over
    FROM holdfast_job AS job
    WHERE job.state = 'waiting' AND job.fence = 0 AND job.id > :after
        AND (:on IS NULL OR EXISTS (
            SELECT 1 FROM json_each(iif(json_valid(job.awaits), job.awaits, '[]')) AS each
            WHERE each.value IN (SELECT value FROM json_each(:on))
        ))
    ORDER BY job.id
    LIMIT :limit
);

-- name: due_waits
SELECT json_group_array(json_array(queue, task, jobs, since)) FROM (
    SELECT queue, task, count(*) AS jobs, min(wake_at) AS since FROM (
        SELECT queue, task, wake_at FROM holdfast_job
        WHERE state = 'waiting' AND wake_at <= :wall
        ORDER BY wake_at
        LIMIT 1000
    )
    GROUP BY queue, task
    ORDER BY queue, task
);

-- name: fork_source
-- A row: the one that is copied is as it was seen, or the copy was made before.
SELECT 1 FROM holdfast_job
WHERE id = :source AND fence = :seen_fence AND state IN ('done', 'dead', 'cancelled', 'rolled_back') OR id = :id;

-- name: fork
-- What the copied steps did belongs to the workflow that did it: they have no undo here.
INSERT INTO holdfast_step (
    job_id, position, path, kind, name, state, attempt, fence, has_undo, repeatable,
    arguments, result, error, error_kind, started_at, ended_at, aside, undone_at, tries, retry_at
)
SELECT :id, position, path, kind, name, state, 0, 0, 0, repeatable,
    arguments, result, error, error_kind, started_at, ended_at, 0, NULL, tries, retry_at
FROM holdfast_step
WHERE job_id = :source AND aside = 0 AND position < :before AND state = 'recorded';

-- name: overdue
-- A lease of another boot is on another clock: that worker is judged by `vanished`. A worker without a row cannot be,
-- and counts as one of this boot; so does a remote worker, whose server measured its lease.
{found} AS job
    LEFT JOIN holdfast_worker AS holder ON holder.id = job.worker
    WHERE job.state = 'running'
        AND job.lease_until <= :lease - :grace
        AND coalesce(holder.boot_id, :boot_id) IN (:boot_id, 'remote')
    ORDER BY job.lease_until, job.seq
    LIMIT :limit OFFSET :skip
);

-- name: ghosts
-- The overdue holders of places of these queues. A lease of another boot: as in `overdue`.
{found} AS job
    LEFT JOIN holdfast_worker AS holder ON holder.id = job.worker
    WHERE job.state = 'running'
        AND job.lease_until <= :lease
        AND job.queue IN (SELECT value FROM json_each(:queues))
        AND coalesce(holder.boot_id, :boot_id) IN (:boot_id, 'remote')
    ORDER BY job.lease_until, job.seq
    LIMIT :limit
);

-- name: deadline
-- A running row without a lease is the work of another program; it must not hide the others.
SELECT job.lease_until FROM holdfast_job AS job
LEFT JOIN holdfast_worker AS holder ON holder.id = job.worker
WHERE job.state = 'running' AND job.lease_until IS NOT NULL
    AND coalesce(holder.boot_id, :boot_id) IN (:boot_id, 'remote')
ORDER BY job.lease_until
LIMIT 1;

-- name: vanished
-- Every worker not yet gone, with the inode of its lock file; and the gone ones that still hold leases.
SELECT json_group_array(json_array(
    id, name, host, pid, boot_id, supervisor, queues, slots, beat_s, version, started_at, beat_at, beats,
    running, rss_mb, gone_at, gone_cause, exit_kind, exit_code, exit_excused, stopping, release, NULL, NULL, lock_inode
))
FROM holdfast_workforce
WHERE gone_at IS NULL OR running > 0;

-- name: enroll
INSERT INTO holdfast_worker (
    id, name, host, pid, boot_id, supervisor, queues, slots, beat_s, version, schema, started_at, beat_at, lock_inode,
    release
)
VALUES (
    :id, :name, :host, :pid, :boot_id, :supervisor, :queues, :slots, :beat_s, :version, :schema, :wall, :wall,
    :lock_inode, :release
);

-- name: enroll_tasks
INSERT INTO holdfast_published (worker, tasks) VALUES (:id, :tasks);

-- name: retire
UPDATE holdfast_worker
SET gone_at = :wall, gone_cause = :gone_cause, exit_kind = :exit_kind, exit_code = :exit_code,
    exit_excused = :exit_excused
WHERE id = :worker AND gone_at IS NULL;

-- name: retire_old
-- The rows of workers that are long gone and hold nothing.
DELETE FROM holdfast_worker
WHERE gone_at < :wall - :kept_s
    AND NOT EXISTS (SELECT 1 FROM holdfast_job WHERE state = 'running' AND worker = holdfast_worker.id);

-- name: retire_recent
DELETE FROM holdfast_recent WHERE worker NOT IN (SELECT id FROM holdfast_worker);

-- name: acquire
-- Another boot's clock says nothing here: its holder is gone with it.
INSERT INTO holdfast_duty AS duty (name, holder, term, until, boot_id)
VALUES (:name, :holder, 1, :lease + :ttl, :boot_id)
ON CONFLICT (name) DO UPDATE SET
    term = duty.term + (duty.holder IS NOT excluded.holder),
    holder = excluded.holder,
    until = excluded.until,
    boot_id = excluded.boot_id,
    note = iif(duty.holder IS excluded.holder, coalesce(:note, duty.note), duty.note)
WHERE duty.holder IS NULL
    OR duty.holder = excluded.holder
    OR duty.until <= :lease
    OR duty.boot_id <> excluded.boot_id
RETURNING term, until, note;

-- name: acquire_check
SELECT 1 FROM holdfast_duty WHERE name = :name AND holder = :holder AND term = :term;

-- name: resign
UPDATE holdfast_duty SET holder = NULL, note = coalesce(:note, note)
WHERE name = :name AND holder = :holder AND term = :term;

-- name: duties
SELECT name, coalesce(holder, ''), term, iif(boot_id = :boot_id, until, 0.0), note FROM holdfast_duty ORDER BY name;

-- name: move
-- The operator's door: compare-and-set on the state and the fence that the person saw.
UPDATE holdfast_job AS job SET
    state = act.state,
    run_at = coalesce(act.run_at, job.run_at),
    error = nullif(coalesce(act.error, job.error), ''),
    error_kind = iif(act.error IS NULL, job.error_kind, NULL),
    stop_reason = nullif(coalesce(act.stop_reason, job.stop_reason), ''),
    rollback_cause = coalesce(act.rollback_cause, job.rollback_cause),
    result = coalesce(act.result, job.result),
    failures = iif(act.fresh_budgets, 0, job.failures),
    crashes = iif(act.fresh_budgets, 0, job.crashes),
    releases = 0,
    rolling_back = coalesce(act.rolling_back, job.rolling_back),
    cancel_requested = coalesce(act.cancel_requested, job.cancel_requested),
    undo_requested = coalesce(act.undo_requested, job.undo_requested),
    open_step = nullif(coalesce(act.open_step, job.open_step), ''),
    wake_at = NULL,
    awaits = NULL,
    question = NULL,
    priority = coalesce(act.priority, job.priority),
    queue = coalesce(act.queue, job.queue),
    fence = job.fence + act.raises_fence,
    claim_id = iif(act.raises_fence, NULL, job.claim_id),
    ended_at = iif(act.ended, :wall, NULL)
FROM (
    SELECT value ->> 0 AS id, value ->> 1 AS seen_state, value ->> 2 AS seen_fence, value ->> 3 AS state,
        value ->> 4 AS ended, value ->> 6 AS run_at, value ->> 7 AS error, value ->> 8 AS stop_reason,
        value ->> 9 AS rollback_cause, value ->> 10 AS result, value ->> 11 AS rolling_back,
        value ->> 12 AS cancel_requested, value ->> 13 AS undo_requested, value ->> 14 AS open_step,
        value ->> 15 AS priority, value ->> 16 AS fresh_budgets, value ->> 17 AS raises_fence,
        value ->> 18 AS queue
    FROM json_each(:moves)
    WHERE value ->> 0 NOT IN (SELECT value FROM json_each(:taken))
) AS act
WHERE job.id = act.id AND job.state = act.seen_state AND job.fence = act.seen_fence
RETURNING id, queue, parent;

-- name: move_taken
-- Those that would come alive onto a key that another live job has, or that an earlier one of them gets.
SELECT json_group_array(id) FROM (
    SELECT job.id, job.key, row_number() OVER (PARTITION BY job.key ORDER BY act.key) AS turn
    FROM json_each(:moves) AS act
    CROSS JOIN holdfast_job AS job
    WHERE act.value ->> 5
        AND job.id = act.value ->> 0 AND job.state = act.value ->> 1 AND job.fence = act.value ->> 2
        AND job.key IS NOT NULL
) AS wanted
WHERE turn > 1 OR EXISTS (
    SELECT 1 FROM holdfast_job AS other
    WHERE other.key = wanted.key AND other.state IN ('ready', 'running', 'waiting', 'held')
);

-- name: move_grouped
-- Claims look for groups in the queues that these jobs have come to.
INSERT INTO holdfast_queue (name, grouped)
SELECT DISTINCT queue, 1 FROM holdfast_job
WHERE id IN (SELECT value FROM json_each(:ids)) AND grp IS NOT NULL
ON CONFLICT (name) DO UPDATE SET grouped = 1 WHERE grouped = 0;

-- name: move_aside
UPDATE holdfast_step SET aside = :seen_fence WHERE job_id = :id AND aside = 0 AND position >= :aside_from;

-- name: move_give_back
-- The steps that took these signals are set aside, so the signals wait to be taken again. Answers of people are not given
-- back, also those that came too late to be taken: the question is asked again, because the facts may have changed.
UPDATE holdfast_signal SET taken = iif(instr(name, :answer) = 1, coalesce(taken, :aside_from), NULL)
WHERE job_id = :id AND coalesce(taken, :aside_from) >= :aside_from;

-- name: limit
-- What is set for a queue, pauses included.
INSERT INTO holdfast_queue (name, paused, paused_until, declared, chosen)
VALUES (:queue, :paused, :paused_until, :declared, :chosen)
ON CONFLICT (name) DO UPDATE SET
    paused = excluded.paused,
    paused_until = excluded.paused_until,
    declared = excluded.declared,
    chosen = excluded.chosen;

-- name: limit_counted
-- What runs already counts from now on.
UPDATE holdfast_job SET counted = 1 WHERE state = 'running' AND queue = :queue AND counted = 0;

-- name: limit_resume
DELETE FROM holdfast_paused_group WHERE queue = :queue;

-- name: limit_pause
INSERT INTO holdfast_paused_group (queue, grp, paused_until)
SELECT :queue, key, value FROM json_each(:groups);

-- name: order
-- The same act again keeps the first order.
INSERT INTO holdfast_order (name, act, actor, note, at) VALUES (:name, :act, :actor, :note, :wall)
ON CONFLICT (name) DO UPDATE SET act = excluded.act, actor = excluded.actor, note = excluded.note, at = excluded.at
WHERE act <> excluded.act;

-- name: order_end
DELETE FROM holdfast_order
WHERE name = :name OR (name <> rtrim(name, '0123456789') AND :name || '/' = rtrim(name, '0123456789'));

-- name: purge
SELECT json_group_array(json_array(seq, id, queue, state, batch)) FROM (
    SELECT seq, id, queue, state, batch FROM holdfast_job
    WHERE state = :state AND ended_at < :before
    ORDER BY ended_at
    LIMIT :limit
);

-- name: purge_jobs
-- :jobs comes as bytes, because a row of another program may not be UTF-8.
DELETE FROM holdfast_job WHERE seq IN (SELECT value ->> 0 FROM json_each(CAST(:jobs AS TEXT)));

-- name: purge_journal
DELETE FROM holdfast_journal WHERE job_id IN (SELECT value ->> 1 FROM json_each(CAST(:jobs AS TEXT)));

-- name: purge_steps
DELETE FROM holdfast_step WHERE job_id IN (SELECT value ->> 1 FROM json_each(CAST(:jobs AS TEXT)));

-- name: purge_signals
DELETE FROM holdfast_signal WHERE job_id IN (SELECT value ->> 1 FROM json_each(CAST(:jobs AS TEXT)));

-- name: purge_batches
-- Deleted jobs of batches still count.
INSERT INTO holdfast_batch_removed (batch, state, jobs)
SELECT value ->> 4, value ->> 3, count(*) FROM json_each(CAST(:jobs AS TEXT))
WHERE value ->> 4 IS NOT NULL
GROUP BY 1, 2
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs;

-- name: delete
SELECT json_group_array(json_array(job.seq, job.id, job.queue, job.state, job.batch))
FROM json_each(:seen) AS seen
CROSS JOIN holdfast_job AS job
WHERE job.id = seen.value ->> 0 AND job.state = seen.value ->> 1 AND job.fence = seen.value ->> 2
    AND job.state <> 'running';

-- name: audit
-- Acts of people, by an index of their own: other events are not in it.
SELECT json_group_array({event}) FROM (
    SELECT * FROM (
        SELECT * FROM holdfast_journal
        WHERE actor IS NOT NULL
            AND (:actor IS NULL OR actor = :actor)
            AND (:since IS NULL OR at >= :since)
            AND (:before IS NULL OR seq < :before)
        ORDER BY seq DESC
        LIMIT :limit
    )
    ORDER BY seq
);

-- name: declare
INSERT INTO holdfast_schedule AS there (key, spec, tz, missed, job, missed_max, jitter_s, mark, declared_at)
SELECT {schedule_given}, :wall, :wall FROM json_each(:schedules)
WHERE true
ON CONFLICT (key) DO UPDATE SET
    mark = iif(
        (there.spec, there.tz) = (excluded.spec, excluded.tz),
        there.mark, max(there.mark, min(there.declared_at, excluded.declared_at))
    ),
    {schedule_set}
WHERE there.kept = 0 AND (
    NOT :again
    OR there.declared_at < :wall - iif(
        (there.spec, there.tz, there.missed, there.job, there.missed_max, there.jitter_s)
            = (excluded.spec, excluded.tz, excluded.missed, excluded.job, excluded.missed_max, excluded.jitter_s),
        :renew_s, :abandoned_s
    )
);

-- name: schedule
INSERT INTO holdfast_schedule AS there (key, spec, tz, missed, job, missed_max, jitter_s, mark, declared_at, kept)
SELECT {schedule_given}, :wall, :wall, 1 FROM json_each(:schedules)
WHERE true
ON CONFLICT (key) DO UPDATE SET
    mark = iif(
        there.kept = 1 AND (there.spec, there.tz) = (excluded.spec, excluded.tz), there.mark, max(there.mark, :wall)
    ),
    {schedule_set},
    kept = 1
WHERE there.kept = 1 OR there.declared_at <= :wall - :declared_s
RETURNING key;

-- name: schedules
SELECT json_group_array(json_array(
    key, spec, tz, missed, job, mark, fired_at, job_id, paused, declared_at, missed_max, jitter_s, kept
))
FROM (
    SELECT * FROM holdfast_schedule
    WHERE :keys IS NULL OR key IN (SELECT value FROM json_each(:keys))
    ORDER BY key
);

-- name: fire
-- The mark only ever rises: who comes second finds it there, whether or not the job still is.
UPDATE holdfast_schedule SET mark = :instant, fired_at = :instant
WHERE key = :key AND mark < :instant AND paused = 0;

-- name: fire_job
UPDATE holdfast_schedule SET job_id = :job_id WHERE key = :key;

-- name: pause_schedule
UPDATE holdfast_schedule SET
    mark = iif(paused = 1 AND :paused = 0, max(mark, :wall), mark),
    paused = :paused
WHERE key = :key;

-- name: forget_schedule
DELETE FROM holdfast_schedule WHERE key = :key;

-- name: publish
INSERT INTO holdfast_task AS there (name, task, published_at)
SELECT value ->> 0, value ->> 1, :wall FROM json_each(:tasks)
WHERE true
ON CONFLICT (name) DO UPDATE SET task = excluded.task, published_at = excluded.published_at
WHERE there.task <> excluded.task;

-- name: published
SELECT json_group_array(json_array(task, published_at))
FROM (
    SELECT task, published_at FROM holdfast_task
    WHERE :names IS NULL OR name IN (SELECT value FROM json_each(:names))
    ORDER BY name
);

-- name: forget_task
DELETE FROM holdfast_task WHERE name = :name;

-- name: add_token
INSERT INTO holdfast_token (name, role, queues, sha256, created_at, expires_at)
VALUES (:name, :role, :queues, :sha256, :created_at, :expires_at)
ON CONFLICT (name) DO NOTHING;

-- name: all_tokens
SELECT json_group_array(json_array(name, role, queues, sha256, created_at, used_at, expires_at))
FROM (SELECT * FROM holdfast_token ORDER BY name);

-- name: revoke_token
DELETE FROM holdfast_token WHERE name = :name;

-- name: tokens_used
UPDATE holdfast_token SET used_at = max(said.value, coalesce(used_at, 0))
FROM json_each(:at) AS said
WHERE holdfast_token.name = said.key;

-- name: open_batch
INSERT INTO holdfast_batch (id, then_job, abandon_s, created_at, added_at)
VALUES (:id, :then_job, :abandon_s, :wall, :wall)
ON CONFLICT DO NOTHING;

-- name: batch_add
UPDATE holdfast_batch SET added_at = :wall WHERE id = :id AND closed_at IS NULL;

-- name: close_batch
UPDATE holdfast_batch SET closed_at = :wall, complete = :complete
WHERE id = :id AND closed_at IS NULL AND (:added_since IS NULL OR added_at <= :added_since);

-- name: get_batches
SELECT json_group_array({batch_row}) FROM (
    SELECT * FROM holdfast_batch WHERE id IN (SELECT value FROM json_each(:ids)) ORDER BY id
) AS found;

-- name: find_batches
SELECT json_group_array({batch_row}) FROM (
    SELECT * FROM holdfast_batch WHERE id > :after ORDER BY id LIMIT :limit
) AS found;

-- name: find_unended_batches
SELECT json_group_array({batch_row}) FROM (
    SELECT * FROM holdfast_batch WHERE id > :after AND ended_at IS NULL ORDER BY id LIMIT :limit
) AS found;

-- name: newest_batches
SELECT json_group_array({batch_row}) FROM (
    SELECT * FROM holdfast_batch ORDER BY created_at DESC, id DESC LIMIT :limit
) AS found;

-- name: batch_counts
SELECT json_group_array(json_array(state, jobs)) FROM (
    SELECT state, sum(jobs) AS jobs FROM (
        SELECT state, count(*) AS jobs FROM holdfast_job WHERE batch = :id GROUP BY state
        UNION ALL
        SELECT state, jobs FROM holdfast_batch_removed WHERE batch = :id
    )
    GROUP BY state
);

-- name: batch_jobs
SELECT '[' || coalesce(group_concat(row), '') || ']' FROM (
    SELECT row FROM holdfast_row
    WHERE batch = :id AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
    LIMIT :limit
);

-- name: end_batch
UPDATE holdfast_batch SET ended_at = :wall, counts = :counts
WHERE id = :id AND closed_at IS NOT NULL AND ended_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM holdfast_job AS job
    WHERE job.batch = holdfast_batch.id AND job.state IN ('running', 'ready', 'waiting', 'held')
);

-- name: batches_purged
DELETE FROM holdfast_batch WHERE id IN (
    SELECT id FROM holdfast_batch AS old
    WHERE ended_at < :before AND NOT EXISTS (SELECT 1 FROM holdfast_job AS job WHERE job.batch = old.id)
    LIMIT :limit
);

-- name: batches_removed
DELETE FROM holdfast_batch_removed WHERE batch NOT IN (SELECT id FROM holdfast_batch);

-- name: key_knows
SELECT 1 FROM holdfast_job WHERE id = :id;

-- name: key_live
SELECT '[' || coalesce(group_concat(row), '') || ']' FROM holdfast_row
WHERE key = :key AND state IN ('ready', 'running', 'waiting', 'held');

-- name: key_held
-- In the order of core/keys.py: KeyHold.
SELECT job_id, scope, until FROM holdfast_key WHERE key = :key;

-- name: key_take
INSERT INTO holdfast_key (key, job_id, scope, until) VALUES (:key, :job_id, :scope, :until)
ON CONFLICT (key) DO UPDATE SET job_id = excluded.job_id, scope = excluded.scope, until = excluded.until;

-- name: key_write
UPDATE holdfast_job SET scoped_key = :key, key_scope = :scope WHERE id = :job_id;

-- name: key_pass
-- A key with the scope "live" is in the unique index as long as it stands in its own column.
UPDATE holdfast_job SET scoped_key = coalesce(key, scoped_key), key = NULL, key_scope = 'passed' WHERE id = :id;

-- name: key_rewrite
UPDATE holdfast_job SET payload = :payload, expires_at = :expires_at WHERE id = :id;

-- name: keys_page
SELECT max(key) FROM (SELECT key FROM holdfast_key WHERE key > :after ORDER BY key LIMIT :limit);

-- name: keys_purged
DELETE FROM holdfast_key
WHERE key > :after AND key <= :last AND (
    until <= :wall
    OR (scope = 'queued' AND NOT EXISTS (
        SELECT 1 FROM holdfast_job AS job
        WHERE job.id = holdfast_key.job_id AND job.state = 'ready' AND job.attempt = 0
    ))
);

-- name: get
SELECT '[' || coalesce(group_concat(row), '') || ']' FROM holdfast_row WHERE id = :id;

-- name: find
-- Anything, newest first. Not for states that are rare: these have their own index and query below.
{found}
    WHERE (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
        {filters}
        {kinds}
        {ready}
        {page}

-- name: find_aside
-- The states that an index lists by themselves: what is held or dead is found without reading what is done.
{found}
    WHERE state = :state AND state IN ('waiting', 'held', 'dead', 'cancelled', 'rolled_back')
        {filters}
        {kinds}
        {page}

-- name: find_tried
-- Ready jobs that have failed or crashed, by an index of their own: other jobs are not in it.
{found}
    WHERE state = 'ready' AND failures + crashes > 0
        {filters}
        {kinds}
        AND (:later IS NULL OR run_at > :later)
        {page}

-- name: find_later
-- Ready jobs that are not due yet, by the indexes that claims use: those that are due are not read.
{lanes}
{found}
    WHERE seq IN (
        SELECT seq FROM holdfast_job
        WHERE seq IN ({later})
            {filters}
            {kinds}
            {ready}
            AND (:before IS NULL OR seq < (SELECT seq FROM holdfast_job WHERE id = :before))
        ORDER BY +seq DESC
        LIMIT :limit
    )
    ORDER BY seq DESC
);

-- name: find_later_few
-- Whether there are at most as many as `find_later` may sort.
{lanes}
SELECT count(*) <= :most FROM (SELECT 1 FROM ({later}) LIMIT :most + 1);

-- name: find_workflows
-- By their own index, as many other jobs as there may be.
{found}
    WHERE workflow = 1
        AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
        {filters}
        AND (:asking IS NULL OR (question IS NOT NULL) = :asking)
        {ready}
        {page}

-- name: find_running
{found}
    WHERE state = 'running'
        {filters}
        {kinds}
        {page_of_few}

-- name: find_worker
{found}
    WHERE state = 'running' AND worker = :worker
        {filters}
        {kinds}
        {page}

-- name: find_erred
-- Jobs with an error, by an index of their own: other jobs are not in it. Only those of the page are made into rows.
{found}
    WHERE seq IN (
        SELECT seq FROM holdfast_job
        WHERE fingerprint IS NOT NULL
            AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
            {filters}
            {kinds}
            {ready}
            AND (:before IS NULL OR seq < (SELECT seq FROM holdfast_job WHERE id = :before))
        ORDER BY +seq DESC
        LIMIT :limit
    )
    ORDER BY seq DESC
);

-- name: find_fingerprint
-- The same, with the index in the order of the list.
{found}
    WHERE fingerprint = :fingerprint
        AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
        {filters}
        {kinds}
        {ready}
        {page}

-- name: find_prefix
-- By a range of the index of ids.
{found}
    WHERE id >= :prefix AND id < :prefix_end AND substr(id, 1, length(:prefix)) = :prefix
        AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
        AND (:worker IS NULL OR (state = 'running' AND worker = :worker))
        AND (:ids IS NULL OR id IN (SELECT value FROM json_each(:ids)))
        {filters}
        {kinds}
        {ready}
        {page_of_few}

-- name: find_ids
{found}
    WHERE id IN (SELECT value FROM json_each(:ids))
        AND (:states IS NULL OR state IN (SELECT value FROM json_each(:states)))
        AND (:worker IS NULL OR worker = :worker)
        {filters}
        {kinds}
        {ready}
        {page}

-- name: counts
-- Live states exactly, each from its own index; ended ones from the tally. The planner takes the index of the states aside
-- only if its own list is repeated.
SELECT json_group_array(json_array(queue, state, jobs)) FROM (
    SELECT queue, 'ready' AS state, sum(jobs) AS jobs FROM (
        SELECT queue, count(*) AS jobs FROM holdfast_job WHERE state = 'ready' AND grp IS NULL GROUP BY queue
        UNION ALL
        SELECT queue, count(*) FROM holdfast_job WHERE state = 'ready' AND grp IS NOT NULL GROUP BY queue
    )
    GROUP BY queue
    UNION ALL
    SELECT queue, 'running', count(*) FROM holdfast_job WHERE state = 'running' GROUP BY queue
    UNION ALL
    SELECT queue, 'waiting', count(*) FROM holdfast_job
    WHERE state = 'waiting' AND state IN ('waiting', 'held', 'dead', 'cancelled', 'rolled_back')
    GROUP BY queue
    UNION ALL
    SELECT queue, 'held', count(*) FROM holdfast_job
    WHERE state = 'held' AND state IN ('waiting', 'held', 'dead', 'cancelled', 'rolled_back')
    GROUP BY queue
    UNION ALL
    SELECT queue, state, jobs FROM holdfast_tally WHERE jobs <> 0
);

-- name: errors
SELECT json_group_array(json_array(
    task, fingerprint, kind, origin, message, attempts, first_at, last_at, json(releases), substr(last_job, 21)
)) FROM (
    SELECT task, fingerprint, max(kind) AS kind, max(origin) AS origin, max(message) AS message,
        sum(attempts) AS attempts, min(first_at) AS first_at, max(last_at) AS last_at,
        json_group_array(DISTINCT release) FILTER (WHERE release <> '') AS releases,
        max(printf('%020.6f', last_at) || job_id) AS last_job
    FROM holdfast_error
    WHERE slot >= :slot AND (:task IS NULL OR task = :task)
    GROUP BY task, fingerprint
    ORDER BY attempts DESC, last_at DESC, task, fingerprint
    LIMIT :limit
);

-- name: journal
SELECT json_group_array({event}) FROM (
    SELECT * FROM holdfast_journal
    WHERE job_id = :job_id
        AND {wanted_events}
    ORDER BY seq
    LIMIT :limit
);

-- name: journal_all
SELECT json_group_array({event}) FROM (
    SELECT * FROM (
        SELECT * FROM holdfast_journal
        WHERE {wanted_events}
        ORDER BY seq DESC
        LIMIT :limit
    )
    ORDER BY seq
);

-- name: journal_since
-- Which ones is answered by the index on (kind, at) alone; a long journal of other kinds and times is not read.
SELECT json_group_array({event}) FROM (
    SELECT * FROM holdfast_journal WHERE seq IN (
        SELECT seq FROM holdfast_journal INDEXED BY holdfast_journal_kind
        WHERE kind IN (SELECT value FROM json_each(:kinds)) AND at >= :since AND (:before IS NULL OR seq < :before)
        ORDER BY seq DESC
        LIMIT :limit
    )
    ORDER BY seq
);

-- name: journals
SELECT json_group_array({event}) FROM (
    SELECT line.*, row_number() OVER (PARTITION BY line.job_id ORDER BY line.seq) AS place
    FROM json_each(:job_ids) AS wanted
    CROSS JOIN holdfast_journal AS line
    WHERE line.job_id = wanted.value
    ORDER BY line.seq
)
WHERE place <= :limit;

-- name: workers
SELECT json_group_array(json_array(
    id, name, host, pid, boot_id, supervisor, queues, slots, beat_s, version, started_at, beat_at, beats,
    running, rss_mb, gone_at, gone_cause, exit_kind, exit_code, exit_excused, stopping, release,
    (SELECT tasks FROM holdfast_published WHERE worker = workforce.id AND workforce.gone_at IS NULL),
    (
        SELECT {order} FROM holdfast_order AS given
        WHERE workforce.gone_at IS NULL AND (
            given.name = workforce.name
            OR (workforce.supervisor IS NOT NULL AND given.name || '/' = rtrim(workforce.name, '0123456789'))
        )
        ORDER BY given.act = 'stop' DESC, given.name
        LIMIT 1
    )
))
FROM (SELECT * FROM holdfast_workforce WHERE :gone = 1 OR gone_at IS NULL ORDER BY started_at, id) AS workforce;

-- name: orders
SELECT json_group_array({order}) FROM (SELECT * FROM holdfast_order ORDER BY name) AS given;

-- name: recent
SELECT json_group_array(json_array(worker, recent)) FROM holdfast_recent
WHERE worker IN (SELECT value FROM json_each(:workers));

-- name: paused
SELECT json_group_array(name) FROM (
    SELECT name FROM holdfast_queue
    WHERE paused = 1 AND (paused_until IS NULL OR paused_until > :wall)
    ORDER BY name
);

-- name: queues
{queue_rows} WHERE :queue IS NULL OR name = :queue;

-- name: places
SELECT count(*), coalesce(sum(grp = :grp), 0) FROM holdfast_job WHERE state = 'running' AND queue = :queue;

-- name: unserved
SELECT json_group_array(json_array(task, jobs)) FROM (
    SELECT task, count(*) AS jobs FROM (
        SELECT task FROM holdfast_job
        WHERE state = 'ready' AND grp IS NULL AND queue IN (SELECT value FROM json_each(:queues)) AND run_at <= :wall
            AND task NOT IN (SELECT value FROM json_each(:tasks))
        UNION ALL
        SELECT task FROM holdfast_job
        WHERE state = 'ready' AND grp IS NOT NULL AND queue IN (SELECT value FROM json_each(:queues))
            AND run_at <= :wall
            AND task NOT IN (SELECT value FROM json_each(:tasks))
        LIMIT 1000
    )
    GROUP BY task
);

-- name: backlog
-- Of each queue and priority the first due jobs are read, not all of them.
{lanes}
SELECT json_group_array(json_array(queue, priority, task, jobs, oldest)) FROM (
    SELECT lane.queue, lane.priority, job.task, count(*) AS jobs, min(job.run_at) AS oldest
    FROM lane
    CROSS JOIN holdfast_job AS job
    WHERE lane.priority IS NOT NULL AND job.seq IN (
        SELECT one.seq FROM holdfast_job AS one
        WHERE one.state = 'ready' AND one.grp IS NULL AND one.queue = lane.queue AND one.priority = lane.priority
            AND one.run_at <= :wall
        ORDER BY one.run_at, one.seq
        LIMIT :sample
    )
    GROUP BY lane.queue, lane.priority, job.task
    UNION ALL
    SELECT grouped.queue, NULL, job.task, count(*), min(job.run_at)
    FROM grouped
    CROSS JOIN holdfast_job AS job
    WHERE grouped.queue IS NOT NULL AND job.seq IN (
        SELECT one.seq FROM holdfast_job AS one
        WHERE one.state = 'ready' AND one.grp IS NOT NULL AND one.queue = grouped.queue AND one.run_at <= :wall
        ORDER BY one.run_at
        LIMIT :sample
    )
    GROUP BY grouped.queue, job.task
);

-- name: flow
-- The newest jobs, and the newest of each state in which jobs end. If there are more in the window than are looked at, the
-- oldest of these says how far back that was.
SELECT json_group_array(json_array(queue, state, jobs, since, task)) FROM (
    SELECT queue, 'added' AS state, count(*) AS jobs, max(:since, iif(max(seen) = :sample, min(first), :since)) AS since,
        task
    FROM (
        SELECT queue, task, count(*) OVER () AS seen, min(created_at) OVER () AS first
        FROM (SELECT queue, task, created_at FROM holdfast_job ORDER BY seq DESC LIMIT :sample)
        WHERE created_at >= :since
    )
    GROUP BY queue, task
    UNION ALL
    SELECT queue, state, count(*), max(:since, iif(max(seen) = :sample, min(first), :since)), task
    FROM (
        SELECT ended.value AS state, job.queue, job.task, count(*) OVER (PARTITION BY ended.value) AS seen,
            min(job.ended_at) OVER (PARTITION BY ended.value) AS first
        FROM json_each('["done", "dead", "cancelled", "rolled_back"]') AS ended
        CROSS JOIN holdfast_job AS job
        WHERE job.seq IN (
            SELECT one.seq FROM holdfast_job AS one
            WHERE one.state = ended.value AND one.ended_at IS NOT NULL AND one.ended_at >= :since
            ORDER BY one.ended_at DESC
            LIMIT :sample
        )
    )
    GROUP BY queue, task, state
);

-- name: lost
-- The newest lost attempts with what their jobs are by now; how many there were; and how many of them reported late.
SELECT (
    SELECT json_group_array(json_array(
        line.seq, line.at, line.job_id, line.fence, line.worker,
        iif(json_valid(line.detail), json(line.detail), json_object()),
        EXISTS (
            SELECT 1 FROM holdfast_journal AS late
            WHERE late.job_id = line.job_id AND late.fence = line.fence AND late.kind = 'stale_report'
        ),
        job.task, job.queue, coalesce(job.state, 'done'), coalesce(job.run_at, 0), coalesce(job.failures, 0),
        coalesce(job.crashes, 0), coalesce(job.zombies, 0), coalesce(job.suspects, 0), coalesce(job.lease_s, 0),
        coalesce(job.beat_s, 0)
    ))
    FROM (
        SELECT * FROM (
            SELECT * FROM holdfast_journal WHERE kind = 'zombie' AND at >= :since ORDER BY at DESC, seq DESC LIMIT :limit
        )
        ORDER BY seq
    ) AS line
    LEFT JOIN holdfast_job AS job ON job.id = line.job_id
), (
    SELECT count(*) FROM holdfast_journal WHERE kind = 'zombie' AND at >= :since
), (
    SELECT count(*) FROM holdfast_journal AS late
    WHERE late.kind = 'stale_report' AND late.at >= :since AND EXISTS (
        SELECT 1 FROM holdfast_journal AS line
        WHERE line.job_id = late.job_id AND line.fence = late.fence AND line.kind = 'zombie' AND line.at >= :since
    )
), (
    SELECT json_group_array(json_array(kind, task, queue, detector, decision, attempts)) FROM (
        SELECT kind, task, queue, detector, decision, sum(attempts) AS attempts FROM holdfast_crash
        WHERE slot >= :slot
        GROUP BY kind, task, queue, detector, decision
    )
);

-- name: counters
SELECT (
    SELECT json_group_array(json_array(queue, state, ended)) FROM holdfast_tally WHERE ended > 0
), (
    SELECT json_group_array(json_array(kind, '', '', detector, decision, attempts)) FROM (
        SELECT kind, detector, decision, sum(attempts) AS attempts FROM holdfast_crash
        GROUP BY kind, detector, decision
    )
);

-- name: rollups
SELECT (
    SELECT json_group_array(json_array(span, slot, queue, arrived, came, json(endings))) FROM holdfast_rollup
    WHERE span = :span AND slot >= :slot
), (
    SELECT json_group_array(json_array(minute, json(lines))) FROM holdfast_delta
);

-- name: fold
SELECT json_group_array(json_array(id, minute, json(lines))) FROM (
    SELECT id, minute, lines FROM holdfast_delta ORDER BY id LIMIT :limit
);

-- name: fold_stored
-- The rollups that may change, and those of the span for ever.
SELECT json_group_array(json_array(span, slot, queue, arrived, came, json(endings))) FROM (
    SELECT * FROM holdfast_rollup WHERE span = 0
    UNION ALL
    SELECT rollup.* FROM json_each(:places) AS place
    CROSS JOIN holdfast_rollup AS rollup
        ON rollup.span = place.value ->> 0 AND rollup.slot = place.value ->> 1 AND rollup.queue = place.value ->> 2
    WHERE rollup.span <> 0
);

-- name: fold_write
INSERT INTO holdfast_rollup (span, slot, queue, arrived, came, endings)
SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value -> 5 FROM json_each(:rollups)
WHERE true
ON CONFLICT (span, slot, queue) DO UPDATE SET
    arrived = excluded.arrived, came = excluded.came, endings = excluded.endings;

-- name: fold_done
DELETE FROM holdfast_delta WHERE id <= :last;

-- name: fold_old
DELETE FROM holdfast_rollup WHERE span = :span AND slot < :oldest;

-- name: due
SELECT run_at FROM holdfast_job
WHERE state = 'ready' AND grp IS NULL AND queue = :queue AND priority = :priority
    AND task IN (SELECT value FROM json_each(:tasks))
ORDER BY run_at
LIMIT 1;

-- name: due_grouped
SELECT run_at FROM holdfast_job
WHERE state = 'ready' AND grp IS NOT NULL AND queue = :queue
    AND task IN (SELECT value FROM json_each(:tasks))
ORDER BY run_at
LIMIT 1;

-- name: ping
-- Writes for real when the disk is nearly full, or when asked to: reads and locks work there, and nobody can renew. The
-- same values written again would change no page.
INSERT INTO holdfast_meta (name, value) VALUES ('ping', '');

-- name: ping_undo
DELETE FROM holdfast_meta WHERE name = 'ping';

-- name: standing
SELECT
    (SELECT CAST(value AS INTEGER) FROM holdfast_meta WHERE name = 'schema'),
    (SELECT CAST(value AS INTEGER) FROM holdfast_meta WHERE name = 'works_with'),
    (SELECT value FROM holdfast_meta WHERE name = 'identity'),
    :wall,
    (SELECT max(number) FROM holdfast_incarnation),
    (SELECT at FROM holdfast_incarnation ORDER BY number DESC LIMIT 1),
    (SELECT CAST(value AS INTEGER) FROM holdfast_meta WHERE name = 'removals'),
    (SELECT beats FROM holdfast_worker WHERE id = :worker),
    (SELECT coalesce(sum(beats + 1), 0) FROM holdfast_worker),
    (SELECT json_group_array(id) FROM (SELECT id FROM holdfast_job ORDER BY id DESC LIMIT 2)),
    (
        SELECT json_group_array(value) FROM json_each(:known)
        WHERE NOT EXISTS (SELECT 1 FROM holdfast_job WHERE id = value)
    ),
    EXISTS (
        SELECT 1 FROM holdfast_job WHERE id = :settled AND fence = :fence AND claim_id = :claim_id AND state = 'running'
    ),
    (
        SELECT count(*) FROM holdfast_doubt WHERE incarnation = (SELECT max(number) FROM holdfast_incarnation)
    ),
    EXISTS (SELECT 1 FROM holdfast_worker WHERE gone_at IS NULL AND schema < 11);  -- which began to count removals

-- name: standing_removed
-- Rows were removed on purpose: a worker that misses one does not take the store for an emptied one.
UPDATE holdfast_meta SET value = CAST(value AS INTEGER) + 1 WHERE name = 'removals';

-- name: doubt
INSERT INTO holdfast_doubt (incarnation, kind, evidence, worker, seen, found, at)
SELECT max(number), :kind, :evidence, :worker, :seen, :found, :wall FROM holdfast_incarnation
HAVING max(number) = :incarnation
ON CONFLICT DO NOTHING;

-- A process that may not use the store any more has noted it. `at`: when that process last saw the store as it was. If a
-- person has accepted the store since, there is nothing to doubt.
-- name: doubt_noted
INSERT INTO holdfast_doubt (incarnation, kind, evidence, worker, seen, found, at)
SELECT number, :kind, :evidence, :worker, :seen, :found, :wall FROM holdfast_incarnation
WHERE number = (SELECT max(number) FROM holdfast_incarnation) AND (number = 1 OR at <= :at)
ON CONFLICT DO NOTHING;

-- name: doubts
SELECT json_group_array(json_array(kind, evidence, seen, found, worker, at)) FROM (
    SELECT * FROM holdfast_doubt
    WHERE incarnation = (SELECT max(number) FROM holdfast_incarnation)
    ORDER BY at
);

-- name: accept
INSERT INTO holdfast_incarnation (number, at, actor, note)
SELECT max(number) + 1, :wall, :actor, :note FROM holdfast_incarnation HAVING max(number) = :seen;

-- name: accept_answer
SELECT max(number) FROM holdfast_incarnation;

-- name: schema
SELECT (SELECT CAST(value AS INTEGER) FROM holdfast_meta WHERE name = 'schema'),
    (SELECT CAST(value AS INTEGER) FROM holdfast_meta WHERE name = 'works_with');

-- name: schema_exists
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'holdfast_meta';

-- name: migrate
INSERT INTO holdfast_meta (name, value) VALUES ('schema', :version), ('works_with', :works_with)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: migrate_shut
-- Workers whose program is too old for the migration that begins cannot claim any more. They still settle.
CREATE TRIGGER IF NOT EXISTS holdfast_job_too_old BEFORE UPDATE OF state ON holdfast_job
WHEN NEW.state = 'running' AND OLD.state <> 'running'
    AND (SELECT schema FROM holdfast_worker WHERE id = NEW.worker)
        < (SELECT CAST(value AS INTEGER) FROM holdfast_meta WHERE name = 'works_with')
BEGIN
    SELECT RAISE(ABORT, 'this program is too old for the schema of the store: upgrade it');
END;

-- name: migrate_running
-- A lease that has run out is not waited for: a reaper of the new version finds it.
SELECT json_group_array(json_array(name, jobs)) FROM (
    SELECT worker.name, count(*) AS jobs
    FROM holdfast_job AS job JOIN holdfast_worker AS worker ON worker.id = job.worker
    WHERE job.state = 'running' AND worker.schema < :works_with AND worker.gone_at IS NULL
        AND worker.boot_id = :boot_id AND job.lease_until > :lease
    GROUP BY worker.name
);

-- name: migrate_retire
UPDATE holdfast_worker
SET gone_at = :wall, gone_cause = 'its program is too old for the schema', exit_kind = 'released'
WHERE schema < :works_with AND gone_at IS NULL;

-- name: migrate_open
DROP TRIGGER IF EXISTS holdfast_job_too_old;

-- name: migrate_progress
SELECT pieces, after FROM holdfast_migration;

-- name: migrate_on
INSERT INTO holdfast_migration (number, pieces, after) VALUES (:number, :pieces, :after)
ON CONFLICT (number) DO UPDATE SET pieces = excluded.pieces, after = excluded.after;

-- name: migrate_done
DELETE FROM holdfast_migration;

-- name: migrate_page_job
SELECT max(seq), count(*) FROM (SELECT seq FROM holdfast_job WHERE seq > :after ORDER BY seq LIMIT :page);

-- name: migrate_page_journal
SELECT max(seq), count(*) FROM (SELECT seq FROM holdfast_journal WHERE seq > :after ORDER BY seq LIMIT :page);

-- name: missing
SELECT json_group_array(name) FROM sqlite_schema WHERE type = 'table';

-- name: check
-- Jobs that run under a worker without a row.
SELECT json_group_array(json_array(id, worker)) FROM (
    SELECT id, worker FROM holdfast_job
    WHERE state = 'running' AND worker NOT IN (SELECT id FROM holdfast_worker)
    ORDER BY seq
    LIMIT 20
);

-- name: check_jobs
-- A page of jobs, to see whether each can be read. A row that is no JSON must not end the statement.
SELECT '[' || coalesce(group_concat('[' || seq || ',' || row || ']'), '') || ']' FROM (
    SELECT seq, row FROM holdfast_row WHERE seq > :after ORDER BY seq LIMIT :limit
);

-- name: check_journal
SELECT json_group_array(json_object(
    'seq', seq, 'job_id', job_id, 'at', at, 'kind', kind, 'worker', worker, 'actor', actor, 'detail', detail
)) FROM (
    SELECT * FROM holdfast_journal WHERE seq > :after ORDER BY seq LIMIT :limit
);

-- name: check_steps
SELECT json_group_array(json_object(
    'job_id', job_id, 'aside', aside, 'position', position, 'path', path, 'kind', kind, 'name', name,
    'arguments', arguments, 'result', result, 'error', error, 'error_kind', error_kind,
    'started_at', started_at, 'ended_at', ended_at
)) FROM (
    SELECT * FROM holdfast_step WHERE (job_id, aside, position) > (:job_id, :aside, :position)
    ORDER BY job_id, aside, position
    LIMIT :limit
);

-- name: check_workers
SELECT json_group_array(json_object(
    'id', id, 'name', name, 'host', host, 'boot_id', boot_id, 'supervisor', supervisor, 'queues', queues,
    'beat_s', beat_s, 'version', version, 'started_at', started_at, 'beat_at', beat_at, 'rss_mb', rss_mb,
    'gone_at', gone_at, 'gone_cause', gone_cause, 'release', release
)) FROM holdfast_worker;

-- name: condition_tables
-- What else is in the file: tables of the user's own.
SELECT json_group_array(name) FROM (
    SELECT name FROM sqlite_schema
    WHERE type = 'table' AND name NOT LIKE 'holdfast\_%' ESCAPE '\' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'
    ORDER BY name
);

-- name: condition_events
-- About how many lines the journal has, from its two ends: counting would read them all.
SELECT coalesce((SELECT max(seq) FROM holdfast_journal) - (SELECT min(seq) FROM holdfast_journal) + 1, 0);
