-- The statements of the PostgreSQL store, named like the protocol's verbs and in their order.
--
-- Each verb is one statement: one round trip, one commit. Batches come in as one JSON value and rows go out as one,
-- which costs the client a tenth of what separate values cost. Entries with many fields come as jsonb, which is parsed
-- once; json is parsed again for each field that is taken out of it.
--
-- Where rows are found by their ids, the state is compared as `state || ''`: no partial index fits that. The planner
-- would take one for short, and while an old transaction keeps dead entries it is the longest of all.
--
-- The hot statements are planned once, maybe while the table is small, and the planner takes every list for a hundred
-- entries: then it would read the whole table, ever after, to find them. A condition that always holds
-- (`coalesce(value ->> 0, '') = value ->> 0`) makes it expect one entry, and look each job up by its id.
--
-- Every statement reads the clock once, in `clock`, so that its instants can be looked up in an index. %(wall)s and
-- %(lease)s are NULL but for tests: the server's own clock measures.

-- fragment: wall
-- The server's clocks, unless a test gives its own.
coalesce(%(wall)s::float8, extract(epoch FROM clock_timestamp())::float8)

-- fragment: lease
coalesce(%(lease)s::float8, extract(epoch FROM clock_timestamp())::float8)

-- fragment: instant
-- When this statement came in, unless a test gives its own clock: the same wherever it stands in a statement.
coalesce(%s::float8, extract(epoch FROM statement_timestamp())::float8)

-- fragment: path_is_ours
-- Whether the search_path leads to PostgreSQL's own functions.
pg_catalog.array_position(
        pg_catalog.array_remove(
            pg_catalog.current_schemas(true), pg_catalog.pg_my_temp_schema()::pg_catalog.regnamespace::pg_catalog.name
        ),
        'pg_catalog'
    ) OPERATOR(pg_catalog.=) 1

-- fragment: slept
-- How often a worker has gone to sleep, by now and not by this statement's snapshot. NULL: this user may not know.
CASE WHEN has_sequence_privilege('{schema}.sleep_count'::regclass, 'SELECT, USAGE')
        THEN coalesce(pg_sequence_last_value('{schema}.sleep_count'::regclass), 0) END

-- fragment: new_job
-- The columns of a job that is stored.
id, task, queue, payload, key, priority, run_at, created_at,
    attempts_max, backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash,
    lease_s, beat_s, timeout_s, stall_s, backoff_full, workflow, parent, grp, callbacks, expires_at, tags, meta

-- fragment: queue_rows
-- What is set for queues, in the order of core/limits.py: Queue.
SELECT coalesce(json_agg(json_build_array(
        queue.name, queue.paused, queue.paused_until, (
            SELECT json_object_agg(each.grp, each.paused_until) FROM {schema}.paused_group AS each
            WHERE each.queue = queue.name
        ), queue.declared, queue.chosen, queue.booked_until, queue.grouped
    )), '[]')::text
    FROM {schema}.queue AS queue

-- fragment: allowed
-- Whether an act may be done: it is under no duty, or under one whose term is the current one.
duty AS MATERIALIZED (
    SELECT name FROM {schema}.duty
    WHERE name = %(duty)s AND holder = %(holder)s AND term = %(term)s
    FOR SHARE
),
allowed AS MATERIALIZED (
    SELECT %(duty)s::text IS NULL OR EXISTS (SELECT FROM duty) AS yes
)

-- fragment: schedule_given
value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, (value ->> 5)::bigint, (value ->> 6)::float8

-- fragment: schedule_set
spec = excluded.spec,
    tz = excluded.tz,
    missed = excluded.missed,
    job = excluded.job,
    missed_max = excluded.missed_max,
    jitter_s = excluded.jitter_s,
    declared_at = excluded.declared_at

-- fragment: free
-- The endings whose attempts still own their rows, which are locked; a row that is locked by another is skipped.
free AS MATERIALIZED (
    SELECT ending.* FROM ending, {schema}.job AS job
    WHERE job.id = ending.id
        AND job.fence = ending.fence
        AND job.claim_id = ending.claim_id
        AND job.state || '' = 'running'
    FOR NO KEY UPDATE OF job SKIP LOCKED
)

-- fragment: rollup
format('[%%s,%%s,%%s,%%s,%%s,%%s]', span, slot, to_json(queue), arrived, came, endings)

-- fragment: events
SELECT coalesce(json_agg(json_build_array(
    line.seq, line.job_id, line.at, line.kind, line.fence, line.worker, line.actor, line.detail
) ORDER BY line.seq), '[]')::text
FROM

-- fragment: batch_rows
-- In the order of core/batches.py: Batch.
SELECT coalesce(json_agg(json_build_array(
        batch.id, batch.then_job, batch.abandon_s, batch.created_at, batch.added_at, batch.closed_at, batch.ended_at,
        batch.complete, batch.counts, EXISTS (
            SELECT FROM {schema}.job AS job
            WHERE job.batch = batch.id AND job.state IN ('running', 'ready', 'waiting', 'held')
        )
    ) ORDER BY batch.place, batch.id), '[]')::text
FROM

-- fragment: wanted_events
(%(kinds)s::text[] IS NULL OR kind = ANY (%(kinds)s::text[]))
        AND (%(since)s::float8 IS NULL OR at >= %(since)s)
        AND (%(before)s::bigint IS NULL OR seq < %(before)s)

-- fragment: order
-- The order in force for the worker, in the order of core/records.py: Order.
(
        SELECT json_build_array(given.name, given.act, given.actor, given.note, given.at)::text
        FROM {schema}.worker_order AS given
        WHERE given.name = worker.name
            OR (worker.supervisor IS NOT NULL AND given.name || '/' = rtrim(worker.name, '0123456789'))
        ORDER BY given.act = 'stop' DESC, given.name COLLATE "C"
        LIMIT 1
    )

-- fragment: found
SELECT '[' || coalesce(string_agg({schema}.as_json(job)::text, ',' ORDER BY seq DESC), '') || ']' FROM (

-- fragment: page
AND (%(later)s::float8 IS NULL OR job.state <> 'ready' OR job.run_at > %(later)s)
        AND (%(tried)s::boolean IS NULL OR job.state <> 'ready' OR (job.failures + job.crashes > 0) = %(tried)s)
        AND (%(before)s::text IS NULL OR job.seq < (SELECT seq FROM {schema}.job WHERE id = %(before)s))
    ORDER BY job.seq DESC
    LIMIT %(limit)s::bigint
) AS found;

-- fragment: newest
AND (%(queue)s::text IS NULL OR job.queue = %(queue)s)
            AND (%(task)s::text IS NULL OR job.task = %(task)s)
            AND (%(group)s::text IS NULL OR job.grp = %(group)s)
            AND (%(tags)s::jsonb IS NULL OR job.tags::jsonb @> %(tags)s::jsonb)
            AND (%(meta)s::jsonb IS NULL OR job.meta::jsonb @> %(meta)s::jsonb)
            AND (%(since)s::float8 IS NULL OR coalesce(job.ended_at, job.erred_at, job.created_at) >= %(since)s)
            AND (%(until)s::float8 IS NULL OR coalesce(job.ended_at, job.erred_at, job.created_at) < %(until)s)
            AND (%(before)s::text IS NULL OR job.seq < (SELECT seq FROM {schema}.job WHERE id = %(before)s))
        ORDER BY job.seq DESC
        LIMIT %(limit)s::bigint
    ) AS newest

-- fragment: dependent
-- A job that waits for others, and whether all of these have ended.
SELECT job.id, json_build_array(job.id, NOT EXISTS (
        SELECT FROM json_array_elements_text(job.awaits) AS each (thing)
        JOIN {schema}.job AS other ON other.id = substr(each.thing, 7)
        WHERE starts_with(each.thing, 'after:') AND other.state IN ('ready', 'running', 'waiting', 'held')
    )) AS line
    FROM {schema}.job AS job
    WHERE job.state = 'waiting' AND job.fence = 0 AND job.id > %(after)s

-- fragment: ready
AND (%(task)s::text IS NULL OR job.task = %(task)s)
            AND (%(group)s::text IS NULL OR job.grp = %(group)s)
            AND (%(tags)s::jsonb IS NULL OR job.tags::jsonb @> %(tags)s::jsonb)
            AND (%(meta)s::jsonb IS NULL OR job.meta::jsonb @> %(meta)s::jsonb)
            AND (%(since)s::float8 IS NULL OR coalesce(job.ended_at, job.erred_at, job.created_at) >= %(since)s)
            AND (%(until)s::float8 IS NULL OR coalesce(job.ended_at, job.erred_at, job.created_at) < %(until)s)
            AND (%(later)s::float8 IS NULL OR job.run_at > %(later)s)
            AND (%(tried)s::boolean IS NULL OR (job.failures + job.crashes > 0) = %(tried)s)
            AND (%(before)s::text IS NULL OR job.seq < (SELECT seq FROM {schema}.job WHERE id = %(before)s))
        ORDER BY job.seq DESC
        LIMIT %(limit)s::bigint

-- fragment: filters
AND (%(queue)s::text IS NULL OR job.queue = %(queue)s)
        AND (%(task)s::text IS NULL OR job.task = %(task)s)
        AND (%(group)s::text IS NULL OR job.grp = %(group)s)
        AND (%(cancel_requested)s::boolean IS NULL OR job.cancel_requested = %(cancel_requested)s)
        AND (%(fingerprint)s::text IS NULL OR job.fingerprint = %(fingerprint)s)
        AND (%(release)s::text IS NULL OR (job.fingerprint IS NOT NULL AND job.release = %(release)s))
        AND (%(tags)s::jsonb IS NULL OR job.tags::jsonb @> %(tags)s::jsonb)
        AND (%(meta)s::jsonb IS NULL OR job.meta::jsonb @> %(meta)s::jsonb)
        AND (
            %(since)s::float8 IS NULL
            OR CASE WHEN %(of_errors)s THEN job.erred_at ELSE coalesce(job.ended_at, job.erred_at, job.created_at) END
                >= %(since)s
        )
        AND (
            %(until)s::float8 IS NULL
            OR CASE WHEN %(of_errors)s THEN job.erred_at ELSE coalesce(job.ended_at, job.erred_at, job.created_at) END
                < %(until)s
        )

-- name: now
-- In microseconds: how many digits of a float are sent is a setting of the session.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

-- name: add
-- A taken key is waited for. So the rows go in by their keys, lest two producers wait for each other; their numbers, by
-- which jobs run, follow the call. A caller's search_path may put other functions before PostgreSQL's own: then it
-- stores nothing, and says so.
WITH path AS MATERIALIZED (
    SELECT {path_is_ours} AS is_ours
),
clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
wanted AS MATERIALIZED (
    SELECT value, place, nextval('{schema}.job_seq_seq') AS seq FROM (
        SELECT value, place FROM json_array_elements(%(jobs)s::json) WITH ORDINALITY AS each (value, place)
        WHERE (SELECT is_ours FROM path)
        ORDER BY place
    ) AS called
),
stored AS (
    INSERT INTO {schema}.job (
        seq, id, task, queue, payload, key, priority, run_at, created_at,
        attempts_max, backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash,
        lease_s, beat_s, timeout_s, stall_s, backoff_full, workflow, parent, grp, callbacks, expires_at, tags, meta, batch
    )
    OVERRIDING SYSTEM VALUE
    SELECT
        seq, value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, (value ->> 5)::bigint,
        coalesce((value ->> 6)::float8, clock.wall + (value ->> 7)::float8), clock.wall,
        (value ->> 8)::bigint, (value ->> 9)::float8, (value ->> 10)::float8, (value ->> 11)::boolean,
        (value ->> 12)::bigint, value ->> 13,
        (value ->> 14)::float8, (value ->> 15)::float8, (value ->> 16)::float8, (value ->> 17)::float8,
        (value ->> 18)::boolean, (value ->> 19)::boolean, value ->> 20, value ->> 21, value ->> 22,
        clock.wall + (value ->> 23)::float8, (value ->> 24)::json, (value ->> 25)::json, %(batch)s::text
    FROM clock, wanted
    ORDER BY (value ->> 4) COLLATE "C", place
    ON CONFLICT DO NOTHING
    RETURNING id
)
SELECT coalesce(json_agg(id), '[]')::text, (SELECT is_ours FROM path) FROM stored;

-- name: add_one
-- One job, by a session of our own: its search_path is pinned, so nothing but the insert is left. The statement's own
-- instant comes before and after the delay. Returns nothing when the id or the key is taken.
INSERT INTO {schema}.job (
    {new_job}
)
VALUES (
    %s, %s, %s, %s, %s, %s, coalesce(%s::float8, {instant} + %s), {instant},
    %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, {instant} + %s::float8, %s::json, %s::json
)
ON CONFLICT DO NOTHING
RETURNING {slept};

-- name: add_copy
COPY {schema}.job (
    {new_job}
) FROM STDIN;

-- name: add_copy_numbered
COPY {schema}.job (
    seq, {new_job}
) FROM STDIN;

-- name: add_numbers
SELECT json_agg(nextval('{schema}.job_seq_seq'))::text FROM generate_series(1, %(many)s);

-- name: add_path
-- Says whether the search_path leads to PostgreSQL's own functions, as `add` does.
SELECT {path_is_ours};

-- name: add_holders
-- For each wanted job: the id that is stored, its own or that of the job that has the key; NULL: neither any more.
SELECT json_agg(coalesce(own.id, holder.id) ORDER BY wanted.place)::text
FROM json_array_elements(%(jobs)s::json) WITH ORDINALITY AS wanted (value, place)
LEFT JOIN {schema}.job AS own ON own.id = wanted.value ->> 0
LEFT JOIN {schema}.job AS holder
    ON holder.key = wanted.value ->> 4
    AND holder.state IN ('ready', 'running', 'waiting', 'held');

-- name: add_awaiting
-- Jobs of this very transaction that run after others.
UPDATE {schema}.job AS job SET state = 'waiting', awaits = (new.value ->> 1)::json
FROM json_array_elements(%(jobs)s::json) AS new (value)
WHERE job.id = new.value ->> 0;

-- name: add_grouped
-- Claims leave these queues to `claim_by_turns` from now on. It comes before the first job with a group.
WITH kept AS (
    INSERT INTO {schema}.queue (name, grouped, by_turns)
    SELECT name, true, true FROM unnest(%(queues)s::text[]) AS name
    ORDER BY name
    ON CONFLICT (name) DO UPDATE SET grouped = true, by_turns = true
)
SELECT pg_notify(%(channel)s, '');

-- name: claim
-- Sets the lease, raises the fence and counts the attempt. Within a queue the lanes (priorities) are found by leaping
-- from one to the next in the index, so that a million scheduled jobs of one are not read to get at the next; with
-- %(lanes)s they are given, each with where to begin (frontier.py). Rows are locked as they are found and only until
-- there are enough; those that another claim has locked are left to it.
-- Jobs are claimed ahead of a free slot only with on_crash = 'retry', the only policy that a claim looks at: if the
-- worker dies, nobody knows whether the handler of such a job had begun, and only a job that may run again needs no
-- answer. %(most)s is how many may be claimed in all, those ahead included.
-- Queues with limits, a rate or groups have their share, and are left to `claim_by_turns`.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall,
        {lease} AS lease,
        clock_timestamp() AS began
),
enrolled AS (
    SELECT id, limits_seen FROM {schema}.worker WHERE id = %(worker)s AND gone_at IS NULL
),
given AS (
    SELECT id FROM {schema}.job
    WHERE state = 'running' AND worker = %(worker)s AND claim_id = %(claim_id)s AND %(first)s::boolean
    LIMIT 1
),
wanted AS MATERIALIZED (
    SELECT each.name AS queue,
        CASE WHEN %(even)s THEN
            %(most)s::bigint / count(*) OVER ()
            + (row_number() OVER (ORDER BY place)
                <= %(most)s::bigint %% count(*) OVER ())::integer
        ELSE %(most)s::bigint END AS share,
        queue.by_turns
    FROM unnest(%(queues)s::text[]) WITH ORDINALITY AS each (name, place)
    LEFT JOIN {schema}.queue ON queue.name = each.name
    WHERE (queue.paused AND NOT by_turns) IS NOT TRUE
        AND EXISTS (SELECT FROM enrolled)
        AND NOT EXISTS (SELECT FROM given)
    ORDER BY place
),
picked AS (
    SELECT found.*, row_number() OVER () AS nth
    FROM (
        SELECT lot.*
        FROM clock, wanted, LATERAL (
            SELECT ready.*
            FROM (
                WITH RECURSIVE lane (priority) AS (
                    (
                        SELECT priority FROM {schema}.job
                        WHERE state = 'ready' AND grp IS NULL AND queue = wanted.queue
                            AND %(lanes)s::json IS NULL
                        ORDER BY priority DESC
                        LIMIT 1
                    )
                    UNION ALL
                    SELECT (
                        SELECT priority FROM {schema}.job
                        WHERE state = 'ready' AND grp IS NULL AND queue = wanted.queue
                            AND priority < lane.priority
                        ORDER BY priority DESC
                        LIMIT 1
                    )
                    FROM lane WHERE priority IS NOT NULL
                )
                SELECT lane.priority, '-infinity'::float8 AS run_at, 0 AS seq FROM lane WHERE priority IS NOT NULL
                UNION ALL
                SELECT (value ->> 1)::bigint, (value ->> 2)::float8, (value ->> 3)::bigint
                FROM json_array_elements(%(lanes)s::json) AS value
                WHERE value ->> 0 = wanted.queue
            ) AS lane,
            LATERAL (
                SELECT ctid AS place, queue, priority, run_at, seq FROM {schema}.job
                WHERE state = 'ready' AND grp IS NULL AND queue = wanted.queue
                    AND priority = lane.priority
                    AND run_at <= clock.wall
                    AND (run_at, seq) > (lane.run_at, lane.seq)
                    AND task = ANY (%(tasks)s::text[])
                    AND (%(limit)s::bigint > 0 OR on_crash = 'retry')
                    AND (expires_at > clock.wall OR fence > 0) IS NOT FALSE
                ORDER BY run_at, seq
                LIMIT %(most)s::bigint
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS ready
            LIMIT share
        ) AS lot
        WHERE by_turns IS NOT TRUE
        LIMIT %(most)s::bigint
    ) AS found
),
looked AS MATERIALIZED (
    SELECT extract(epoch FROM clock_timestamp() - clock.began)::float8 AS seconds, them.jobs
    FROM clock, (SELECT count(*) AS jobs FROM picked) AS them
),
-- The worker as it is now, and stays until this ends; not as it was when this began. If limits were set in between
-- (`limit_workers`), this statement has not seen them, and takes nothing. Only with something to take: a lock is a write.
-- Nobody finds out by waiting whether a stranger has locked the row: with %(row_locked)s the lock of `claim_locked` keeps
-- the worker as it is, and was taken before this statement began.
holder AS MATERIALIZED (
    SELECT id FROM {schema}.worker
    WHERE id = %(worker)s AND gone_at IS NULL AND claim_try <= %(try)s::bigint
        AND limits_seen = (SELECT limits_seen FROM enrolled)
        AND EXISTS (SELECT FROM picked)
        AND NOT %(row_locked)s::boolean
    FOR SHARE SKIP LOCKED
),
beside AS MATERIALIZED (
    SELECT id FROM {schema}.worker
    WHERE id = %(worker)s AND gone_at IS NULL AND claim_try <= %(try)s::bigint AND %(row_locked)s::boolean
),
allowed AS (
    SELECT id FROM holder UNION ALL SELECT id FROM beside
),
taken AS (
    UPDATE {schema}.job SET
        state = 'running',
        worker = %(worker)s,
        claim_id = %(claim_id)s,
        fence = fence + 1,
        attempt = attempt + 1,
        lease_until = clock.lease + lease_s,
        claimed_at = clock.wall,
        started = nth <= %(limit)s::bigint,
        progress = NULL,
        note = NULL,
        moved_at = NULL,
        in_steps = NULL
    FROM picked, clock, allowed
    WHERE job.ctid = picked.place AND (nth <= %(limit)s::bigint OR on_crash = 'retry')
    RETURNING {schema}.as_json(job) AS line, nth
)
SELECT
    CASE WHEN EXISTS (SELECT FROM picked) THEN EXISTS (SELECT FROM allowed) ELSE EXISTS (SELECT FROM enrolled) END,
    EXISTS (SELECT FROM given),
    (SELECT seconds FROM looked),
    (SELECT jobs FROM looked),
    (
        SELECT coalesce(json_agg(json_build_array(queue, priority, run_at, seq)), '[]')::text FROM (
            SELECT DISTINCT ON (queue, priority) queue, priority, run_at, seq FROM picked
            ORDER BY queue, priority, run_at DESC, seq DESC
        ) AS last
    ),
    (SELECT '[' || coalesce(string_agg(line::text, ',' ORDER BY nth), '') || ']' FROM taken),
    (SELECT json_agg(queue)::text FROM wanted WHERE by_turns);

-- name: claim_by_turns
-- The migration that brought limits has the function.
SELECT {schema}.claim_by_turns(
    %(worker)s, %(claim_id)s, %(queue)s, %(tasks)s::text[], %(wanted)s, %(started)s, %(first)s, %(try)s, %(row_locked)s,
    %(wall)s, %(lease)s, %(cursors)s::json, %(claim_id)s, %(probes)s, %(spare)s
)::text;

-- name: claim_full
-- Which of these queues have no place free, as far as this statement sees: each would cost a call to find out.
SELECT coalesce(json_agg(queue.name), '[]')::text FROM {schema}.queue AS queue
WHERE queue.name = ANY (%(queues)s::text[]) AND queue.running_max <= (
    SELECT count(*) FROM (
        SELECT FROM {schema}.job AS job WHERE job.state = 'running' AND job.counted AND job.queue = queue.name
        LIMIT queue.running_max
    ) AS places
);

-- name: claim_rows
-- Those of these jobs that the claim has taken, in the order of the ids.
SELECT '[' || coalesce(string_agg({schema}.as_json(job)::text, ',' ORDER BY each.place), '') || ']'
FROM unnest(%(ids)s::text[]) WITH ORDINALITY AS each (id, place)
JOIN {schema}.job AS job ON job.id = each.id AND job.worker = %(worker)s AND job.claim_id = %(claim_id)s;

-- name: claim_locked
-- Comes before a claim of a worker whose row another transaction has locked, in one transaction with it. `retire` and
-- `claim_again` take the same lock alone: each of them comes before the claim, which then sees it, or after.
SELECT pg_advisory_xact_lock_shared(hashtextextended(%(worker)s, 2));

-- name: claim_again
-- Comes before a claim that is sent again because its answer was lost. It waits for tries that the server still works
-- on, and shuts out those that have yet to arrive: the next statement sees all that they took or ever will take.
WITH alone AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended(%(worker)s, 2))
)
UPDATE {schema}.worker SET claim_try = %(try)s
FROM alone WHERE id = %(worker)s AND claim_try < %(try)s;

-- name: claim_answers
SELECT '[' || coalesce(string_agg({schema}.as_json(job)::text, ',' ORDER BY started DESC, queue, priority DESC, run_at, seq), '') || ']'
FROM {schema}.job AS job
WHERE job.state = 'running' AND job.worker = %(worker)s AND job.claim_id = %(claim_id)s;

-- name: beat
-- A lease never gets shorter, and nothing but the current attempt may extend it. A row that another transaction has
-- locked is skipped and said to be: it is neither renewed nor lost. An attempt that settled itself still has its fence
-- on the row: not lost. With %(row_locked)s another transaction has locked the worker's own row: it is left as it is, and
-- its beat noted elsewhere.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall,
        {lease} AS lease
),
enrolled AS (
    UPDATE {schema}.worker AS worker
    SET beats = beats + 1, beat_at = clock.wall, rss_mb = coalesce(%(rss_mb)s::float8, rss_mb),
        stopping = %(stopping)s
    FROM clock
    WHERE worker.id = %(worker)s AND worker.gone_at IS NULL AND NOT %(row_locked)s::boolean
    RETURNING worker.id
),
living AS MATERIALIZED (
    SELECT id FROM enrolled
    UNION ALL
    SELECT id FROM {schema}.worker WHERE id = %(worker)s AND gone_at IS NULL AND %(row_locked)s::boolean
),
noted AS (
    INSERT INTO {schema}.beat_aside (worker, at)
    SELECT living.id, clock.wall FROM living, clock WHERE %(row_locked)s::boolean
    ON CONFLICT (worker) DO UPDATE SET at = excluded.at
),
told AS (
    INSERT INTO {schema}.worker_recent (worker, recent)
    SELECT living.id, %(recent)s::text FROM living WHERE %(recent)s::text IS NOT NULL
    ON CONFLICT (worker) DO UPDATE SET recent = excluded.recent
),
pulse AS MATERIALIZED (
    SELECT value ->> 0 AS id, (value ->> 1)::bigint AS fence, value ->> 2 AS claim_id,
        (value ->> 3)::boolean AS started, (value ->> 4)::float8 AS progress, value ->> 5 AS note, value ->> 6 AS log,
        (value ->> 7)::float8 AS still_s, (value ->> 8)::json AS in_steps, value ->> 9 AS beat_data,
        place
    FROM json_array_elements(%(pulses)s::json) WITH ORDINALITY AS each (value, place)
    WHERE EXISTS (SELECT FROM living)
        AND coalesce(value ->> 0, '') = value ->> 0
),
mine AS MATERIALIZED (
    SELECT job.ctid AS spot, pulse.started, pulse.progress, pulse.note, pulse.log, pulse.still_s, pulse.in_steps,
        pulse.beat_data, pulse.place
    FROM pulse, {schema}.job AS job
    WHERE job.id = pulse.id
        AND job.fence = pulse.fence
        AND job.claim_id = pulse.claim_id
        AND job.state || '' = 'running'
    ORDER BY job.id
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
renewed AS (
    UPDATE {schema}.job AS job SET
        lease_until = greatest(job.lease_until, clock.lease + job.lease_s),
        started = job.started OR mine.started,
        progress = coalesce(mine.progress, job.progress),
        note = coalesce(mine.note, job.note),
        log = coalesce(mine.log, job.log),
        moved_at = coalesce(clock.wall - mine.still_s, job.moved_at),
        in_steps = coalesce(mine.in_steps, job.in_steps),
        beat_data = coalesce(mine.beat_data, job.beat_data)
    FROM mine, clock
    WHERE job.ctid = mine.spot
    RETURNING mine.place
)
SELECT
    EXISTS (SELECT FROM living),
    (
        SELECT coalesce(json_agg(json_build_array(pulse.id, pulse.fence, job.state, job.fence) ORDER BY pulse.place), '[]')::text
        FROM pulse LEFT JOIN {schema}.job AS job ON job.id = pulse.id
        WHERE job.id IS NULL OR job.fence <> pulse.fence OR job.claim_id IS DISTINCT FROM pulse.claim_id
    ),
    (
        SELECT coalesce(json_agg(pulse.id ORDER BY pulse.place), '[]')::text
        FROM pulse JOIN {schema}.job AS job
            ON job.id = pulse.id AND job.fence = pulse.fence AND job.claim_id = pulse.claim_id
            AND job.state || '' = 'running'
        WHERE pulse.place NOT IN (SELECT place FROM renewed)
    ),
    (
        SELECT coalesce(json_agg(job.id ORDER BY job.seq), '[]')::text FROM {schema}.job AS job
        WHERE job.state = 'running' AND job.worker = %(worker)s AND job.cancel_requested
    ),
    (SELECT {order} FROM {schema}.worker WHERE worker.id = %(worker)s);

-- name: settle
-- The only way out of `running`: every conjunct of the WHERE below is a guard, and tests/mutants drops each of them.
-- Leases never get shorter, so one that ends no later than what the reaper saw was not renewed. A row that another
-- transaction has locked is skipped, and is neither in `free` nor in `applied`.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
{allowed},
ending AS MATERIALIZED (
    SELECT value ->> 0 AS id, (value ->> 1)::bigint AS fence, value ->> 2 AS claim_id,
        (value ->> 3)::float8 AS seen_lease_until, (value ->> 4)::boolean AS seen_cancel, value ->> 5 AS state,
        (value ->> 6)::boolean AS ended, (value ->> 7)::float8 AS run_at, value ->> 8 AS error, value ->> 9 AS result,
        (value ->> 10)::integer AS failures, (value ->> 11)::integer AS crashes, (value ->> 12)::integer AS zombies,
        (value ->> 13)::integer AS suspects, (value ->> 14)::boolean AS rolling_back,
        (value ->> 15)::boolean AS cancel_requested, (value ->> 16)::bigint AS priority,
        (value ->> 17)::boolean AS fresh_budgets, (value ->> 18)::boolean AS raises_fence,
        value ->> 19 AS open_step, (value ->> 20)::boolean AS undo_requested, (value ->> 21)::float8 AS wake_at,
        (value ->> 22)::json AS awaits, value ->> 23 AS question, (value ->> 24)::bigint AS inbox,
        value ->> 25 AS seen_open_step, (value ->> 26)::boolean AS seen_undoable,
        (value ->> 27)::float8 AS progress, value ->> 28 AS note, (value ->> 29)::integer AS releases,
        value ->> 30 AS stop_reason, value ->> 31 AS rollback_cause, value ->> 32 AS error_kind,
        value ->> 33 AS fingerprint, value ->> 34 AS release, (value ->> 35)::integer AS wait,
        (value ->> 36)::integer AS run, value ->> 37 AS detector
    FROM jsonb_array_elements(%(endings)s::jsonb) AS value
    WHERE coalesce(value ->> 0, '') = value ->> 0
),
{free},
-- A job for which something came after it had looked (inbox) is judged again. The count is on the row that is locked
-- here, so it is the newest; another table would be read as it was when this began.
applied AS (
    UPDATE {schema}.job AS job SET
        state = ending.state,
        run_at = coalesce(ending.run_at, job.run_at),
        wake_at = ending.wake_at,
        awaits = ending.awaits,
        question = ending.question,
        open_step = nullif(coalesce(ending.open_step, job.open_step), ''),
        undo_requested = coalesce(ending.undo_requested, job.undo_requested),
        error = nullif(coalesce(ending.error, job.error), ''),
        error_kind = CASE WHEN ending.error IS NULL THEN job.error_kind ELSE ending.error_kind END,
        stop_reason = nullif(coalesce(ending.stop_reason, job.stop_reason), ''),
        stop_fence = CASE WHEN ending.stop_reason IS NULL THEN job.stop_fence
            ELSE job.fence + ending.raises_fence::integer END,
        rollback_cause = coalesce(ending.rollback_cause, job.rollback_cause),
        result = coalesce(ending.result, job.result),
        failures = CASE WHEN ending.fresh_budgets THEN 0 ELSE job.failures END + ending.failures,
        crashes = CASE WHEN ending.fresh_budgets THEN 0 ELSE job.crashes END + ending.crashes,
        zombies = job.zombies + ending.zombies,
        releases = ending.releases,
        suspects = coalesce(ending.suspects, job.suspects),
        rolling_back = coalesce(ending.rolling_back, job.rolling_back),
        cancel_requested = coalesce(ending.cancel_requested, job.cancel_requested),
        priority = coalesce(ending.priority, job.priority),
        fence = job.fence + ending.raises_fence::integer,
        claim_id = CASE WHEN ending.raises_fence THEN NULL ELSE job.claim_id END,
        worker = NULL,
        lease_until = NULL,
        started = false,
        progress = coalesce(ending.progress, job.progress),
        note = coalesce(ending.note, job.note),
        ended_at = CASE WHEN ending.ended THEN clock.wall END,
        log = NULL,
        beat_data = NULL,
        release = CASE WHEN ending.fingerprint IS NULL THEN job.release ELSE ending.release END,
        erred_at = CASE WHEN ending.fingerprint IS NULL THEN job.erred_at ELSE clock.wall END,
        fingerprint = coalesce(ending.fingerprint, job.fingerprint)
    FROM free AS ending, clock, allowed
    WHERE job.id = ending.id
        AND (ending.seen_lease_until IS NULL OR job.lease_until <= ending.seen_lease_until)
        AND (ending.state = 'done' OR job.cancel_requested = ending.seen_cancel)
        AND (ending.seen_open_step IS NULL OR coalesce(job.open_step, '') = ending.seen_open_step)
        AND (ending.seen_undoable IS NULL OR job.undoable = ending.seen_undoable)
        AND (ending.inbox IS NULL OR job.inbox = ending.inbox)
        AND allowed.yes
    RETURNING job.id, job.queue, job.priority, job.run_at, job.seq, job.state, ending.ended,
        job.run_at <= clock.wall AS due, ending.state = 'ready' AND ending.run_at IS NULL AS kept,
        ending.wait, ending.run, ending.detector
),
-- Where jobs come back that keep their place, for workers that claim from behind it (claim_cursor.py).
place AS MATERIALIZED (
    SELECT coalesce(json_agg(json_build_array(queue, priority, run_at, seq))::text, '') AS first
    FROM (
        SELECT DISTINCT ON (queue, priority) queue, priority, run_at, seq FROM applied WHERE kept
        ORDER BY queue, priority, run_at, seq
    ) AS lane
),
tallied AS (
    INSERT INTO {schema}.tally (queue, state, jobs)
    SELECT queue, state, count(*) FROM applied WHERE ended GROUP BY queue, state
),
added AS (
    INSERT INTO {schema}.delta (minute, lines)
    SELECT floor(clock.wall / 60), json_agg(json_build_array(queue, state, detector, wait, run, attempts))::text
    FROM clock, (
        SELECT queue, state, detector, wait, run, count(*) AS attempts FROM applied
        GROUP BY queue, state, detector, wait, run
    ) AS line
    GROUP BY clock.wall
),
noted AS (
    INSERT INTO {schema}.journal (job_id, at, kind, fence, worker, actor, detail)
    SELECT value ->> 0, clock.wall, value ->> 1, (value ->> 2)::bigint, value ->> 3, value ->> 4, (value ->> 5)::json
    FROM clock, jsonb_array_elements(%(events)s::jsonb) WITH ORDINALITY AS line (value, place)
    WHERE value ->> 0 IN (SELECT id FROM applied)
    ORDER BY place
),
erred AS (
    INSERT INTO {schema}.error (
        slot, task, fingerprint, release, kind, origin, message, attempts, first_at, last_at, job_id
    )
    SELECT floor(clock.wall / 60), value ->> 1, value ->> 2, value ->> 3, max(value ->> 4), max(value ->> 5),
        max(value ->> 6), count(*), clock.wall, clock.wall, max((value ->> 0) COLLATE "C")
    FROM clock, jsonb_array_elements(%(errors)s::jsonb) AS value
    WHERE value ->> 0 IN (SELECT id FROM applied)
    GROUP BY clock.wall, value ->> 1, value ->> 2, value ->> 3
),
notified AS MATERIALIZED (
    SELECT pg_notify(%(channel)s, CASE WHEN octet_length(place.first) < 7000 THEN place.first ELSE '' END)
    FROM place, (SELECT FROM applied WHERE state = 'ready' AND due LIMIT 1) AS anything
)
SELECT
    (SELECT yes FROM allowed),
    (SELECT coalesce(json_agg(id), '[]')::text FROM applied),
    (SELECT coalesce(json_agg(id), '[]')::text FROM free WHERE id NOT IN (SELECT id FROM applied)),
    (SELECT count(*) FROM notified);

-- name: settle_done
-- The same guards for the plain success, which is most of all endings. As jsonb, each ending is parsed once, not once for
-- each of its values.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
ending AS MATERIALIZED (
    SELECT value ->> 0 AS id, (value ->> 1)::bigint AS fence, value ->> 2 AS claim_id, value ->> 3 AS result,
        (value ->> 4)::float8 AS progress, value ->> 5 AS note, (value ->> 6)::integer AS wait,
        (value ->> 7)::integer AS run
    FROM jsonb_array_elements(%(endings)s::jsonb) AS value
    WHERE coalesce(value ->> 0, '') = value ->> 0
),
{free},
applied AS (
    UPDATE {schema}.job AS job SET
        state = 'done',
        result = coalesce(ending.result, job.result),
        releases = 0,
        worker = NULL,
        lease_until = NULL,
        started = false,
        progress = coalesce(ending.progress, job.progress),
        note = coalesce(ending.note, job.note),
        ended_at = clock.wall,
        log = NULL,
        beat_data = NULL
    FROM free AS ending, clock
    WHERE job.id = ending.id
    RETURNING job.id, job.queue, ending.wait, ending.run
),
tallied AS (
    INSERT INTO {schema}.tally (queue, state, jobs)
    SELECT queue, 'done', count(*) FROM applied GROUP BY queue
),
added AS (
    INSERT INTO {schema}.delta (minute, lines)
    SELECT floor(clock.wall / 60), json_agg(json_build_array(queue, 'done', '', wait, run, attempts))::text
    FROM clock, (SELECT queue, wait, run, count(*) AS attempts FROM applied GROUP BY queue, wait, run) AS line
    GROUP BY clock.wall
)
SELECT true, CASE WHEN count(*) = %(many)s THEN NULL ELSE coalesce(json_agg(id), '[]')::text END, '[]', 0 FROM applied;

-- name: settle_seen
-- What stands in the way of each settlement that was not applied, and whether this very ending was accepted before and
-- the job has moved on since: then the journal knows the fence.
SELECT coalesce(json_agg(json_build_array(
    job.fence = token.fence AND job.claim_id IS NOT DISTINCT FROM token.claim_id,
    job.state, job.fence, coalesce(job.lease_until > token.seen_lease_until, false),
    EXISTS (
        SELECT FROM {schema}.journal AS line
        WHERE line.job_id = token.id AND line.fence = token.fence AND line.kind = token.kind
            AND line.detail::text = token.detail
    )
) ORDER BY token.place), '[]')::text
FROM (
    SELECT value ->> 0 AS id, (value ->> 1)::bigint AS fence, value ->> 2 AS claim_id, value ->> 3 AS kind,
        value ->> 4 AS detail, (value ->> 5)::float8 AS seen_lease_until, place
    FROM json_array_elements(%(tokens)s::json) WITH ORDINALITY AS each (value, place)
) AS token
LEFT JOIN {schema}.job AS job ON job.id = token.id;

-- name: settle_journal
-- The second look of a zombie finds its stale_report already there.
INSERT INTO {schema}.journal (job_id, at, kind, fence, worker, actor, detail)
SELECT value ->> 0, {wall},
    value ->> 1, (value ->> 2)::bigint, value ->> 3, value ->> 4, (value ->> 5)::json
FROM json_array_elements(%(events)s::json) WITH ORDINALITY AS line (value, place)
ORDER BY place
ON CONFLICT DO NOTHING;

-- name: settle_fold
-- Many small numbers become one for each queue and state; their sum stays the same in every snapshot.
WITH small AS (
    DELETE FROM {schema}.tally WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM {schema}.tally LIMIT 10000 FOR UPDATE SKIP LOCKED
    ))
    RETURNING queue, state, jobs, ended
)
INSERT INTO {schema}.tally (queue, state, jobs, ended)
SELECT queue, state, sum(jobs), sum(coalesce(ended, greatest(jobs, 0))) FROM small GROUP BY queue, state;

-- name: settle_fold_errors
-- The lines of minutes that are over become one for each error and release; old ones go.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
old AS (
    DELETE FROM {schema}.error AS error USING clock WHERE error.slot < floor((clock.wall - %(kept_s)s::float8) / 60)
),
small AS (
    DELETE FROM {schema}.error AS error WHERE error.ctid = ANY (ARRAY(
        SELECT each.ctid FROM clock, {schema}.error AS each
        WHERE NOT each.folded AND each.slot < floor(clock.wall / 60)
            AND each.slot >= floor((clock.wall - %(kept_s)s::float8) / 60)
        ORDER BY each.slot
        LIMIT 10000 FOR UPDATE OF each SKIP LOCKED
    ))
    RETURNING error.*
)
INSERT INTO {schema}.error (
    slot, task, fingerprint, release, kind, origin, message, attempts, first_at, last_at, job_id, folded
)
SELECT slot, task, fingerprint, release, max(kind), max(origin), max(message), sum(attempts), min(first_at), max(last_at),
    (array_agg(job_id ORDER BY last_at DESC, job_id DESC))[1], true
FROM small GROUP BY slot, task, fingerprint, release;

-- name: settle_fold_crashes
-- The lines of minutes that are over become one for each minute and kind of loss.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
small AS (
    DELETE FROM {schema}.crash AS crash WHERE crash.ctid = ANY (ARRAY(
        SELECT each.ctid FROM clock, {schema}.crash AS each
        WHERE NOT each.folded AND each.slot < floor(clock.wall / 60)
        LIMIT 10000 FOR UPDATE OF each SKIP LOCKED
    ))
    RETURNING crash.*
)
INSERT INTO {schema}.crash (slot, kind, task, queue, detector, decision, attempts, folded)
SELECT slot, kind, task, queue, detector, decision, sum(attempts), true
FROM small GROUP BY slot, kind, task, queue, detector, decision;

-- name: transaction
-- The mark lives as long as the transaction: after a commit by hand it is gone. So do the two limits, for a worker that
-- is frozen or cut off and cannot end it.
SELECT
    set_config('holdfast.transaction', %(mark)s, true),
    set_config('client_encoding', 'UTF8', true),
    set_config('statement_timeout', %(server_ms)s, true),
    set_config('idle_in_transaction_session_timeout', %(server_ms)s, true)
FROM {schema}.job
WHERE id = %(id)s AND fence = %(fence)s AND claim_id = %(claim_id)s AND state = 'running';

-- name: transaction_mark
-- Also locks what the settlement will change, which skips rows that others have locked: a beat that is under way must
-- not undo the caller's writes.
WITH limits AS MATERIALIZED (
    SELECT set_config('lock_timeout', %(lock_ms)s, true) AS lock_timeout
),
locked AS MATERIALIZED (
    SELECT job.id FROM limits, {schema}.job AS job
    WHERE job.id = ANY (ARRAY[%(id)s, (SELECT parent FROM {schema}.job WHERE id = %(id)s)])
    ORDER BY job.id
    FOR NO KEY UPDATE OF job
)
SELECT current_setting('holdfast.transaction', true), (SELECT count(*) FROM locked);

-- name: transaction_reset
-- Whatever the last task has set, listened to, prepared, locked or put into temporary tables.
DISCARD ALL;

-- name: record
-- The rows of the leases that are the current ones are locked, so that nobody ends these attempts meanwhile; every
-- conjunct of `mine` is a guard. A row that another transaction has locked is skipped. A step that is recorded does not
-- change any more, unless it is undone.
WITH token AS MATERIALIZED (
    SELECT value ->> 0 AS id, (value ->> 1)::bigint AS fence, value ->> 2 AS claim_id, place - 1 AS place
    FROM json_array_elements(%(tokens)s::json) WITH ORDINALITY AS each (value, place)
    WHERE coalesce(value ->> 0, '') = value ->> 0
),
mine AS MATERIALIZED (
    SELECT token.place, job.id
    FROM token, {schema}.job AS job
    WHERE job.id = token.id
        AND job.fence = token.fence
        AND job.claim_id = token.claim_id
        AND job.state || '' = 'running'
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
written AS (
    INSERT INTO {schema}.step AS step (
        job_id, position, path, kind, name, state, attempt, fence, has_undo, repeatable,
        arguments, result, error, error_kind, started_at, ended_at, aside, undone_at, tries, retry_at
    )
    SELECT
        value ->> 0, (value ->> 1)::bigint, value ->> 2, value ->> 3, value ->> 4, value ->> 5, (value ->> 6)::integer,
        (value ->> 7)::bigint, (value ->> 8)::boolean, (value ->> 9)::boolean, value ->> 10, value ->> 11, value ->> 12,
        value ->> 13, (value ->> 14)::float8, (value ->> 15)::float8, (value ->> 16)::bigint,
        (value ->> 17)::float8, (value ->> 18)::integer, (value ->> 19)::float8
    FROM json_array_elements(%(steps)s::json) AS value
    WHERE (value ->> 20)::bigint IN (SELECT place FROM mine)
    ON CONFLICT (job_id, aside, position) DO UPDATE SET
        state = excluded.state,
        attempt = excluded.attempt,
        fence = excluded.fence,
        has_undo = CASE WHEN step.state = 'started' THEN excluded.has_undo ELSE step.has_undo END,
        repeatable = CASE WHEN step.state = 'started' THEN excluded.repeatable ELSE step.repeatable END,
        arguments = CASE WHEN step.state = 'started' THEN excluded.arguments ELSE step.arguments END,
        result = CASE WHEN step.state = 'started' THEN excluded.result ELSE step.result END,
        error = CASE WHEN step.state = 'started' THEN excluded.error ELSE step.error END,
        error_kind = CASE WHEN step.state = 'started' THEN excluded.error_kind ELSE step.error_kind END,
        started_at = CASE WHEN step.state = 'started' THEN excluded.started_at ELSE step.started_at END,
        ended_at = excluded.ended_at,
        undone_at = excluded.undone_at,
        tries = CASE WHEN step.state = 'started' THEN excluded.tries ELSE step.tries END,
        retry_at = CASE WHEN step.state = 'started' THEN excluded.retry_at ELSE step.retry_at END
    WHERE step.state = 'started' OR (step.state = 'recorded' AND excluded.state = 'undone')
),
notified AS (
    UPDATE {schema}.job AS job SET
        open_step = nullif(coalesce(value ->> 1, job.open_step), ''),
        undoable = job.undoable OR (value ->> 2)::boolean
    FROM json_array_elements(%(facts)s::json) AS value
    WHERE job.id = value ->> 0 AND job.id IN (SELECT id FROM mine)
),
taken AS (
    UPDATE {schema}.signal AS signal SET taken = (take.line ->> 1)::bigint
    FROM json_array_elements(%(taken)s::json) AS take (line)
    WHERE signal.id = take.line ->> 2  -- by this index alone: a workflow may have very many signals
        AND signal.job_id || '' = take.line ->> 0
        AND signal.taken IS NULL
        AND signal.job_id || '' IN (SELECT id FROM mine)
)
SELECT coalesce(json_agg(place), '[]')::text FROM mine;

-- name: record_limit
-- A child's key may belong to a transaction that is still open: do not wait long for it.
SELECT set_config('lock_timeout', %(lock_ms)s, true);

-- name: record_child
-- The job that has the id of a child, if it is this very child. Every conjunct is a guard.
SELECT 1 FROM {schema}.job WHERE id = %(id)s AND parent IS NOT DISTINCT FROM %(parent)s AND task = %(task)s;

-- name: record_seen
-- What stands on the rows of leases that are not the current ones.
SELECT coalesce(json_agg(json_build_array(
    job.fence = (value ->> 1)::bigint AND job.claim_id IS NOT DISTINCT FROM value ->> 2, job.state, job.fence
) ORDER BY place), '[]')::text
FROM json_array_elements(%(tokens)s::json) WITH ORDINALITY AS token (value, place)
LEFT JOIN {schema}.job AS job ON job.id = value ->> 0;

-- name: steps
SELECT coalesce(json_agg(json_build_array(
    position, path, kind, name, state, attempt, fence, has_undo, repeatable,
    arguments, result, error, error_kind, started_at, ended_at, aside, undone_at, tries, retry_at
) ORDER BY position, aside), '[]')::text FROM (
    SELECT * FROM {schema}.step
    WHERE job_id = %(id)s AND position > %(after)s AND (aside = 0 OR %(aside)s)
    ORDER BY position, aside
    LIMIT %(limit)s::bigint
) AS page;

-- name: signal
-- Something came for a workflow. It is woken if it awaits that; if it is about to wait, it will see the higher count.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
known AS MATERIALIZED (
    SELECT id FROM {schema}.signal WHERE id = %(signal)s AND job_id = %(id)s
),
reached AS (
    UPDATE {schema}.job AS job SET
        inbox = job.inbox + 1,
        state = CASE WHEN {schema}.awaits(job, ARRAY[%(what)s::text]) THEN 'ready' ELSE job.state END,
        run_at = CASE WHEN {schema}.awaits(job, ARRAY[%(what)s::text]) THEN clock.wall ELSE job.run_at END,
        wake_at = CASE WHEN {schema}.awaits(job, ARRAY[%(what)s::text]) THEN NULL ELSE job.wake_at END,
        question = CASE WHEN {schema}.awaits(job, ARRAY[%(what)s::text]) THEN NULL ELSE job.question END,
        awaits = CASE WHEN {schema}.awaits(job, ARRAY[%(what)s::text]) THEN NULL ELSE job.awaits END
    FROM clock
    WHERE job.id = %(id)s
        AND job.workflow
        AND job.state || '' IN ('ready', 'running', 'waiting', 'held')
        AND NOT EXISTS (SELECT FROM known)
        AND (
            %(seen_fence)s::bigint IS NULL
            OR job.fence = %(seen_fence)s::bigint AND {schema}.awaits(job, ARRAY[%(what)s::text])
        )
    RETURNING job.id, job.fence, job.state
),
stored AS (
    INSERT INTO {schema}.signal (id, job_id, name, value, actor, sent_at)
    SELECT %(signal)s, reached.id, %(name)s, %(value)s, %(actor)s, clock.wall FROM reached, clock
),
noted AS (
    INSERT INTO {schema}.journal (job_id, at, kind, fence, actor, detail)
    SELECT reached.id, clock.wall, 'signalled', reached.fence, %(actor)s, %(detail)s::json FROM reached, clock
),
notified AS MATERIALIZED (
    SELECT pg_notify(%(channel)s, '') FROM reached WHERE state = 'ready'
)
SELECT EXISTS (SELECT FROM known), EXISTS (SELECT FROM reached), (SELECT count(*) FROM notified);

-- name: signal_parents
-- The same for children that have ended: [parent, what] each. Several may be of one parent.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
news AS MATERIALIZED (
    SELECT value ->> 0 AS id, count(*) AS many, array_agg(value ->> 1) AS things
    FROM json_array_elements(%(news)s::json) AS value
    GROUP BY value ->> 0
),
reached AS (
    UPDATE {schema}.job AS job SET
        inbox = job.inbox + news.many,
        state = CASE WHEN {schema}.awaits(job, news.things) THEN 'ready' ELSE job.state END,
        run_at = CASE WHEN {schema}.awaits(job, news.things) THEN clock.wall ELSE job.run_at END,
        wake_at = CASE WHEN {schema}.awaits(job, news.things) THEN NULL ELSE job.wake_at END,
        question = CASE WHEN {schema}.awaits(job, news.things) THEN NULL ELSE job.question END,
        awaits = CASE WHEN {schema}.awaits(job, news.things) THEN NULL ELSE job.awaits END
    FROM news, clock
    WHERE job.id = news.id
        AND job.workflow
        AND job.state || '' IN ('ready', 'running', 'waiting', 'held')
    RETURNING job.state
),
notified AS MATERIALIZED (
    SELECT pg_notify(%(channel)s, '') FROM (SELECT FROM reached WHERE state = 'ready' LIMIT 1) AS anything
)
SELECT count(*) FROM notified;

-- name: inbox
SELECT job.inbox, (
    SELECT coalesce(json_agg(json_build_array(id, job_id, name, value, actor, sent_at) ORDER BY seq), '[]')::text
    FROM (
        SELECT * FROM {schema}.signal
        WHERE job_id = job.id AND taken IS NULL AND (%(name)s::text IS NULL OR name = %(name)s::text)
        ORDER BY seq
        LIMIT %(limit)s
    ) AS waiting
)
FROM {schema}.job AS job WHERE job.id = %(id)s;

-- name: wake_due
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
due AS MATERIALIZED (
    SELECT job.ctid AS spot FROM {schema}.job AS job
    WHERE job.state = 'waiting' AND job.wake_at IS NOT NULL AND job.wake_at <= (SELECT wall FROM clock)
    ORDER BY job.wake_at
    LIMIT %(limit)s::bigint
    FOR NO KEY UPDATE SKIP LOCKED
),
woken AS (
    UPDATE {schema}.job AS job SET state = 'ready', run_at = clock.wall, wake_at = NULL, awaits = NULL, question = NULL
    FROM due, clock
    WHERE job.ctid = due.spot
    RETURNING job.id
),
notified AS MATERIALIZED (
    SELECT pg_notify(%(channel)s, '') FROM (SELECT FROM woken LIMIT 1) AS anything
)
SELECT (
    SELECT job.wake_at FROM {schema}.job AS job
    WHERE job.state = 'waiting' AND job.wake_at IS NOT NULL AND job.ctid NOT IN (SELECT spot FROM due)
    ORDER BY job.wake_at
    LIMIT 1
), (SELECT count(*) FROM notified);

-- name: expired
SELECT '[' || coalesce(string_agg({schema}.as_json(job)::text, ',' ORDER BY job.expires_at), '') || ']' FROM (
    SELECT * FROM {schema}.job AS job
    WHERE job.state = 'ready' AND job.fence = 0 AND job.expires_at <= (SELECT {wall})
    ORDER BY job.expires_at
    LIMIT %(limit)s::bigint
) AS job;

-- name: dependents
-- Of a job that was never claimed, `awaits` names the jobs that it runs after.
SELECT coalesce(json_agg(found.line ORDER BY found.id), '[]')::text FROM (
    {dependent}
    ORDER BY job.id
    LIMIT %(limit)s::bigint
) AS found;

-- name: dependents_on
SELECT coalesce(json_agg(found.line ORDER BY found.id), '[]')::text FROM (
    {dependent}
        AND job.awaits::jsonb ?| %(on)s::text[]
    ORDER BY job.id
    LIMIT %(limit)s::bigint
) AS found;

-- name: due_waits
SELECT coalesce(json_agg(json_build_array(queue, task, jobs, since) ORDER BY queue, task), '[]')::text FROM (
    SELECT queue, task, count(*) AS jobs, min(wake_at) AS since FROM (
        SELECT queue, task, wake_at FROM {schema}.job
        WHERE state = 'waiting'
            AND wake_at <= (SELECT {wall})
        ORDER BY wake_at
        LIMIT 1000
    ) AS few
    GROUP BY queue, task
) AS counted;

-- name: fork_source
-- A row: the one that is copied is as it was seen, or the copy was made before. It stays so until the copy is made.
SELECT id FROM {schema}.job
WHERE id = %(source)s AND fence = %(seen_fence)s AND state IN ('done', 'dead', 'cancelled', 'rolled_back')
    OR id = %(id)s
FOR SHARE;

-- name: fork
-- What the copied steps did belongs to the workflow that did it: they have no undo here.
INSERT INTO {schema}.step (
    job_id, position, path, kind, name, state, attempt, fence, has_undo, repeatable,
    arguments, result, error, error_kind, started_at, ended_at, aside, undone_at, tries, retry_at
)
SELECT %(id)s, position, path, kind, name, state, 0, 0, false, repeatable,
    arguments, result, error, error_kind, started_at, ended_at, 0, NULL, tries, retry_at
FROM {schema}.step
WHERE job_id = %(source)s AND aside = 0 AND position < %(before)s AND state = 'recorded';

-- name: overdue
-- The ends of the leases come bit by bit as well, because `settle` compares them: how many digits of a float are
-- written is a setting of the session. Only the rows of the page are written as JSON, not those before it.
SELECT '[' || coalesce(string_agg({schema}.as_json(job)::text, ',' ORDER BY lease_until, seq), '') || ']',
    coalesce(json_agg(json_build_array(id, encode(float8send(lease_until), 'hex'))), '[]')::text
FROM (
    SELECT job, job.id, job.lease_until, job.seq
    FROM {schema}.job AS job, (
        SELECT {lease} - %(grace)s AS latest
        OFFSET 0
    ) AS clock
    WHERE job.state = 'running' AND job.lease_until <= clock.latest
    ORDER BY job.lease_until, job.seq
    LIMIT %(limit)s::bigint OFFSET %(skip)s
) AS late;

-- name: locked
-- Locks these rows for the rest of the transaction, and waits for none: returns the ids of those that another
-- transaction has locked. By itself it is its own transaction, and locks nothing for longer. Before rows of several
-- jobs are changed, all of them are locked so.
WITH mine AS MATERIALIZED (
    SELECT id FROM {schema}.job WHERE id = ANY (%(ids)s::text[]) FOR NO KEY UPDATE SKIP LOCKED
)
SELECT coalesce(json_agg(id), '[]')::text FROM {schema}.job
WHERE id = ANY (%(ids)s::text[]) AND id NOT IN (SELECT id FROM mine);

-- name: ghosts
-- The overdue holders of places of these queues; the ends of the leases as in `overdue`.
SELECT '[' || coalesce(string_agg({schema}.as_json(job)::text, ',' ORDER BY lease_until, seq), '') || ']',
    coalesce(json_agg(json_build_array(id, encode(float8send(lease_until), 'hex'))), '[]')::text
FROM (
    SELECT job, job.id, job.lease_until, job.seq
    FROM {schema}.job AS job, (
        SELECT {lease} AS latest
        OFFSET 0
    ) AS clock
    WHERE job.state = 'running' AND job.lease_until <= clock.latest AND job.queue = ANY (%(queues)s::text[])
    ORDER BY job.lease_until, job.seq
    LIMIT %(limit)s::bigint
) AS late;

-- name: deadline
SELECT min(lease_until) FROM {schema}.job WHERE state = 'running';

-- name: stands_by
-- What a process that stands by must know, on the session that holds its locks. It asks for the roles that it wants, if
-- they are free. Like `ping` it asks for the lock that every change of a job takes.
WITH pinged AS (
    UPDATE {schema}.job SET fence = fence WHERE false
)
SELECT
    {schema}.server(),
    CASE WHEN %(dead)s::boolean THEN pg_try_advisory_lock(hashtextextended(%(name)s, 1)) END,
    CASE WHEN has_sequence_privilege('{schema}.dead_looks'::regclass, 'SELECT, USAGE')
        THEN coalesce(pg_sequence_last_value('{schema}.dead_looks'::regclass), 0) END,
    CASE WHEN %(due)s::boolean THEN pg_try_advisory_lock(hashtextextended(%(name)s, 2)) END,
    CASE WHEN has_sequence_privilege('{schema}.due_looks'::regclass, 'SELECT, USAGE')
        THEN coalesce(pg_sequence_last_value('{schema}.due_looks'::regclass), 0) END,
    (SELECT min(lease_until) FROM {schema}.job WHERE state = 'running'),
    extract(epoch FROM clock_timestamp())::float8,
    count(*)::float8,
    (count(*) FILTER (WHERE id < %(worker)s))::float8
FROM {schema}.worker WHERE gone_at IS NULL;

-- name: stands_by_end
-- Gives the roles up. No lock of a worker is left on the session.
SELECT pg_advisory_unlock_all();

-- name: stops_waking
-- Gives up the role of the one that looks for what is due.
SELECT pg_advisory_unlock(hashtextextended(%(name)s, 2));

-- name: vanished
-- The workers not yet gone whose liveness lock is free, if we are the one who looks; and the gone ones that still hold
-- leases. A free lock means something only on the server that it was taken on. Looking never takes a lock. A process
-- that %(does)s the chore raises the number of looks, so that others see it.
WITH held AS MATERIALIZED (
    SELECT (classid::bigint << 32) | objid::bigint AS lock FROM pg_locks
    WHERE %(watch)s AND locktype = 'advisory' AND objsubid = 1 AND granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
),
dead AS MATERIALIZED (
    SELECT worker.* FROM {schema}.worker AS worker
    WHERE worker.gone_at IS NULL AND %(watch)s
        AND worker.server = {schema}.server()
        AND hashtextextended(worker.id, 0) NOT IN (SELECT lock FROM held)
    UNION ALL
    SELECT worker.* FROM {schema}.worker AS worker
    WHERE worker.gone_at IS NOT NULL
        AND EXISTS (SELECT FROM {schema}.job AS job WHERE job.state = 'running' AND job.worker = worker.id)
)
SELECT coalesce(json_agg(json_build_array(
    id, name, host, pid, boot_id, supervisor, queues::text, slots, beat_s, version, started_at,
    greatest(beat_at, (SELECT at FROM {schema}.beat_aside WHERE beat_aside.worker = dead.id)), beats,
    (SELECT count(*) FROM {schema}.job AS job WHERE job.state = 'running' AND job.worker = dead.id),
    rss_mb, gone_at, gone_cause, exit_kind, exit_code, exit_excused, stopping, release, NULL, NULL
) ORDER BY started_at, id), '[]')::text, (
    SELECT nextval('{schema}.dead_looks')
    WHERE %(does)s::boolean
        AND has_sequence_privilege('{schema}.dead_looks'::regclass, 'USAGE')
        AND current_setting('transaction_read_only') = 'off'
)
FROM dead;

-- name: enroll_lock
-- Own session, and not through a pooler: the server's process is the one that the driver was told at the start. A lock
-- that was taken in a session of a pooler would stay there.
SELECT CASE WHEN pg_backend_pid() = %(told)s THEN pg_try_advisory_lock(hashtextextended(%(id)s, 0)) END,
    {schema}.server();

-- name: enroll_unlock
SELECT pg_advisory_unlock(hashtextextended(%(id)s, 0));

-- name: enroll_again
UPDATE {schema}.worker SET server = %(server)s WHERE id = %(id)s AND gone_at IS NULL;

-- name: enroll
WITH worker AS (
    INSERT INTO {schema}.worker (
        id, name, host, pid, boot_id, supervisor, queues, slots, beat_s, version, schema, started_at, beat_at, server,
        release
    )
    SELECT %(id)s, %(name)s, %(host)s, %(pid)s, %(boot_id)s, %(supervisor)s, %(queues)s::json, %(slots)s, %(beat_s)s,
        %(version)s, %(schema)s, clock.wall, clock.wall, %(server)s, %(release)s
    -- A worker whose row comes while limits are set begins to claim when they are in force (`limit_alone`).
    FROM (SELECT {wall} AS wall, pg_advisory_xact_lock_shared(hashtextextended('limits', 3)) AS alone OFFSET 0) AS clock
    RETURNING id
)
INSERT INTO {schema}.published (worker, tasks)
SELECT id, %(tasks)s::json FROM worker WHERE %(tasks)s::json IS NOT NULL;

-- name: retire
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
{allowed},
-- No claim of it is at work beside a locked row (`claim_locked`).
alone AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended(%(worker)s, 2))
),
marked AS (
    UPDATE {schema}.worker AS worker SET gone_at = clock.wall, gone_cause = %(gone_cause)s, exit_kind = %(exit_kind)s,
        exit_code = %(exit_code)s, exit_excused = %(exit_excused)s
    FROM clock, allowed, alone
    WHERE worker.id = %(worker)s AND worker.gone_at IS NULL AND allowed.yes
    RETURNING worker.id
),
old AS MATERIALIZED (
    SELECT worker.id FROM clock, {schema}.worker AS worker
    WHERE worker.gone_at < clock.wall - %(kept_s)s::float8
        AND NOT EXISTS (SELECT FROM {schema}.job AS job WHERE job.state = 'running' AND job.worker = worker.id)
    FOR UPDATE OF worker SKIP LOCKED
),
forgotten AS (
    DELETE FROM {schema}.worker AS worker USING old, allowed
    WHERE worker.id = old.id AND allowed.yes
    RETURNING worker.id
),
silenced AS (
    DELETE FROM {schema}.beat_aside WHERE worker IN (SELECT id FROM forgotten)
),
unsaid AS (
    DELETE FROM {schema}.worker_recent WHERE worker IN (SELECT id FROM forgotten)
),
removed AS (
    UPDATE {schema}.meta SET value = (value::bigint + 1)::text
    WHERE name = 'removals' AND EXISTS (SELECT FROM forgotten)
)
SELECT (SELECT yes FROM allowed), EXISTS (SELECT FROM marked);

-- name: acquire
INSERT INTO {schema}.duty AS duty (name, holder, term, until)
SELECT %(name)s, %(holder)s, 1, clock.lease + %(ttl)s
FROM (SELECT {lease} AS lease) AS clock
ON CONFLICT (name) DO UPDATE SET
    term = duty.term + (duty.holder IS DISTINCT FROM excluded.holder)::integer,
    holder = excluded.holder,
    until = excluded.until,
    note = CASE WHEN duty.holder = excluded.holder THEN coalesce(%(note)s::text, duty.note) ELSE duty.note END
WHERE duty.holder IS NULL
    OR duty.holder = excluded.holder
    OR duty.until <= excluded.until - %(ttl)s
RETURNING term, until, note;

-- name: resign
UPDATE {schema}.duty SET holder = NULL, note = coalesce(%(note)s, note)
WHERE name = %(name)s AND holder = %(holder)s AND term = %(term)s;

-- name: duties
SELECT coalesce(json_agg(
    json_build_array(name, coalesce(holder, ''), term, until, note) ORDER BY name COLLATE "C"
), '[]')::text
FROM {schema}.duty;

-- name: move
-- The operator's door: compare-and-set on the state and the fence that the person saw. A row that another transaction
-- has locked is skipped: it is as the person saw it, and not in `free`. A key that another live job has, or that an
-- earlier one of these gets, is taken; who stores a job with that key just now is waited for.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
act AS MATERIALIZED (
    SELECT value ->> 0 AS id, value ->> 1 AS seen_state, (value ->> 2)::bigint AS seen_fence, value ->> 3 AS state,
        (value ->> 4)::boolean AS ended, (value ->> 5)::boolean AS comes_alive, (value ->> 6)::float8 AS run_at,
        value ->> 7 AS error, value ->> 8 AS stop_reason, value ->> 9 AS rollback_cause, value ->> 10 AS result,
        (value ->> 11)::boolean AS rolling_back, (value ->> 12)::boolean AS cancel_requested,
        (value ->> 13)::boolean AS undo_requested, value ->> 14 AS open_step, (value ->> 15)::bigint AS priority,
        (value ->> 16)::boolean AS fresh_budgets, (value ->> 17)::boolean AS raises_fence,
        value ->> 18 AS queue, place
    FROM jsonb_array_elements(%(moves)s::jsonb) WITH ORDINALITY AS each (value, place)
),
free AS MATERIALIZED (
    SELECT act.*, job.key FROM act, {schema}.job AS job
    WHERE job.id = act.id AND job.state || '' = act.seen_state AND job.fence = act.seen_fence
    FOR NO KEY UPDATE OF job SKIP LOCKED
),
taken AS MATERIALIZED (
    SELECT id FROM (
        SELECT id, key, row_number() OVER (PARTITION BY key ORDER BY place) AS turn FROM free
        WHERE comes_alive AND key IS NOT NULL
    ) AS wanted
    WHERE turn > 1 OR EXISTS (
        SELECT FROM {schema}.job AS other
        WHERE other.key = wanted.key AND other.state IN ('ready', 'running', 'waiting', 'held')
    )
),
moved AS (
    UPDATE {schema}.job AS job SET
        state = act.state,
        run_at = coalesce(act.run_at, job.run_at),
        error = nullif(coalesce(act.error, job.error), ''),
        error_kind = CASE WHEN act.error IS NULL THEN job.error_kind END,
        stop_reason = nullif(coalesce(act.stop_reason, job.stop_reason), ''),
        rollback_cause = coalesce(act.rollback_cause, job.rollback_cause),
        result = coalesce(act.result, job.result),
        failures = CASE WHEN act.fresh_budgets THEN 0 ELSE job.failures END,
        crashes = CASE WHEN act.fresh_budgets THEN 0 ELSE job.crashes END,
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
        fence = job.fence + act.raises_fence::integer,
        claim_id = CASE WHEN act.raises_fence THEN NULL ELSE job.claim_id END,
        ended_at = CASE WHEN act.ended THEN clock.wall END
    FROM free AS act, clock
    WHERE job.id = act.id AND act.id NOT IN (SELECT id FROM taken)
    RETURNING job.id, job.queue, job.state, job.parent, act.seen_state, act.ended
),
tallied AS (
    INSERT INTO {schema}.tally (queue, state, jobs)
    SELECT queue, state, sum(jobs) FROM (
        SELECT queue, seen_state AS state, -1 AS jobs FROM moved
        UNION ALL
        SELECT queue, state, 1 FROM moved
    ) AS change
    WHERE state IN ('done', 'dead', 'cancelled', 'rolled_back')
    GROUP BY queue, state
),
noted AS (
    INSERT INTO {schema}.journal (job_id, at, kind, fence, worker, actor, detail)
    SELECT value ->> 0, clock.wall, value ->> 1, (value ->> 2)::bigint, value ->> 3, value ->> 4, (value ->> 5)::json
    FROM clock, jsonb_array_elements(%(events)s::jsonb) WITH ORDINALITY AS line (value, place)
    WHERE value ->> 0 IN (SELECT id FROM moved)
    ORDER BY place
),
notified AS MATERIALIZED (
    SELECT pg_notify(%(channel)s, '') FROM (SELECT FROM moved LIMIT 1) AS anything
)
SELECT
    (SELECT coalesce(json_agg(id), '[]')::text FROM moved),
    (SELECT coalesce(json_agg(json_build_array(parent, id)), '[]')::text FROM moved WHERE ended AND parent IS NOT NULL),
    (SELECT coalesce(json_agg(id), '[]')::text FROM taken),
    (
        SELECT coalesce(json_agg(act.id), '[]')::text FROM act, {schema}.job AS job
        WHERE job.id = act.id AND job.state || '' = act.seen_state AND job.fence = act.seen_fence
            AND act.id NOT IN (SELECT id FROM free)
    ),
    (SELECT count(*) FROM notified);

-- name: move_lock
-- Locks these jobs and their parents for the rest of the transaction, and waits for none. Returns the ids of those jobs
-- of which another transaction has locked the row, or that of the parent.
WITH family AS MATERIALIZED (
    SELECT id, parent FROM {schema}.job WHERE id = ANY (%(ids)s::text[])
),
mine AS MATERIALIZED (
    SELECT id FROM {schema}.job
    WHERE id IN (SELECT id FROM family UNION SELECT parent FROM family)
    FOR NO KEY UPDATE SKIP LOCKED
)
SELECT coalesce(json_agg(family.id), '[]')::text FROM family, {schema}.job AS one
WHERE one.id IN (family.id, family.parent) AND one.id NOT IN (SELECT id FROM mine);

-- name: move_grouped
-- As `add_grouped`, for the queues that jobs with a group are to come to.
WITH kept AS (
    INSERT INTO {schema}.queue (name, grouped, by_turns)
    SELECT name, true, true FROM (
        SELECT DISTINCT wanted.value AS name
        FROM {schema}.job AS job, json_each_text(%(queues)s::json) AS wanted (id, value)
        WHERE job.id = wanted.id AND job.grp IS NOT NULL
    ) AS found
    ORDER BY name
    ON CONFLICT (name) DO UPDATE SET grouped = true, by_turns = true
)
SELECT pg_notify(%(channel)s, '');

-- name: move_steps
-- What a person says of steps, written as in `record`: a test compares the two. One statement for both would have to
-- let who has no lease pass the guards there.
INSERT INTO {schema}.step AS step (
    job_id, position, path, kind, name, state, attempt, fence, has_undo, repeatable,
    arguments, result, error, error_kind, started_at, ended_at, aside, undone_at, tries, retry_at
)
SELECT
    value ->> 0, (value ->> 1)::bigint, value ->> 2, value ->> 3, value ->> 4, value ->> 5, (value ->> 6)::integer,
    (value ->> 7)::bigint, (value ->> 8)::boolean, (value ->> 9)::boolean, value ->> 10, value ->> 11, value ->> 12,
    value ->> 13, (value ->> 14)::float8, (value ->> 15)::float8, (value ->> 16)::bigint,
    (value ->> 17)::float8, (value ->> 18)::integer, (value ->> 19)::float8
FROM json_array_elements(%(steps)s::json) AS value
ON CONFLICT (job_id, aside, position) DO UPDATE SET
    state = excluded.state,
    attempt = excluded.attempt,
    fence = excluded.fence,
    has_undo = CASE WHEN step.state = 'started' THEN excluded.has_undo ELSE step.has_undo END,
    repeatable = CASE WHEN step.state = 'started' THEN excluded.repeatable ELSE step.repeatable END,
    arguments = CASE WHEN step.state = 'started' THEN excluded.arguments ELSE step.arguments END,
    result = CASE WHEN step.state = 'started' THEN excluded.result ELSE step.result END,
    error = CASE WHEN step.state = 'started' THEN excluded.error ELSE step.error END,
    error_kind = CASE WHEN step.state = 'started' THEN excluded.error_kind ELSE step.error_kind END,
    started_at = CASE WHEN step.state = 'started' THEN excluded.started_at ELSE step.started_at END,
    ended_at = excluded.ended_at,
    undone_at = excluded.undone_at,
    tries = CASE WHEN step.state = 'started' THEN excluded.tries ELSE step.tries END,
    retry_at = CASE WHEN step.state = 'started' THEN excluded.retry_at ELSE step.retry_at END
WHERE step.state = 'started' OR (step.state = 'recorded' AND excluded.state = 'undone');

-- name: move_aside
UPDATE {schema}.step SET aside = %(seen_fence)s
WHERE job_id = %(id)s AND aside = 0 AND position >= %(aside_from)s;

-- name: move_give_back
-- The steps that took these signals are set aside, so the signals wait to be taken again. Answers of people are not
-- given back, also those that came too late to be taken: the question is asked again, because the facts may have
-- changed.
UPDATE {schema}.signal
SET taken = CASE WHEN starts_with(name, %(answer)s) THEN coalesce(taken, %(aside_from)s) END
WHERE job_id = %(id)s AND coalesce(taken, %(aside_from)s) >= %(aside_from)s;

-- name: limit_row
INSERT INTO {schema}.queue (name) VALUES (%(queue)s) ON CONFLICT DO NOTHING;

-- name: limit_lock
-- Claims that count have this lock too; those that began before end before.
SELECT 1 FROM {schema}.queue WHERE name = %(queue)s FOR UPDATE;

-- name: limit
-- What is set for a queue, pauses included, and what a claim needs of it.
UPDATE {schema}.queue SET
    paused = %(paused)s,
    paused_until = %(paused_until)s,
    declared = %(declared)s,
    chosen = %(chosen)s,
    by_turns = %(by_turns)s,
    running_max = %(limit)s,
    group_running_max = %(group_limit)s,
    rate_step_s = %(rate_step_s)s,
    burst = %(burst)s
WHERE name = %(queue)s;

-- name: limit_resume
DELETE FROM {schema}.paused_group WHERE queue = %(queue)s;

-- name: limit_pause
INSERT INTO {schema}.paused_group (queue, grp, paused_until)
SELECT %(queue)s, each.key, each.value::float8 FROM json_each_text(%(groups)s::json) AS each;

-- name: limit_alone
-- Nobody enrols, and no claim is at work beside a locked row (`claim_locked`), until the limits are in force.
SELECT pg_advisory_xact_lock(hashtextextended('limits', 3));

-- name: limit_rows_locked
SELECT count(pg_advisory_xact_lock(hashtextextended(worker.id, 2))) FROM (
    SELECT id FROM {schema}.worker WHERE gone_at IS NULL ORDER BY id OFFSET 0
) AS worker;

-- name: limit_workers
-- Waits for every claim that has taken jobs, because it keeps its worker's row locked; one that began before and has taken
-- none yet finds another number there, and takes none.
UPDATE {schema}.worker SET limits_seen = limits_seen + 1 WHERE gone_at IS NULL;

-- name: limit_counted
-- What runs already counts from now on. A statement of its own: it sees what those claims have taken.
UPDATE {schema}.job SET counted = true WHERE state = 'running' AND queue = %(queue)s AND NOT counted;

-- name: limit_tell
SELECT pg_notify(%(channel)s, '');

-- name: order
-- The same act again keeps the first order.
INSERT INTO {schema}.worker_order AS given (name, act, actor, note, at)
VALUES (%(name)s, %(act)s, %(actor)s, %(note)s, {wall})
ON CONFLICT (name) DO UPDATE SET act = excluded.act, actor = excluded.actor, note = excluded.note, at = excluded.at
WHERE given.act <> excluded.act;

-- name: order_end
DELETE FROM {schema}.worker_order
WHERE name = %(name)s OR (name <> rtrim(name, '0123456789') AND %(name)s || '/' = rtrim(name, '0123456789'));

-- name: purge
-- With %(ids)s only these of them.
WITH {allowed},
old AS MATERIALIZED (
    SELECT found.spot, found.id
    FROM allowed, unnest(%(states)s::text[]) WITH ORDINALITY AS wanted (state, place)
    CROSS JOIN LATERAL (
        SELECT job.ctid AS spot, job.id, job.ended_at FROM {schema}.job AS job
        WHERE job.state = wanted.state AND job.ended_at < %(before)s AND job.id <> ALL (%(besides)s::text[])
            AND (%(ids)s::text[] IS NULL OR job.id = ANY (%(ids)s::text[]))
        ORDER BY job.ended_at
        LIMIT %(limit)s::bigint
        FOR UPDATE SKIP LOCKED
    ) AS found
    WHERE allowed.yes
    ORDER BY wanted.place, found.ended_at
    LIMIT %(limit)s::bigint
),
gone AS (
    DELETE FROM {schema}.job AS job USING old WHERE job.ctid = old.spot RETURNING job.id, job.queue, job.state, job.batch
),
lines AS (
    DELETE FROM {schema}.journal WHERE job_id IN (SELECT id FROM old)
),
steps AS (
    DELETE FROM {schema}.step WHERE job_id IN (SELECT id FROM old)
),
signals AS (
    DELETE FROM {schema}.signal WHERE job_id IN (SELECT id FROM old)
),
tallied AS (
    INSERT INTO {schema}.tally (queue, state, jobs) SELECT queue, state, -count(*) FROM gone GROUP BY queue, state
),
batches AS (
    INSERT INTO {schema}.batch_removed (batch, state, jobs)
    SELECT batch, state, count(*) FROM gone WHERE batch IS NOT NULL GROUP BY batch, state
),
removed AS (
    UPDATE {schema}.meta SET value = (value::bigint + 1)::text WHERE name = 'removals' AND EXISTS (SELECT FROM gone)
)
SELECT (SELECT yes FROM allowed), (SELECT count(*) FROM gone);

-- name: purge_busy
-- Which of the next jobs another transaction is at: a line, a step or a signal of it is locked. The statement is its
-- own transaction: what it locks itself is free again at its end.
WITH old AS MATERIALIZED (
    SELECT found.id
    FROM unnest(%(states)s::text[]) WITH ORDINALITY AS wanted (state, place)
    CROSS JOIN LATERAL (
        SELECT job.id, job.ended_at FROM {schema}.job AS job
        WHERE job.state = wanted.state AND job.ended_at < %(before)s AND job.id <> ALL (%(besides)s::text[])
            AND (%(ids)s::text[] IS NULL OR job.id = ANY (%(ids)s::text[]))
        ORDER BY job.ended_at
        LIMIT %(limit)s::bigint
    ) AS found
    ORDER BY wanted.place, found.ended_at
    LIMIT %(limit)s::bigint
),
lines AS MATERIALIZED (
    SELECT ctid FROM {schema}.journal WHERE job_id IN (SELECT id FROM old) FOR UPDATE SKIP LOCKED
),
steps AS MATERIALIZED (
    SELECT ctid FROM {schema}.step WHERE job_id IN (SELECT id FROM old) FOR UPDATE SKIP LOCKED
),
signals AS MATERIALIZED (
    SELECT ctid FROM {schema}.signal WHERE job_id IN (SELECT id FROM old) FOR UPDATE SKIP LOCKED
)
SELECT coalesce(json_agg(id), '[]')::text FROM (
    SELECT job_id AS id FROM {schema}.journal
    WHERE job_id IN (SELECT id FROM old) AND ctid NOT IN (SELECT ctid FROM lines)
    UNION
    SELECT job_id FROM {schema}.step
    WHERE job_id IN (SELECT id FROM old) AND ctid NOT IN (SELECT ctid FROM steps)
    UNION
    SELECT job_id FROM {schema}.signal
    WHERE job_id IN (SELECT id FROM old) AND ctid NOT IN (SELECT ctid FROM signals)
) AS busy;

-- name: purge_next
-- The jobs of the page that the server has refused to delete.
SELECT coalesce(json_agg(id), '[]')::text FROM (
    SELECT found.id
    FROM unnest(%(states)s::text[]) WITH ORDINALITY AS wanted (state, place)
    CROSS JOIN LATERAL (
        SELECT job.id, job.ended_at FROM {schema}.job AS job
        WHERE job.state = wanted.state AND job.ended_at < %(before)s AND job.id <> ALL (%(besides)s::text[])
        ORDER BY job.ended_at
        LIMIT %(limit)s::bigint
    ) AS found
    ORDER BY wanted.place, found.ended_at
    LIMIT %(limit)s::bigint
) AS page;

-- name: delete_lock
-- Returns the ids of those of these jobs that another transaction has locked.
WITH mine AS MATERIALIZED (
    SELECT id FROM {schema}.job WHERE id = ANY (%(ids)s::text[]) FOR UPDATE SKIP LOCKED
)
SELECT coalesce(json_agg(id), '[]')::text FROM {schema}.job
WHERE id = ANY (%(ids)s::text[]) AND id NOT IN (SELECT id FROM mine);

-- name: delete
-- Behind `delete_lock`: a transaction that was about to add a line or a signal has done so, and this sees it.
WITH gone AS (
    DELETE FROM {schema}.job AS job USING jsonb_array_elements(%(seen)s::jsonb) AS seen
    WHERE job.id = seen ->> 0 AND job.state || '' = seen ->> 1 AND job.fence = (seen ->> 2)::bigint
        AND job.state || '' <> 'running'
    RETURNING job.id, job.queue, job.state, job.batch
),
lines AS (
    DELETE FROM {schema}.journal WHERE job_id IN (SELECT id FROM gone)
),
steps AS (
    DELETE FROM {schema}.step WHERE job_id IN (SELECT id FROM gone)
),
signals AS (
    DELETE FROM {schema}.signal WHERE job_id IN (SELECT id FROM gone)
),
tallied AS (
    INSERT INTO {schema}.tally (queue, state, jobs)
    SELECT queue, state, -count(*) FROM gone WHERE state IN ('done', 'dead', 'cancelled', 'rolled_back')
    GROUP BY queue, state
),
batches AS (
    INSERT INTO {schema}.batch_removed (batch, state, jobs)
    SELECT batch, state, count(*) FROM gone WHERE batch IS NOT NULL GROUP BY batch, state
),
removed AS (
    UPDATE {schema}.meta SET value = (value::bigint + 1)::text WHERE name = 'removals' AND EXISTS (SELECT FROM gone)
)
SELECT coalesce(json_agg(id), '[]')::text FROM gone;

-- name: audit
-- Acts of people, by an index of their own: other events are not in it.
{events} (
    SELECT * FROM {schema}.journal
    WHERE actor IS NOT NULL
        AND (%(actor)s::text IS NULL OR actor = %(actor)s)
        AND (%(since)s::float8 IS NULL OR at >= %(since)s)
        AND (%(before)s::bigint IS NULL OR seq < %(before)s)
    ORDER BY seq DESC
    LIMIT %(limit)s::bigint
) AS line;

-- name: declare
-- In the order of the keys: two that declare at once wait for each other, and not crosswise.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
)
INSERT INTO {schema}.schedule AS there (key, spec, tz, missed, job, missed_max, jitter_s, mark, declared_at)
SELECT {schedule_given}, clock.wall, clock.wall
FROM clock, json_array_elements(%(schedules)s::json)
ORDER BY (value ->> 0) COLLATE "C"
ON CONFLICT (key) DO UPDATE SET
    mark = CASE WHEN there.spec = excluded.spec AND there.tz = excluded.tz THEN there.mark
        ELSE greatest(there.mark, least(there.declared_at, excluded.declared_at)) END,
    {schedule_set}
WHERE NOT there.kept;

-- name: declare_again
-- Leaves a row that another transaction has locked to the next time.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
mine AS MATERIALIZED (
    SELECT given.* FROM json_array_elements(%(schedules)s::json),
        LATERAL (SELECT {schedule_given}) AS given (key, spec, tz, missed, job, missed_max, jitter_s)
),
old AS MATERIALIZED (
    SELECT mine.* FROM clock, mine JOIN {schema}.schedule AS there ON there.key = mine.key
    WHERE NOT there.kept AND there.declared_at < clock.wall - CASE
        WHEN (there.spec, there.tz, there.missed, there.job, there.missed_max, there.jitter_s)
            = (mine.spec, mine.tz, mine.missed, mine.job, mine.missed_max, mine.jitter_s)
        THEN %(renew_s)s::float8 ELSE %(abandoned_s)s::float8 END
    FOR UPDATE OF there SKIP LOCKED
),
new AS (
    INSERT INTO {schema}.schedule (key, spec, tz, missed, job, missed_max, jitter_s, mark, declared_at)
    SELECT mine.*, clock.wall, clock.wall FROM clock, mine
    WHERE NOT EXISTS (SELECT FROM {schema}.schedule AS there WHERE there.key = mine.key)
    ORDER BY mine.key COLLATE "C"
    ON CONFLICT (key) DO NOTHING
)
UPDATE {schema}.schedule AS there SET
    mark = CASE WHEN (there.spec, there.tz) = (old.spec, old.tz) THEN there.mark
        ELSE greatest(there.mark, there.declared_at) END,
    spec = old.spec,
    tz = old.tz,
    missed = old.missed,
    job = old.job,
    missed_max = old.missed_max,
    jitter_s = old.jitter_s,
    declared_at = clock.wall
FROM clock, old WHERE there.key = old.key;

-- name: schedule
-- In the order of the keys, as `declare`.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
kept AS (
    INSERT INTO {schema}.schedule AS there (key, spec, tz, missed, job, missed_max, jitter_s, mark, declared_at, kept)
    SELECT {schedule_given}, clock.wall, clock.wall, true
    FROM clock, json_array_elements(%(schedules)s::json)
    ORDER BY (value ->> 0) COLLATE "C"
    ON CONFLICT (key) DO UPDATE SET
        mark = CASE WHEN there.kept AND there.spec = excluded.spec AND there.tz = excluded.tz THEN there.mark
            ELSE greatest(there.mark, excluded.declared_at) END,
        {schedule_set},
        kept = true
    WHERE there.kept OR there.declared_at <= excluded.declared_at - %(declared_s)s::float8
    RETURNING there.key
)
SELECT coalesce(json_agg(key), '[]')::text FROM kept;

-- name: schedules
SELECT coalesce(json_agg(json_build_array(
    key, spec, tz, missed, job, mark, fired_at, job_id, paused, declared_at, missed_max, jitter_s, kept
) ORDER BY key), '[]')::text
FROM {schema}.schedule
WHERE %(keys)s::text[] IS NULL OR key = ANY(%(keys)s::text[]);

-- name: fire
-- One statement, so that a frozen client holds no lock on the duty. The mark only rises: a second worker that fires the
-- same instant finds the mark, even when the job is gone. If another transaction takes the job's key at the same
-- moment, no job is stored, and job_id names a job that does not exist. The statement does not wait long for the row of
-- a schedule, or for a key that an open transaction holds.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall,
        set_config('lock_timeout', %(lock_ms)s, true) AS lock_timeout
),
duty AS MATERIALIZED (
    SELECT duty.name FROM clock, {schema}.duty AS duty
    WHERE duty.name = %(duty)s AND duty.holder = %(holder)s AND duty.term = %(term)s
    FOR SHARE OF duty
),
firing AS MATERIALIZED (
    SELECT value ->> 0 AS schedule, (value ->> 1)::float8 AS instant, value -> 2 AS job, place
    FROM json_array_elements(%(firings)s::json) WITH ORDINALITY AS each (value, place)
    WHERE EXISTS (SELECT FROM duty)
        AND coalesce(value ->> 0, '') = value ->> 0
),
free AS MATERIALIZED (
    SELECT firing.* FROM firing, {schema}.schedule AS schedule
    WHERE schedule.key = firing.schedule
    FOR NO KEY UPDATE OF schedule SKIP LOCKED
),
there AS MATERIALIZED (
    SELECT free.*, coalesce(own.id, holder.id) AS job_id
    FROM free
    LEFT JOIN {schema}.job AS own ON own.id = free.job ->> 0
    LEFT JOIN {schema}.job AS holder
        ON holder.key = free.job ->> 4
        AND holder.state IN ('ready', 'running', 'waiting', 'held')
),
fired AS (
    UPDATE {schema}.schedule AS schedule SET
        mark = there.instant,
        fired_at = there.instant,
        job_id = coalesce(there.job_id, there.job ->> 0)
    FROM there
    WHERE schedule.key = there.schedule AND schedule.mark < there.instant AND NOT schedule.paused
    RETURNING there.place, there.job, schedule.job_id
),
stored AS (
    INSERT INTO {schema}.job (
        id, task, queue, payload, key, priority, run_at, created_at,
        attempts_max, backoff_base_s, backoff_cap_s, backoff_jitter, crashes_max, on_crash,
        lease_s, beat_s, timeout_s, stall_s, backoff_full, workflow, parent, grp, callbacks, expires_at, tags, meta
    )
    SELECT
        job ->> 0, job ->> 1, job ->> 2, job ->> 3, job ->> 4, (job ->> 5)::bigint,
        coalesce((job ->> 6)::float8, clock.wall + (job ->> 7)::float8), clock.wall,
        (job ->> 8)::bigint, (job ->> 9)::float8, (job ->> 10)::float8, (job ->> 11)::boolean,
        (job ->> 12)::bigint, job ->> 13,
        (job ->> 14)::float8, (job ->> 15)::float8, (job ->> 16)::float8, (job ->> 17)::float8,
        (job ->> 18)::boolean, (job ->> 19)::boolean, job ->> 20, job ->> 21, job ->> 22,
        clock.wall + (job ->> 23)::float8, (job ->> 24)::json, (job ->> 25)::json
    FROM clock, fired
    ORDER BY place
    ON CONFLICT DO NOTHING
    RETURNING id
),
notified AS MATERIALIZED (
    SELECT pg_notify(%(channel)s, '') FROM (SELECT FROM stored LIMIT 1) AS anything
)
SELECT
    EXISTS (SELECT FROM duty),
    (
        SELECT coalesce(json_agg(json_build_array(
            fired.job_id,
            fired.job ->> 0 IN (SELECT id FROM stored),
            firing.schedule IN (SELECT key FROM {schema}.schedule) AND free.place IS NULL
        ) ORDER BY firing.place), '[]')::text
        FROM firing LEFT JOIN free ON free.place = firing.place LEFT JOIN fired ON fired.place = firing.place
    ),
    (SELECT count(*) FROM notified);

-- name: pause_schedule
UPDATE {schema}.schedule SET
    mark = CASE WHEN paused AND NOT %(paused)s
        THEN greatest(mark, {wall}) ELSE mark END,
    paused = %(paused)s
WHERE key = %(key)s;

-- name: forget_schedule
DELETE FROM {schema}.schedule WHERE key = %(key)s;

-- name: publish
-- In the order of the names: two that publish at once wait for each other, and not crosswise.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
)
INSERT INTO {schema}.task AS there (name, task, published_at)
SELECT value ->> 0, value ->> 1, clock.wall
FROM clock, json_array_elements(%(tasks)s::json)
ORDER BY (value ->> 0) COLLATE "C"
ON CONFLICT (name) DO UPDATE SET task = excluded.task, published_at = excluded.published_at
WHERE there.task <> excluded.task;

-- name: published
SELECT coalesce(json_agg(json_build_array(task, published_at) ORDER BY name COLLATE "C"), '[]')::text
FROM {schema}.task
WHERE %(names)s::text[] IS NULL OR name = ANY(%(names)s::text[]);

-- name: forget_task
DELETE FROM {schema}.task WHERE name = %(name)s;

-- name: add_token
INSERT INTO {schema}.token (name, role, queues, sha256, created_at, expires_at)
VALUES (%(name)s, %(role)s, %(queues)s, %(sha256)s, %(created_at)s, %(expires_at)s)
ON CONFLICT (name) DO NOTHING;

-- name: all_tokens
SELECT coalesce(json_agg(json_build_array(name, role, queues, sha256, created_at, used_at, expires_at)
    ORDER BY name COLLATE "C"), '[]')::text
FROM {schema}.token;

-- name: revoke_token
DELETE FROM {schema}.token WHERE name = %(name)s;

-- name: tokens_used
-- Two servers may say this at once: each locks the rows in the order of the names.
WITH said AS MATERIALIZED (
    SELECT token.name, value::float8 AS at FROM {schema}.token AS token
    JOIN json_each_text(%(at)s::json) AS each (name, value) ON each.name = token.name
    ORDER BY token.name COLLATE "C"
    FOR UPDATE OF token
)
UPDATE {schema}.token AS token SET used_at = greatest(said.at, token.used_at)
FROM said
WHERE token.name = said.name;

-- name: open_batch
WITH clock AS (
    SELECT {wall} AS wall
)
INSERT INTO {schema}.batch (id, then_job, abandon_s, created_at, added_at)
SELECT %(id)s, %(then_job)s, %(abandon_s)s, wall, wall FROM clock
ON CONFLICT DO NOTHING;

-- name: batch_add
-- Locks the row until the jobs are stored: a batch that is closed by then gets none.
UPDATE {schema}.batch SET added_at = {wall} WHERE id = %(id)s AND closed_at IS NULL;

-- name: close_batch
UPDATE {schema}.batch SET closed_at = {wall}, complete = %(complete)s
WHERE id = %(id)s AND closed_at IS NULL AND (%(added_since)s::float8 IS NULL OR added_at <= %(added_since)s);

-- name: get_batches
{batch_rows} (
    SELECT *, 0 AS place FROM {schema}.batch WHERE id = ANY (%(ids)s::text[])
) AS batch;

-- name: find_batches
{batch_rows} (
    SELECT *, 0 AS place FROM {schema}.batch WHERE id > %(after)s ORDER BY id LIMIT %(limit)s::bigint
) AS batch;

-- name: find_unended_batches
{batch_rows} (
    SELECT *, 0 AS place FROM {schema}.batch WHERE id > %(after)s AND ended_at IS NULL ORDER BY id LIMIT %(limit)s::bigint
) AS batch;

-- name: newest_batches
{batch_rows} (
    SELECT *, row_number() OVER (ORDER BY created_at DESC, id DESC) AS place FROM {schema}.batch
    ORDER BY created_at DESC, id DESC LIMIT %(limit)s::bigint
) AS batch;

-- name: batch_counts
SELECT coalesce(json_agg(json_build_array(state, jobs)), '[]')::text FROM (
    SELECT state, sum(jobs)::bigint AS jobs FROM (
        SELECT state, count(*) AS jobs FROM {schema}.job WHERE batch = %(id)s GROUP BY state
        UNION ALL
        SELECT state, jobs FROM {schema}.batch_removed WHERE batch = %(id)s
    ) AS each
    GROUP BY state
) AS counted;

-- name: batch_jobs
SELECT '[' || coalesce(string_agg({schema}.as_json(job)::text, ','), '') || ']' FROM (
    SELECT * FROM {schema}.job
    WHERE batch = %(id)s AND (%(states)s::text[] IS NULL OR state = ANY (%(states)s::text[]))
    LIMIT %(limit)s::bigint
) AS job;

-- name: batch_lock
-- Two programs may conclude a batch at once: the second one finds that it has ended.
SELECT FROM {schema}.batch WHERE id = %(id)s FOR NO KEY UPDATE;

-- name: end_batch
UPDATE {schema}.batch AS batch SET ended_at = {wall}, counts = %(counts)s
WHERE id = %(id)s AND closed_at IS NOT NULL AND ended_at IS NULL AND NOT EXISTS (
    SELECT FROM {schema}.job AS job
    WHERE job.batch = batch.id AND job.state IN ('running', 'ready', 'waiting', 'held')
);

-- name: batches_purged
WITH old AS MATERIALIZED (
    SELECT id FROM {schema}.batch AS batch
    WHERE ended_at < %(before)s AND NOT EXISTS (SELECT FROM {schema}.job AS job WHERE job.batch = batch.id)
    LIMIT %(limit)s::bigint
    FOR UPDATE SKIP LOCKED
),
lines AS (
    DELETE FROM {schema}.batch_removed WHERE batch IN (SELECT id FROM old)
)
DELETE FROM {schema}.batch WHERE id IN (SELECT id FROM old);

-- name: key_knows
SELECT EXISTS (SELECT FROM {schema}.job WHERE id = %(id)s);

-- name: key_live
WITH mine AS MATERIALIZED (
    SELECT job FROM {schema}.job AS job
    WHERE job.key = %(key)s AND job.state IN ('ready', 'running', 'waiting', 'held')
    FOR NO KEY UPDATE
)
SELECT '[' || coalesce(string_agg({schema}.as_json(job)::text, ','), '') || ']' FROM mine;

-- name: key_row
WITH mine AS MATERIALIZED (
    SELECT job FROM {schema}.job AS job WHERE job.id = %(id)s FOR NO KEY UPDATE
)
SELECT '[' || coalesce(string_agg({schema}.as_json(job)::text, ','), '') || ']' FROM mine;

-- name: key_held
-- Locks the key, and answers with the newest job that took it: in the order of core/keys.py: KeyHold. A key that nobody
-- has is given to the new job, so that there is a row to lock.
INSERT INTO {schema}.key AS held (key, job_id, scope) VALUES (%(key)s, %(id)s, 'queued')
ON CONFLICT (key) DO UPDATE SET key = held.key
RETURNING job_id, scope, until;

-- name: key_take
UPDATE {schema}.key SET job_id = %(job_id)s, scope = %(scope)s, until = %(until)s WHERE key = %(key)s;

-- name: key_write
UPDATE {schema}.job SET scoped_key = %(key)s, key_scope = %(scope)s WHERE id = %(job_id)s;

-- name: key_pass
-- A key with the scope "live" is in the unique index as long as it stands in its own column.
UPDATE {schema}.job SET scoped_key = coalesce(key, scoped_key), key = NULL, key_scope = 'passed' WHERE id = %(id)s;

-- name: key_rewrite
UPDATE {schema}.job SET payload = %(payload)s, expires_at = %(expires_at)s WHERE id = %(id)s;

-- name: keys_purged
-- Returns the last key that was looked at. An enqueue may take a key just now: it stays, whoever had it.
WITH clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
page AS MATERIALIZED (
    SELECT key, job_id, scope, until FROM {schema}.key
    WHERE key > %(after)s
    ORDER BY key
    LIMIT %(limit)s::bigint
),
old AS MATERIALIZED (
    SELECT held.key FROM clock, page, {schema}.key AS held
    WHERE held.key = page.key AND held.job_id = page.job_id AND (
        page.until <= clock.wall
        OR (page.scope = 'queued' AND NOT EXISTS (
            SELECT FROM {schema}.job AS job
            WHERE job.id = page.job_id AND job.state || '' = 'ready' AND job.attempt = 0
        ))
    )
    FOR UPDATE OF held SKIP LOCKED
),
gone AS (
    DELETE FROM {schema}.key WHERE key IN (SELECT key FROM old)
)
SELECT max(key) FROM page;

-- name: get
SELECT '[' || coalesce(string_agg({schema}.as_json(job)::text, ','), '') || ']' FROM {schema}.job AS job WHERE id = %(id)s;

-- name: find
-- The newest of each state, then the newest of these: no state is looked for among the others. Planned again for each
-- call, so that what is not asked for costs nothing. Those that are ready, and those that have ended, may be millions:
-- each kind has an index for its queues, which the planner takes only if it is told the kind; so have ready jobs with a
-- group.
{found}
    (
        SELECT job, job.seq FROM {schema}.job AS job
        WHERE %(ready)s AND job.state = 'ready' AND %(queue)s::text IS NULL
            {ready}
    )
    UNION ALL
    (
        SELECT job, job.seq FROM {schema}.job AS job
        WHERE %(ready)s AND job.state = 'ready' AND job.queue = %(queue)s AND job.grp IS NULL
            {ready}
    )
    UNION ALL
    (
        SELECT job, job.seq FROM {schema}.job AS job
        WHERE %(ready)s AND job.state = 'ready' AND job.queue = %(queue)s AND job.grp IS NOT NULL
            {ready}
    )
    UNION ALL
    SELECT newest.* FROM unnest(%(others)s::text[]) AS wanted (state) CROSS JOIN LATERAL (
        SELECT job, job.seq FROM {schema}.job AS job
        WHERE job.state IN ('running', 'waiting', 'held') AND job.state = wanted.state
            {newest}
    UNION ALL
    SELECT newest.* FROM unnest(%(ended)s::text[]) AS wanted (state) CROSS JOIN LATERAL (
        SELECT job, job.seq FROM {schema}.job AS job
        WHERE job.ended_at IS NOT NULL AND job.state = wanted.state
            {newest}
    ORDER BY seq DESC
    LIMIT %(limit)s::bigint
) AS found;

-- name: find_these
-- Those of a worker, with a key, an error, or these ids: few, each found by its own index.
{found}
    SELECT job, job.seq FROM {schema}.job AS job
    WHERE job.state = ANY (%(states)s::text[])
        {filters}
        AND (%(workflow)s::boolean IS NULL OR job.workflow = %(workflow)s)
        AND (%(asking)s::boolean IS NULL OR (job.question IS NOT NULL) = %(asking)s)
        AND (%(worker)s::text IS NULL OR (job.state = 'running' AND job.worker = %(worker)s))
        AND (%(key)s::text IS NULL OR job.key = %(key)s OR job.scoped_key = %(key)s)
        AND (%(ids)s::text[] IS NULL OR job.id = ANY (%(ids)s::text[]))
        AND (%(prefix)s::text IS NULL OR (job.id >= %(prefix)s AND job.id < %(prefix_end)s))
        AND (%(prefix)s::text IS NULL OR starts_with(job.id, %(prefix)s))
        {page}

-- name: find_workflows
-- By their own index, as many other jobs as there may be.
{found}
    SELECT job, job.seq FROM {schema}.job AS job
    WHERE job.workflow
        AND job.state = ANY (%(states)s::text[])
        {filters}
        AND (%(asking)s::boolean IS NULL OR (job.question IS NOT NULL) = %(asking)s)
        {page}

-- name: counts
-- Live states exactly, each from its own index; ended ones from the tally.
SELECT coalesce(json_agg(json_build_array(queue, state, jobs)), '[]')::text FROM (
    SELECT queue, 'ready' AS state, sum(jobs)::bigint AS jobs FROM (
        SELECT queue, count(*) AS jobs FROM {schema}.job WHERE state = 'ready' AND grp IS NULL GROUP BY queue
        UNION ALL
        SELECT queue, count(*) FROM {schema}.job WHERE state = 'ready' AND grp IS NOT NULL GROUP BY queue
    ) AS ready
    GROUP BY queue
    UNION ALL
    SELECT queue, 'running', count(*) FROM {schema}.job WHERE state = 'running' GROUP BY queue
    UNION ALL
    SELECT queue, 'waiting', count(*) FROM {schema}.job WHERE state = 'waiting' GROUP BY queue
    UNION ALL
    SELECT queue, 'held', count(*) FROM {schema}.job WHERE state = 'held' GROUP BY queue
    UNION ALL
    SELECT queue, state, sum(jobs) FROM {schema}.tally GROUP BY queue, state HAVING sum(jobs) <> 0
) AS counted;

-- name: errors
SELECT coalesce(json_agg(json_build_array(
    task, fingerprint, kind, origin, message, attempts, first_at, last_at, releases, job_id
) ORDER BY attempts DESC, last_at DESC, task, fingerprint), '[]')::text FROM (
    SELECT task, fingerprint, max(kind) AS kind, max(origin) AS origin, max(message) AS message,
        sum(attempts)::bigint AS attempts, min(first_at) AS first_at, max(last_at) AS last_at,
        coalesce(json_agg(DISTINCT release) FILTER (WHERE release <> ''), '[]') AS releases,
        (array_agg(job_id ORDER BY last_at DESC, job_id DESC))[1] AS job_id
    FROM {schema}.error
    WHERE slot >= %(slot)s AND (%(task)s::text IS NULL OR task = %(task)s)
    GROUP BY task, fingerprint
    ORDER BY attempts DESC, last_at DESC, task, fingerprint
    LIMIT %(limit)s::bigint
) AS counted;

-- name: journal
{events} (
    SELECT * FROM {schema}.journal
    WHERE job_id = %(job_id)s
        AND {wanted_events}
    ORDER BY seq
    LIMIT %(limit)s::bigint
) AS line;

-- name: journal_all
{events} (
    SELECT * FROM {schema}.journal
    WHERE {wanted_events}
    ORDER BY seq DESC
    LIMIT %(limit)s::bigint
) AS line;

-- name: journals
{events} unnest(%(job_ids)s::text[]) AS wanted (id) CROSS JOIN LATERAL (
    SELECT * FROM {schema}.journal WHERE job_id = wanted.id ORDER BY seq LIMIT %(limit)s::bigint
) AS line;

-- name: workers
SELECT coalesce(json_agg(json_build_array(
    id, name, host, pid, boot_id, supervisor, queues::text, slots, beat_s, version, started_at,
    greatest(beat_at, (SELECT at FROM {schema}.beat_aside WHERE beat_aside.worker = worker.id)), beats,
    (SELECT count(*) FROM {schema}.job AS job WHERE job.state = 'running' AND job.worker = worker.id),
    rss_mb, gone_at, gone_cause, exit_kind, exit_code, exit_excused, stopping, release,
    (SELECT tasks::text FROM {schema}.published WHERE published.worker = worker.id AND worker.gone_at IS NULL),
    CASE WHEN gone_at IS NULL THEN {order} END
) ORDER BY started_at, id), '[]')::text
FROM {schema}.worker AS worker
WHERE %(gone)s OR gone_at IS NULL;

-- name: orders
SELECT coalesce(json_agg(json_build_array(name, act, actor, note, at) ORDER BY name), '[]')::text
FROM {schema}.worker_order;

-- name: recent
SELECT coalesce(json_agg(json_build_array(worker, recent)), '[]')::text FROM {schema}.worker_recent
WHERE worker = ANY (%(workers)s::text[]);

-- name: paused
SELECT coalesce(json_agg(name ORDER BY name), '[]')::text FROM {schema}.queue
WHERE paused AND (paused_until IS NULL OR paused_until > {wall});

-- name: queues
{queue_rows} WHERE %(queue)s::text IS NULL OR queue.name = %(queue)s;

-- name: places
SELECT count(*), count(*) FILTER (WHERE grp = %(grp)s) FROM {schema}.job WHERE state = 'running' AND queue = %(queue)s;

-- name: unserved
SELECT coalesce(json_agg(json_build_array(task, jobs)), '[]')::text FROM (
    SELECT task, count(*) AS jobs FROM (
        SELECT task FROM {schema}.job
        WHERE state = 'ready' AND grp IS NULL AND queue = ANY (%(queues)s::text[])
            AND run_at <= (SELECT {wall})
            AND task <> ALL (%(tasks)s::text[])
        UNION ALL
        SELECT task FROM {schema}.job
        WHERE state = 'ready' AND grp IS NOT NULL AND queue = ANY (%(queues)s::text[])
            AND run_at <= (SELECT {wall})
            AND task <> ALL (%(tasks)s::text[])
        LIMIT 1000
    ) AS few
    GROUP BY task
) AS counted;

-- name: backlog
-- Queues and priorities are found by leaping, as in `wake_sleepers`. Of each the first due jobs are read, not all of them.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT {wall} AS wall
),
lane (queue, priority) AS (
    (
        SELECT job.queue, job.priority FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL
        ORDER BY job.queue, job.priority DESC
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue, next.priority
    FROM lane
    CROSS JOIN LATERAL (
        (
            SELECT job.queue, job.priority FROM {schema}.job AS job
            WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = lane.queue AND job.priority < lane.priority
            ORDER BY job.queue, job.priority DESC
            LIMIT 1
        )
        UNION ALL
        (
            SELECT job.queue, job.priority FROM {schema}.job AS job
            WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue > lane.queue
            ORDER BY job.queue, job.priority DESC
            LIMIT 1
        )
        LIMIT 1
    ) AS next
),
grouped (queue) AS (
    (
        SELECT job.queue FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NOT NULL
        ORDER BY job.queue, job.run_at
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue
    FROM grouped
    CROSS JOIN LATERAL (
        SELECT job.queue FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue > grouped.queue
        ORDER BY job.queue, job.run_at
        LIMIT 1
    ) AS next
),
due AS (
    SELECT lane.queue, lane.priority, few.task, few.run_at
    FROM lane
    CROSS JOIN LATERAL (
        SELECT job.task, job.run_at FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = lane.queue AND job.priority = lane.priority
            AND job.run_at <= (SELECT wall FROM clock)
        ORDER BY job.run_at, job.seq
        LIMIT %(sample)s::bigint
    ) AS few
    UNION ALL
    SELECT grouped.queue, NULL, few.task, few.run_at
    FROM grouped
    CROSS JOIN LATERAL (
        SELECT job.task, job.run_at FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = grouped.queue
            AND job.run_at <= (SELECT wall FROM clock)
        ORDER BY job.run_at
        LIMIT %(sample)s::bigint
    ) AS few
)
SELECT coalesce(json_agg(json_build_array(queue, priority, task, jobs, oldest)), '[]')::text FROM (
    SELECT queue, priority, task, count(*) AS jobs, min(run_at) AS oldest FROM due GROUP BY queue, priority, task
) AS counted;

-- name: flow
-- The newest jobs, and the newest of each state in which jobs end. If there are more in the window than are looked at, the
-- oldest of these says how far back that was.
WITH newest AS (
    SELECT job.queue, job.task, job.created_at
    FROM unnest(%(states)s::text[]) AS each (state)
    CROSS JOIN LATERAL (
        SELECT one.queue, one.task, one.created_at, one.seq FROM {schema}.job AS one
        WHERE one.state = each.state
        ORDER BY one.seq DESC
        LIMIT %(sample)s::bigint
    ) AS job
    ORDER BY job.seq DESC
    LIMIT %(sample)s::bigint
),
added AS (
    SELECT queue, task, count(*) OVER () AS seen, min(created_at) OVER () AS first
    FROM newest WHERE created_at >= %(since)s::float8
),
ended AS (
    SELECT each.state, job.queue, job.task, count(*) OVER (PARTITION BY each.state) AS seen,
        min(job.ended_at) OVER (PARTITION BY each.state) AS first
    FROM unnest(%(ended)s::text[]) AS each (state)
    CROSS JOIN LATERAL (
        SELECT one.queue, one.task, one.ended_at FROM {schema}.job AS one
        WHERE one.state = each.state AND one.ended_at IS NOT NULL AND one.ended_at >= %(since)s::float8
        ORDER BY one.ended_at DESC
        LIMIT %(sample)s::bigint
    ) AS job
)
SELECT coalesce(json_agg(json_build_array(queue, state, jobs, since, task)), '[]')::text FROM (
    SELECT queue, 'added' AS state, count(*) AS jobs,
        greatest(%(since)s::float8, CASE WHEN max(seen) = %(sample)s THEN min(first) END) AS since,
        task
    FROM added GROUP BY queue, task
    UNION ALL
    SELECT queue, state, count(*), greatest(%(since)s::float8, CASE WHEN max(seen) = %(sample)s THEN min(first) END),
        task
    FROM ended GROUP BY queue, task, state
) AS counted;

-- name: lost
-- The newest lost attempts with what their jobs are by now; how many there were; and how many of them reported late.
SELECT (
    SELECT coalesce(json_agg(json_build_array(
        line.seq, line.at, line.job_id, line.fence, line.worker, line.detail,
        EXISTS (
            SELECT FROM {schema}.journal AS late
            WHERE late.job_id = line.job_id AND late.fence = line.fence AND late.kind = 'stale_report'
        ),
        job.task, job.queue, coalesce(job.state, 'done'), coalesce(job.run_at, 0), coalesce(job.failures, 0),
        coalesce(job.crashes, 0), coalesce(job.zombies, 0), coalesce(job.suspects, 0), coalesce(job.lease_s, 0),
        coalesce(job.beat_s, 0)
    ) ORDER BY line.seq), '[]')::text
    FROM (
        SELECT * FROM {schema}.journal WHERE kind = 'zombie' AND at >= %(since)s::float8
        ORDER BY at DESC
        LIMIT %(limit)s::bigint
    ) AS line
    LEFT JOIN {schema}.job AS job ON job.id = line.job_id
), (
    SELECT count(*) FROM {schema}.journal WHERE kind = 'zombie' AND at >= %(since)s::float8
), (
    SELECT count(*) FROM {schema}.journal AS late
    WHERE late.kind = 'stale_report' AND late.at >= %(since)s::float8 AND EXISTS (
        SELECT FROM {schema}.journal AS line
        WHERE line.job_id = late.job_id AND line.fence = late.fence AND line.kind = 'zombie'
            AND line.at >= %(since)s::float8
    )
), (
    SELECT coalesce(json_agg(json_build_array(kind, task, queue, detector, decision, attempts)), '[]')::text FROM (
        SELECT kind, task, queue, detector, decision, sum(attempts)::bigint AS attempts FROM {schema}.crash
        WHERE slot >= %(slot)s
        GROUP BY kind, task, queue, detector, decision
    ) AS counted
);

-- name: counters
SELECT (
    SELECT coalesce(json_agg(json_build_array(queue, state, ended)), '[]')::text FROM (
        SELECT queue, state, sum(coalesce(ended, greatest(jobs, 0)))::bigint AS ended FROM {schema}.tally
        GROUP BY queue, state
        HAVING sum(coalesce(ended, greatest(jobs, 0))) > 0
    ) AS counted
), (
    SELECT coalesce(json_agg(json_build_array(kind, '', '', detector, decision, attempts)), '[]')::text FROM (
        SELECT kind, detector, decision, sum(attempts)::bigint AS attempts FROM {schema}.crash
        GROUP BY kind, detector, decision
    ) AS counted
);

-- name: rollups
SELECT (
    SELECT '[' || coalesce(string_agg({rollup}, ','), '') || ']' FROM {schema}.rollup
    WHERE span = %(span)s::integer AND slot >= %(slot)s::bigint
), (
    SELECT '[' || coalesce(string_agg(format('[%%s,%%s]', minute, lines), ','), '') || ']' FROM {schema}.delta
);

-- name: fold_alone
-- Two folds at once would each miss what the other one adds. It must be held before the next statement begins to read.
SELECT pg_try_advisory_xact_lock(hashtextextended('{schema}', 5));

-- name: fold
WITH {allowed},
small AS (
    DELETE FROM {schema}.delta WHERE ctid = ANY (ARRAY(
        SELECT each.ctid FROM allowed, {schema}.delta AS each WHERE allowed.yes
        LIMIT %(limit)s::bigint FOR UPDATE OF each SKIP LOCKED
    ))
    RETURNING minute, lines
)
SELECT (SELECT yes FROM allowed), {wall}, (SELECT count(*) FROM small), (
    SELECT '[' || coalesce(string_agg(format('[%%s,%%s]', minute, lines), ','), '') || ']' FROM small
);

-- name: fold_stored
-- The rollups that may change, and those of the span for ever.
SELECT '[' || coalesce(string_agg({rollup}, ','), '') || ']' FROM {schema}.rollup
WHERE span = 0 OR (span, slot, queue) IN (
    SELECT (value ->> 0)::integer, (value ->> 1)::bigint, value ->> 2 FROM json_array_elements(%(places)s::json) AS value
);

-- name: fold_write
INSERT INTO {schema}.rollup (span, slot, queue, arrived, came, endings)
SELECT (value ->> 0)::integer, (value ->> 1)::bigint, value ->> 2, (value ->> 3)::bigint, (value ->> 4)::bigint, value ->> 5
FROM json_array_elements(%(rollups)s::json) AS value
ON CONFLICT (span, slot, queue) DO UPDATE SET
    arrived = excluded.arrived, came = excluded.came, endings = excluded.endings;

-- name: fold_old
DELETE FROM {schema}.rollup USING unnest(%(spans)s::integer[], %(oldest)s::bigint[]) AS kept (span, slot)
WHERE rollup.span = kept.span AND rollup.slot < kept.slot;

-- name: due
-- As in `claim`: the lanes are found by leaping, unless they are given. A worker that %(sleeps)s says so, if nothing is
-- due: it counts one more sleep, which every producer sees at once. A queue with limits, a rate or groups is answered for
-- by itself: what is set for it, and its earliest job.
WITH RECURSIVE turns AS MATERIALIZED (
    SELECT queue.name FROM {schema}.queue AS queue
    WHERE queue.name = ANY (%(queues)s::text[]) AND queue.by_turns
),
wanted AS (
    SELECT DISTINCT each AS queue, each IN (SELECT name FROM turns) AS by_turns FROM unnest(%(queues)s::text[]) AS each
    WHERE NOT EXISTS (SELECT FROM {schema}.queue WHERE queue.name = each AND queue.paused AND NOT queue.by_turns)
),
lane (queue, priority) AS (
    SELECT wanted.queue, first.priority
    FROM wanted
    CROSS JOIN LATERAL (
        SELECT job.priority FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = wanted.queue
            AND (%(lanes)s::json IS NULL OR wanted.by_turns)
        ORDER BY job.priority DESC
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT lane.queue, next.priority
    FROM lane
    CROSS JOIN LATERAL (
        SELECT job.priority FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = lane.queue AND job.priority < lane.priority
        ORDER BY job.priority DESC
        LIMIT 1
    ) AS next
),
begun (queue, priority, run_at, seq) AS (
    SELECT queue, priority, '-infinity'::float8, 0 FROM lane
    UNION ALL
    SELECT value ->> 0, (value ->> 1)::bigint, (value ->> 2)::float8, (value ->> 3)::bigint
    FROM json_array_elements(%(lanes)s::json) AS value
    WHERE value ->> 0 IN (SELECT queue FROM wanted WHERE NOT by_turns)
),
earliest_of AS MATERIALIZED (
    SELECT begun.queue, min(first.run_at) AS run_at
    FROM begun
    CROSS JOIN LATERAL (
        SELECT job.run_at FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = begun.queue AND job.priority = begun.priority
            AND (job.run_at, job.seq) > (begun.run_at, begun.seq)
            AND job.task = ANY (%(tasks)s::text[])
        ORDER BY job.run_at, job.seq
        LIMIT 1
    ) AS first
    GROUP BY begun.queue
),
earliest AS MATERIALIZED (
    SELECT min(run_at) AS run_at FROM earliest_of WHERE queue NOT IN (SELECT name FROM turns)
)
SELECT run_at, (
    SELECT nextval('{schema}.sleep_count')
    WHERE %(sleeps)s::boolean
        AND coalesce(run_at > {wall}, true)
        AND has_sequence_privilege('{schema}.sleep_count'::regclass, 'USAGE')
        AND current_setting('transaction_read_only') = 'off'
), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, CASE WHEN EXISTS (SELECT FROM turns) THEN (
    {queue_rows} WHERE queue.name IN (SELECT name FROM turns)
) END, (
    SELECT json_object_agg(turns.name, least((
        SELECT earliest_of.run_at FROM earliest_of WHERE earliest_of.queue = turns.name
    ), (
        SELECT job.run_at FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = turns.name
            AND job.task = ANY (%(tasks)s::text[])
        ORDER BY job.run_at
        LIMIT 1
    )))::text
    FROM turns
)
FROM earliest;

-- name: wait
LISTEN {channel};

-- name: wait_look
SELECT 1;

-- name: wake
-- Sends a hint for each queue for which somebody may have gone to sleep since this process has last sent one.
WITH slept AS MATERIALIZED (
    SELECT {slept} AS number
)
SELECT number, (
    SELECT count(pg_notify(%(channel)s, to_json(each.queue)::text))
    FROM unnest(%(queues)s::text[], %(woken)s::bigint[]) AS each (queue, woken)
    WHERE each.woken IS DISTINCT FROM slept.number
)
FROM slept;

-- name: wake_sleepers
-- For each queue that is not paused and has something due: how much there is of it, as far as it is worth counting, and
-- its newest job. Queues and priorities are found by leaping, as in `due`; jobs with a group have an index of their own,
-- in which they stand by the time alone. It is one look for what is due.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT extract(epoch FROM clock_timestamp())::float8 AS wall
),
lane (queue, priority) AS (
    (
        SELECT job.queue, job.priority FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NULL
        ORDER BY job.queue, job.priority DESC
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue, next.priority
    FROM lane
    CROSS JOIN LATERAL (
        (
            SELECT job.queue, job.priority FROM {schema}.job AS job
            WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue = lane.queue AND job.priority < lane.priority
            ORDER BY job.queue, job.priority DESC
            LIMIT 1
        )
        UNION ALL
        (
            SELECT job.queue, job.priority FROM {schema}.job AS job
            WHERE job.state = 'ready' AND job.grp IS NULL AND job.queue > lane.queue
            ORDER BY job.queue, job.priority DESC
            LIMIT 1
        )
        LIMIT 1
    ) AS next
),
grouped (queue) AS (
    (
        SELECT job.queue FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NOT NULL
        ORDER BY job.queue, job.run_at
        LIMIT 1
    )
    UNION ALL
    SELECT next.queue
    FROM grouped
    CROSS JOIN LATERAL (
        SELECT job.queue FROM {schema}.job AS job
        WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue > grouped.queue
        ORDER BY job.queue, job.run_at
        LIMIT 1
    ) AS next
),
counted AS (
    SELECT lane.queue, due.*
    FROM lane
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs, max(few.seq) AS newest
        FROM (
            SELECT job.seq FROM {schema}.job AS job
            WHERE job.state = 'ready' AND job.grp IS NULL
                AND job.queue = lane.queue AND job.priority = lane.priority
                AND job.run_at <= (SELECT wall FROM clock)
            ORDER BY job.run_at
            LIMIT %(limit)s::bigint
        ) AS few
    ) AS due
    UNION ALL
    SELECT grouped.queue, due.*
    FROM grouped
    CROSS JOIN LATERAL (
        SELECT count(*) AS jobs, max(few.seq) AS newest
        FROM (
            SELECT job.seq FROM {schema}.job AS job
            WHERE job.state = 'ready' AND job.grp IS NOT NULL AND job.queue = grouped.queue
                AND job.run_at <= (SELECT wall FROM clock)
            ORDER BY job.run_at
            LIMIT %(limit)s::bigint
        ) AS few
    ) AS due
),
found AS MATERIALIZED (
    SELECT queue, sum(jobs) AS jobs, max(newest) AS newest
    FROM counted
    WHERE jobs > 0 AND NOT EXISTS (SELECT FROM {schema}.queue WHERE queue.name = counted.queue AND queue.paused)
    GROUP BY queue
)
SELECT coalesce(json_agg(json_build_array(queue, jobs, newest)), '[]')::text, {slept}, (
    SELECT nextval('{schema}.due_looks')
    WHERE has_sequence_privilege('{schema}.due_looks'::regclass, 'USAGE')
        AND current_setting('transaction_read_only') = 'off'
)
FROM found;

-- name: ping
-- Asks for the lock that every change of a job takes, and changes nothing: reads may work while nobody can renew. A
-- standby, or a server that was told to be read-only, refuses.
UPDATE {schema}.job SET fence = fence WHERE false;

-- name: ping_durably
-- A change like any other: its commit waits for the standby that must confirm it. If none does, this row stays locked
-- until one is back, so the next tries end at their lock timeout and leave no further session behind. A change of a
-- moment ago that is visible was committed, and serves all reapers that look at the same time.
WITH changed AS (
    UPDATE {schema}.meta SET value = extract(epoch FROM clock_timestamp())::text
    WHERE name = 'pinged_at' AND abs(extract(epoch FROM clock_timestamp())::float8 - value::float8) > 0.5
)
INSERT INTO {schema}.meta (name, value)
SELECT 'pinged_at', extract(epoch FROM clock_timestamp())::text
WHERE NOT EXISTS (SELECT FROM {schema}.meta WHERE name = 'pinged_at')
ON CONFLICT (name) DO NOTHING;

-- name: session
-- The settings of a session that is ours: without them a role, a database, an address or PGOPTIONS would decide. Behind
-- a pooler (the server's process is not the one that the driver was told) nothing is set for longer than this
-- statement. An older server does not know all of them.
SELECT pg_backend_pid() <> %(told)s, set_config(pinned.name, pinned.value, pg_backend_pid() <> %(told)s)
FROM (VALUES
    ('client_encoding', 'UTF8'),
    ('default_transaction_isolation', 'read committed'),
    ('extra_float_digits', '1'),
    ('idle_in_transaction_session_timeout', '10s'),
    ('idle_session_timeout', '0'),
    ('lock_timeout', '1s'),
    ('search_path', 'pg_catalog, pg_temp'),
    ('statement_timeout', '5s'),
    ('TimeZone', 'UTC'),
    ('transaction_timeout', '0')
) AS pinned (name, value)
WHERE current_setting(pinned.name, true) IS NOT NULL;

-- name: limits
-- How long this session waits for another transaction's lock, and works on one statement.
SELECT set_config('lock_timeout', %(lock_ms)s, false), set_config('statement_timeout', %(statement_ms)s, false);

-- name: begin
-- The same for one transaction.
BEGIN ISOLATION LEVEL READ COMMITTED;
SET LOCAL client_encoding = 'UTF8';
SET LOCAL extra_float_digits = 1;
SET LOCAL idle_in_transaction_session_timeout = '10s';
SET LOCAL lock_timeout = %(lock_ms)s;
SET LOCAL search_path = pg_catalog, pg_temp;
SET LOCAL statement_timeout = %(statement_ms)s;
SET LOCAL TimeZone = 'UTC';

-- name: standing
SELECT
    (SELECT value::integer FROM {schema}.meta WHERE name = 'schema'),
    (SELECT value::integer FROM {schema}.meta WHERE name = 'works_with'),
    (SELECT value FROM {schema}.meta WHERE name = 'identity'),
    {wall},
    (SELECT max(number) FROM {schema}.incarnation),
    (SELECT at FROM {schema}.incarnation ORDER BY number DESC LIMIT 1),
    (SELECT value::bigint FROM {schema}.meta WHERE name = 'removals'),
    (SELECT beats FROM {schema}.worker WHERE id = %(worker)s),
    (SELECT coalesce(sum(beats + 1), 0)::bigint FROM {schema}.worker),
    (
        SELECT coalesce(json_agg(id), '[]')::text FROM (SELECT id FROM {schema}.job ORDER BY id DESC LIMIT 2) AS last_two
    ),
    (
        SELECT coalesce(json_agg(known.id), '[]')::text FROM unnest(%(known)s::text[]) AS known (id)
        WHERE NOT EXISTS (SELECT FROM {schema}.job WHERE job.id = known.id)
    ),
    EXISTS (
        SELECT FROM {schema}.job
        WHERE id = %(settled)s AND fence = %(fence)s AND claim_id = %(claim_id)s AND state || '' = 'running'
    ),
    (
        SELECT count(*) FROM {schema}.doubt WHERE incarnation = (SELECT max(number) FROM {schema}.incarnation)
    ),
    EXISTS (SELECT FROM {schema}.worker WHERE gone_at IS NULL AND schema < 13);  -- which began to count removals

-- name: doubt
INSERT INTO {schema}.doubt (incarnation, kind, evidence, worker, seen, found, at)
SELECT max(number), %(kind)s, %(evidence)s, %(worker)s, %(seen)s, %(found)s,
    {wall}
FROM {schema}.incarnation
HAVING max(number) = %(incarnation)s
ON CONFLICT DO NOTHING;

-- name: doubts
SELECT coalesce(json_agg(json_build_array(kind, evidence, seen, found, worker, at) ORDER BY at), '[]')::text
FROM {schema}.doubt
WHERE incarnation = (SELECT max(number) FROM {schema}.incarnation);

-- name: accept
WITH accepted AS (
    INSERT INTO {schema}.incarnation (number, at, actor, note)
    SELECT max(number) + 1, {wall}, %(actor)s,
        %(note)s
    FROM {schema}.incarnation
    HAVING max(number) = %(seen)s
    RETURNING number
)
SELECT coalesce((SELECT number FROM accepted), (SELECT max(number) FROM {schema}.incarnation));

-- name: schema_exists
-- Not to_regclass(): that answers from a memory of this session, in which what another has just made is not there.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_class AS class JOIN pg_catalog.pg_namespace AS space ON space.oid = class.relnamespace
    WHERE space.nspname = %(schema)s AND class.relname = 'meta'
);

-- name: schema
SELECT (SELECT value::integer FROM {schema}.meta WHERE name = 'schema'),
    (SELECT value::integer FROM {schema}.meta WHERE name = 'works_with');

-- name: identity
SELECT value FROM {schema}.meta WHERE name = 'identity';

-- name: identity_joined
-- The same on a caller's connection, whose search_path may put other operators before PostgreSQL's own.
SELECT value FROM {schema}.meta WHERE name OPERATOR(pg_catalog.=) 'identity';

-- name: migrate_lock
-- Not with 1 or 2: living workers hold these locks, for their roles.
SELECT pg_advisory_xact_lock(hashtextextended(%(schema)s, 4));

-- name: migrate_schema_exists
-- CREATE SCHEMA IF NOT EXISTS asks for the right to create one even where it is there.
SELECT to_regnamespace(%(schema)s) IS NOT NULL;

-- name: migrate_schema
CREATE SCHEMA IF NOT EXISTS {schema};

-- name: migrate
INSERT INTO {schema}.meta (name, value) VALUES ('schema', %(version)s), ('works_with', %(works_with)s)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;

-- name: migrate_limits
-- Nobody may wait behind us for longer than this: a piece that does not get its lock is tried again.
SELECT set_config('lock_timeout', '500ms', true), set_config('statement_timeout', '60s', true);

-- name: migrate_shut
-- Workers whose program is too old for the migration that begins cannot claim any more. They still settle.
CREATE OR REPLACE FUNCTION {schema}.refuse_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT schema FROM {schema}.worker WHERE id = NEW.worker)
        < (SELECT value::integer FROM {schema}.meta WHERE name = 'works_with')
    THEN
        RAISE EXCEPTION 'this program is too old for the schema of the store: upgrade it';
    END IF;
    RETURN NEW;
END
$$;
CREATE OR REPLACE TRIGGER job_too_old BEFORE UPDATE OF state ON {schema}.job
FOR EACH ROW WHEN (NEW.state = 'running' AND OLD.state <> 'running') EXECUTE FUNCTION {schema}.refuse_claim();

-- name: migrate_running
-- A lease that has run out is not waited for: a reaper of the new version finds it.
SELECT coalesce(json_agg(json_build_array(name, jobs)), '[]')::text FROM (
    SELECT worker.name, count(*) AS jobs
    FROM {schema}.job AS job JOIN {schema}.worker AS worker ON worker.id = job.worker
    WHERE job.state = 'running' AND worker.schema < %(works_with)s AND worker.gone_at IS NULL
        AND job.lease_until > {lease}
    GROUP BY worker.name
) AS older;

-- name: migrate_retire
UPDATE {schema}.worker
SET gone_at = {wall},
    gone_cause = 'its program is too old for the schema', exit_kind = 'released'
WHERE schema < %(works_with)s AND gone_at IS NULL;

-- name: migrate_open
DROP TRIGGER IF EXISTS job_too_old ON {schema}.job;

-- name: migrate_progress
SELECT pieces, after FROM {schema}.migration;

-- name: migrate_on
INSERT INTO {schema}.migration (number, pieces, after) VALUES (%(number)s, %(pieces)s, %(after)s)
ON CONFLICT (number) DO UPDATE SET pieces = excluded.pieces, after = excluded.after;

-- name: migrate_done
DELETE FROM {schema}.migration;

-- name: migrate_page_job
-- By the index on (state, seq): there is none on seq alone.
SELECT max(seq), count(*) FROM (
    SELECT nearest.seq
    FROM unnest(ARRAY['ready', 'running', 'waiting', 'held', 'done', 'dead', 'cancelled', 'rolled_back']) AS each (state)
    CROSS JOIN LATERAL (
        SELECT seq FROM {schema}.job
        WHERE job.state = each.state AND job.seq > %(after)s
        ORDER BY seq
        LIMIT %(page)s
    ) AS nearest
    ORDER BY seq
    LIMIT %(page)s
) AS page;

-- name: migrate_page_journal
SELECT max(seq), count(*)
FROM (SELECT seq FROM {schema}.journal WHERE seq > %(after)s ORDER BY seq LIMIT %(page)s) AS page;

-- name: missing
SELECT coalesce(json_agg(wanted.name ORDER BY wanted.name), '[]')::text FROM unnest(%(tables)s::text[]) AS wanted (name)
WHERE NOT EXISTS (
    SELECT FROM pg_catalog.pg_class AS class JOIN pg_catalog.pg_namespace AS space ON space.oid = class.relnamespace
    WHERE space.nspname = %(schema)s AND class.relname = wanted.name
);

-- name: check
-- Jobs that run under a worker without a row.
SELECT coalesce(json_agg(json_build_array(id, worker) ORDER BY seq), '[]')::text FROM (
    SELECT id, worker, seq FROM {schema}.job
    WHERE state = 'running' AND worker NOT IN (SELECT id FROM {schema}.worker)
    ORDER BY seq
    LIMIT 20
) AS orphan;

-- name: condition
-- In the order of condition.py: Condition. Of other users' sessions only few columns are shown to a user without
-- pg_read_all_stats: that they are there, and in which database; the rest, such as xact_start, is NULL.
SELECT json_build_object(
    'version', current_setting('server_version'),
    'database', current_database(),
    'schema', %(schema)s::text,
    'fsync', current_setting('fsync')::boolean,
    'full_page_writes', current_setting('full_page_writes')::boolean,
    'synchronous_commit', current_setting('synchronous_commit'),
    'autovacuum', current_setting('autovacuum')::boolean,
    'takes_writes', NOT pg_is_in_recovery() AND NOT current_setting('transaction_read_only')::boolean,
    'connections', (SELECT count(*) FROM pg_stat_activity WHERE datid IS NOT NULL),
    'connections_max', current_setting('max_connections')::integer,
    'oldest_transaction_s', (
        SELECT max(extract(epoch FROM clock_timestamp() - xact_start))::float8 FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()
    ),
    'hidden_sessions', (
        SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type IS NULL
    ),
    'table_bytes', pg_total_relation_size(jobs.relid),
    'live_rows', jobs.n_live_tup,
    'dead_rows', jobs.n_dead_tup,
    'events', (
        SELECT coalesce(max(seq) - min(seq) + 1, 0) FROM {schema}.journal
    ),
    'notify_share', pg_notification_queue_usage(),
    'unlocked', (SELECT count(*) FROM {schema}.worker WHERE gone_at IS NULL AND server IS NULL)
)::text
FROM pg_stat_user_tables AS jobs
WHERE jobs.schemaname = %(schema)s AND jobs.relname = 'job';
