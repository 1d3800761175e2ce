"""PostgreSQL behind a bad network: workers go on, repeat what is safe to repeat, stop in time, and say so."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace

from holdfast import Context
from holdfast.core.machine import State
from holdfast.core.records import Job, Pulse
from holdfast.core.verdict import Released, Succeeded
from holdfast.errors import StoreReadOnly, StoreUnavailable
from holdfast.stores.postgres import connection
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Reply, Store
from tests.factory import a_worker, add, claim, enrol, make_job, row, settle, settlement, start
from tests.proxy import Proxy
from tests.servers import PostgresServer
from tests.worker.house import House, until

Houses = Callable[..., House]


def opened(url: str, schema: str, options: str = "") -> PostgresStore:
    store = PostgresStore(f"{url}?schema={schema}{options}")
    store.migrate()
    return store


def loud(caplog: pytest.LogCaptureFixture, words: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if words in record.getMessage()]


# ---------------------------------------------------------------------------------- answers that were lost


@pytest.fixture
def far(proxy: Proxy, schema: str) -> Any:
    """A store at the other end of the proxy."""
    store = opened(proxy.url, schema)
    yield store
    store.close()


@pytest.fixture
def near(server: PostgresServer, schema: str) -> Iterator[PostgresStore]:
    store = opened(server.url, schema)
    yield store
    store.close()


def test_housekeeping_that_fails_loses_no_answer(
    near: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise StoreUnavailable("no connection was free")

    job = start(near)
    monkeypatch.setattr("holdfast.stores.postgres.statements.FOLD_EVERY", 1)
    monkeypatch.setattr(near._db, "run", fail)
    assert settle(near, job, Succeeded()) is Reply.ACCEPTED
    stale = Pulse(replace(job.lease, fence=job.lease.fence - 1))
    assert near.beat(job.worker or "", [stale]).lost == [job.id]
    assert caplog.text.count("no connection was free") == 2


def test_an_enqueue_whose_answer_was_swallowed_stores_one_job(far: Store, proxy: Proxy) -> None:
    job = make_job()
    proxy.swallow(b"INSERT INTO")
    [added] = far.add([job])
    assert proxy.swallowed == 1
    assert added.id == job.id
    assert far.counts() == {"default": {State.READY: 1}}


def test_a_bulk_enqueue_whose_end_was_swallowed_stores_each_job_once(far: Store, proxy: Proxy) -> None:
    jobs = [make_job() for _ in range(250)]
    proxy.swallow(b"CopyDone\0")
    assert [added.id for added in far.add(jobs)] == [job.id for job in jobs]
    assert proxy.swallowed == 1
    assert far.counts() == {"default": {State.READY: 250}}


def test_a_claim_whose_answer_was_swallowed_gives_the_same_rows_and_no_more(far: Store, proxy: Proxy) -> None:
    for _ in range(5):
        add(far)
    worker = enrol(far)
    proxy.swallow(b"SKIP LOCKED")
    jobs = claim(far, worker, limit=2)
    assert proxy.swallowed == 1
    assert [(job.attempt, job.fence) for job in jobs] == [(1, 1), (1, 1)]
    assert far.counts() == {"default": {State.READY: 3, State.RUNNING: 2}}


def test_a_claim_that_arrives_after_its_own_repeat_takes_nothing(far: Store, proxy: Proxy) -> None:
    """Its client cannot know whether the server will ever hear of it, and asks again: that one is answered."""
    for _ in range(5):
        add(far)
    worker = enrol(far)
    proxy.delay(b"SKIP LOCKED")
    for job in claim(far, worker, limit=2):
        settle(far, job, Succeeded("1"))
    proxy.deliver()
    assert proxy.swallowed == 1
    assert far.counts() == {"default": {State.READY: 3, State.DONE: 2}}
    assert len(claim(far, worker, limit=2)) == 2, "the next one is another"


def test_a_claim_waits_for_its_first_try_that_the_server_still_works_on(
    far: Store, proxy: Proxy, server: PostgresServer, schema: str
) -> None:
    """It sees what that one took, and takes no more."""
    for _ in range(5):
        add(far)
    worker = enrol(far)
    server.execute(
        f"CREATE FUNCTION {schema}.linger() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_advisory_xact_lock_shared(77); RETURN NULL; END $$; "
        f"CREATE TRIGGER linger AFTER UPDATE ON {schema}.job EXECUTE FUNCTION {schema}.linger()"
    )
    taken: list[Job] = []
    claiming = threading.Thread(target=lambda: taken.extend(claim(far, worker, limit=2)))
    with psycopg.connect(server.url) as holder:
        holder.execute("SELECT pg_advisory_xact_lock(77)")
        claiming.start()
        until(lambda: _waiting(server, "advisory") == 1, "the first try is at work")
        ends = proxy.cut(server_side=False)
        until(lambda: _waiting(server, "transactionid") == 1, "the second waits for it")
    claiming.join(60)
    assert [job.attempt for job in taken] == [1, 1]
    assert far.counts() == {"default": {State.READY: 3, State.RUNNING: 2}}
    for end in ends:
        end.close()


def test_a_repeated_claim_does_not_wait_long_for_the_lock_on_the_workers_row(
    server: PostgresServer, schema: str, proxy: Proxy, houses: Houses, caplog: pytest.LogCaptureFixture
) -> None:
    house = houses(proxy.url)
    house.store.real._hot.limits = limits = connection.Limits(0.2, 1.0)
    house.store.real._keep_beat = lambda _: None

    @house.app.task
    def fine() -> str:
        return "fine"

    runner = house.start()
    with psycopg.connect(server.url) as stranger:
        stranger.execute(f"SELECT FROM {schema}.worker WHERE id = '{runner.worker_id}' FOR UPDATE")
        proxy.swallow(b"beside AS MATERIALIZED")  # of the claim
        sent_at = time.monotonic()
        job = fine.enqueue()
        assert job.result(60) == "fine"
        assert proxy.swallowed == 1
        assert time.monotonic() - sent_at >= limits.statement_s, "the server may have worked on the first try till then"
    assert house.row(job.id).attempt == 1
    assert len(loud(caplog, "no jobs are claimed meanwhile")) == 1


def _waiting(server: PostgresServer, event: str) -> Any:
    rows = server.execute(
        f"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = '{event}'"
    )
    return rows[0][0]


def test_a_beat_whose_answer_was_swallowed_renews_the_lease(far: Store, proxy: Proxy) -> None:
    job = start(far, lease_s=30)
    assert job.worker is not None
    proxy.swallow(b"beat_at")
    answer = far.beat(job.worker, [Pulse(job.lease)])
    assert proxy.swallowed == 1
    assert (answer.lost, answer.gone) == ([], False)
    assert (row(far, job.id).lease_until or 0) > (job.lease_until or 0)


@pytest.mark.parametrize("outcome", [Succeeded('"fine"'), None], ids=["plain", "with events"])
def test_a_settle_whose_answer_was_swallowed_is_answered_already(far: Store, proxy: Proxy, outcome: Any) -> None:
    job = start(far)
    proxy.swallow(b"UPDATE")
    assert settle(far, job, outcome or Released(started=True, cause="stopping")) is Reply.ALREADY
    assert proxy.swallowed == 1
    assert row(far, job.id).state is (State.DONE if outcome else State.READY)
    assert len(far.journal(job.id)) == (0 if outcome else 1)


def test_an_enrolment_whose_answer_was_swallowed_is_one_worker_that_lives(far: Store, proxy: Proxy) -> None:
    worker = a_worker()
    proxy.swallow(b"supervisor, queues, slots")
    far.enroll(worker)
    assert proxy.swallowed == 1
    assert [each.id for each in far.workers()] == [worker.id]
    assert far.vanished() == []


def test_a_transaction_whose_commit_was_swallowed_counts_once(
    proxy: Proxy, houses: Houses, server: PostgresServer, schema: str
) -> None:
    """P6: the worker cannot know whether it was committed; the fence knows."""
    house = houses(proxy.url)
    server.execute(f"CREATE TABLE {schema}.effect (job text)")

    @house.app.task
    def pay(ctx: Context) -> int:
        with ctx.transaction() as db:
            db.execute(f"INSERT INTO {schema}.effect VALUES (%s)", (ctx.job.id,))
        return ctx.attempt

    house.start()
    proxy.swallow(b"COMMIT\0")
    job = pay.enqueue()
    assert job.result(60) == 1
    assert proxy.swallowed == 1
    assert server.execute(f"SELECT count(*) FROM {schema}.effect") == [(1,)]
    assert house.kinds(job.id) == ["succeeded"]


@pytest.mark.parametrize("ill", ["cut", "abandon"])
def test_a_kept_session_that_has_died_costs_no_attempt(
    proxy: Proxy, houses: Houses, ill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.postgres.transaction.FencedConnection.answer_s", 0.5)
    monkeypatch.setattr(connection, "ANSWER_S", 0.5)
    monkeypatch.setattr("holdfast.stores.postgres.liveness._LOOK_ANSWER_S", 0.5)
    house = houses(proxy.url)

    @house.app.task
    def pay(ctx: Context) -> int:
        with ctx.transaction() as db:
            db.execute("SELECT 1")
        return ctx.attempt

    house.start()
    assert pay.enqueue().result(60) == 1
    getattr(proxy, ill)()
    job = until(lambda: _tried(pay), "it can be enqueued")
    assert until(lambda: _row(house, job.id).state == "done")
    assert _row(house, job.id).attempt == 1


def _tried(task: Any) -> Any:
    try:
        return task.enqueue()
    except StoreUnavailable:
        return None


def _row(house: House, job_id: str) -> Any:
    try:
        return house.row(job_id)
    except StoreUnavailable:
        return make_job()


def test_a_network_that_cuts_everything_all_the_time_loses_nothing(proxy: Proxy, houses: Houses) -> None:
    """Every verb is repeated by somebody, in every state of its first try; no job is lost, run twice or left behind."""
    house = houses(proxy.url)
    runs: list[str] = []

    @house.app.task
    def count(ctx: Context) -> int:
        runs.append(ctx.job.id)
        time.sleep(0.02)
        return ctx.attempt

    jobs = [count.enqueue().id for _ in range(120)]
    house.start(name="a", slots=4)
    house.start(name="b", slots=4)
    for words in (b"SKIP LOCKED", b"UPDATE", b"SKIP LOCKED", b"UPDATE") * 5:
        proxy.swallow(words)
        proxy.cut()
        seen = len(runs)
        until(lambda seen=seen: len(runs) > seen or len(runs) >= len(jobs), "it goes on")  # type: ignore[misc]
    until(lambda: house.store.counts() == {"default": {State.DONE: len(jobs)}}, "all are done")
    assert sorted(runs) == sorted(jobs)
    assert house.store.journal(kinds=["zombie", "stale_report", "failed"]) == []


# ---------------------------------------------------------------------------------------- the network


def test_connections_that_are_cut_and_refused_for_a_while_kill_nobody(
    proxy: Proxy, houses: Houses, caplog: pytest.LogCaptureFixture
) -> None:
    house = houses(proxy.url)
    begun, go_on = threading.Event(), threading.Event()

    @house.app.task
    def wait() -> str:
        begun.set()
        go_on.wait(60)
        return "kept"

    @house.app.task
    def fine() -> str:
        return "fine"

    house.start(name="a")
    house.start(name="b")
    job = wait.enqueue()
    assert begun.wait(60)
    with proxy.down():
        go_on.set()  # it ends while the store is away: its ending is kept
        with pytest.raises(StoreUnavailable, match="refused"):
            fine.enqueue()
        until(lambda: len(loud(caplog, "the store fails")) >= 4, "they notice")
    assert fine.enqueue().result(60) == "fine"
    assert job.result(60) == "kept"
    assert house.row(job.id).attempt == 1
    assert {worker.gone_at for worker in house.store.workers(gone=True)} == {None}
    until(lambda: loud(caplog, "the store is back after"))
    assert len(loud(caplog, "the store fails")) <= 8, "one line for each thread, not one for each try"
    assert "Connection refused" in loud(caplog, "the store fails")[-1]
    assert [record for record in caplog.records if record.name.startswith("psycopg")] == []


def test_connections_that_are_cut_at_once_are_opened_again_within_one_call(far: PostgresStore, proxy: Proxy) -> None:
    with far._db._open_pool().connection(), far._db._open_pool().connection():
        add(far)  # so that there are several
    proxy.cut()
    for _ in range(4):
        add(far)
    assert far.counts() == {"default": {State.READY: 5}}


def test_enrolling_over_a_session_that_was_cut_is_trouble_that_passes(far: PostgresStore, proxy: Proxy) -> None:
    """Nothing of the driver's own gets through: a worker would not know what to do with it."""
    enrol(far)
    for _ in range(3):
        proxy.cut()
        until(lambda: _enrolled(far), "it works again", timeout_s=60)
    assert far.vanished() == []


def _enrolled(store: PostgresStore) -> bool:
    try:
        enrol(store)
    except StoreUnavailable:
        return False
    return True


@pytest.mark.slow  # a lease has to run out, and is long: a busy machine has a second between the asking and the end
def test_a_worker_that_is_cut_off_stops_before_its_lease_ends_and_is_refused_when_it_is_back(
    proxy: Proxy, houses: Houses, server: PostgresServer
) -> None:
    """The network takes everything and passes nothing on: no error says that the store is away."""
    there, here = houses(proxy.url), houses(server.url)
    stopped: list[float] = []
    runs: list[str] = []

    def define(house: House, name: str) -> Any:
        @house.app.task(name="spin", lease_s=9)
        def spin(ctx: Context) -> str:
            runs.append(name)
            try:
                while name == "there":
                    time.sleep(0.002)
            except BaseException:
                stopped.append(time.time())
                raise
            return name

        return spin

    spin, _ = define(there, "there"), define(here, "here")
    there.start(name="there")
    job = spin.enqueue()
    here.until_state(job.id, "running")
    first = here.row(job.id)
    until(lambda: (here.row(job.id).lease_until or 0) > (first.lease_until or 0), "it beats")
    proxy.stall()
    lease_until = here.row(job.id).lease_until or 0
    here.start(name="here")
    until(lambda: stopped, "it stops by itself")
    assert stopped[0] < lease_until
    here.until_state(job.id, "done")
    assert here.row(job.id).result == '"here"'
    assert runs == ["there", "here"]
    proxy.flow()
    until(lambda: here.events(job.id, "stale_report"), "what it says is refused")
    assert here.row(job.id).result == '"here"'


def test_a_connection_that_never_answers_is_given_up(
    proxy: Proxy, houses: Houses, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that is connected and not consuming finds that out by itself."""
    monkeypatch.setattr(connection, "ANSWER_S", 1.0)
    monkeypatch.setattr("holdfast.stores.postgres.liveness._LOOK_ANSWER_S", 1.0)
    house = houses(proxy.url)

    @house.app.task
    def fine() -> str:
        return "fine"

    house.start()
    assert fine.enqueue().result(60) == "fine"
    proxy.abandon()
    until(lambda: loud(caplog, "no answer within 1 s"), timeout_s=60)
    assert fine.enqueue().result(60) == "fine"
    assert {worker.gone_at for worker in house.store.workers(gone=True)} == {None}


@pytest.mark.slow  # beats have to pass
def test_a_slow_server_is_slow_and_nothing_else(proxy: Proxy, houses: Houses) -> None:
    house = houses(proxy.url)

    @house.app.task(lease_s=15)
    def fine(ctx: Context) -> int:
        beats = house.store.calls["beat"]
        until(lambda: house.store.calls["beat"] > beats + 1, "it beats")
        return ctx.attempt

    house.start(name="a")
    proxy.delay_s = 0.15  # each way: 0.3 s for every answer
    jobs = [fine.enqueue() for _ in range(2)]
    assert [job.result(60) for job in jobs] == [1, 1]
    assert house.store.journal(kinds=["zombie", "stale_report", "released"]) == []
    assert {worker.gone_at for worker in house.store.workers(gone=True)} == {None}


def test_a_store_that_cannot_be_reached_at_the_start_says_why_at_once(proxy: Proxy, schema: str) -> None:
    proxy.refuse()
    began = time.monotonic()
    store = PostgresStore(f"{proxy.url}?schema={schema}&wait_s=240")
    with pytest.raises(StoreUnavailable, match="refused"):
        store.migrate()
    assert time.monotonic() - began < 120
    proxy.listen()
    store.migrate()
    store.close()


# ------------------------------------------------------------------------------------------- the server


@pytest.fixture
def role(server: PostgresServer, schema: str) -> Any:
    """Where a user of the test's own comes in, and its name."""
    name = f"user_of_{schema}"
    server.execute(f"CREATE ROLE {name} LOGIN; GRANT CREATE ON DATABASE postgres TO {name}")
    return server.url.replace("holdfast@", f"{name}@"), name


def test_a_read_only_server_is_called_that_by_every_verb(server: PostgresServer, schema: str) -> None:
    store = opened(server.url, schema)
    job = start(store)
    spare = add(store)
    other = opened(server.url, schema, "&options=-c%20default_transaction_read_only%3Don")
    verbs: list[Callable[[], object]] = [
        lambda: other.add([make_job()]),
        lambda: other.claim(job.worker or "", "c", ["default"], ["t"], 1),
        lambda: other.beat(job.worker or "", [Pulse(job.lease)]),
        lambda: other.settle([settlement(job, Succeeded())]),
        lambda: other.retire(job.worker or "", "x"),
        lambda: other.acquire("d", "h", 5.0),
        lambda: other.pause("default", True),
        lambda: other.purge([State.DONE], 0.0),
        lambda: other.delete([spare.seen]),
        lambda: other.enroll(a_worker()),
        other.ping,
    ]
    for verb in verbs:
        with pytest.raises(StoreReadOnly):
            verb()
    assert row(other, job.id) == row(store, job.id) == job
    store.close()
    other.close()


@pytest.mark.slow  # the server is told, and the reaper's next looks are waited for
def test_a_worker_says_that_the_store_is_read_only_and_goes_on_when_it_is_not(
    server: PostgresServer, houses: Houses, caplog: pytest.LogCaptureFixture
) -> None:
    house = houses(server.url)
    begun, go_on = threading.Event(), threading.Event()

    @house.app.task
    def wait(ctx: Context) -> int:
        begun.set()
        go_on.wait(60)
        return ctx.attempt

    house.start()
    job = wait.enqueue()
    assert begun.wait(60)
    server.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    server.execute("SELECT pg_reload_conf()")
    try:
        until(lambda: loud(caplog, "takes no writes"), "it says so")
        # Its session ends as well: the lock is taken again, though its row cannot be written.
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        go_on.set()
        pids = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"
        held = until(lambda: server.execute(pids), "the lock is back")
        held_at = time.monotonic()
        until(lambda: time.monotonic() > held_at + 0.7)
        assert set(server.execute(pids)) & set(held), "and stays"
    finally:
        server.execute("ALTER SYSTEM RESET default_transaction_read_only")
        server.execute("SELECT pg_reload_conf()")
    assert job.result(60) == 1
    assert wait.enqueue().result(60) == 1
    assert {worker.gone_at for worker in house.store.workers(gone=True)} == {None}


def test_a_pool_that_is_exhausted_says_so_in_time_and_beats_recover(server: PostgresServer, schema: str) -> None:
    store = opened(server.url, schema, "&pool_max=2&wait_s=5")
    job = start(store)
    pool = store._hot._open_pool()
    with pool.connection(), pool.connection():
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="pool_max"):
            store.beat(job.worker or "", [Pulse(job.lease)])
        assert 4.5 < time.monotonic() - began < 60
    assert store.beat(job.worker or "", [Pulse(job.lease)]).lost == []
    assert (row(store, job.id).lease_until or 0) > (job.lease_until or 0)
    store.close()


def test_a_program_that_uses_up_all_connections_does_not_hold_up_its_worker(
    server: PostgresServer, schema: str
) -> None:
    """What a worker asks for all the time has connections of its own."""
    store = opened(server.url, schema, "&pool_max=2&wait_s=5")
    job = start(store)
    pool = store._db._open_pool()
    with pool.connection(), pool.connection():
        with pytest.raises(StoreUnavailable, match="pool_max"):
            add(store)
        assert store.beat(job.worker or "", [Pulse(job.lease)]).lost == []
        assert settle(store, job, Succeeded("1")) is Reply.ACCEPTED
    store.close()


def test_a_server_without_room_for_another_session_says_so(server: PostgresServer, schema: str, role: Any) -> None:
    url, name = role
    server.execute(f"ALTER ROLE {name} CONNECTION LIMIT 3")
    store = opened(url, schema, "&wait_s=10")
    other, pool = store._db._open_pool(), store._hot._open_pool()
    too_many = pytest.raises(StoreUnavailable, match="too many connections")
    with other.connection(), pool.connection(), pool.connection(), too_many:
        store.ping()
    store.ping()
    store.close()


def test_a_locked_table_is_trouble_that_passes_whatever_limits_the_role_has(
    server: PostgresServer, schema: str, houses: Houses, role: Any, caplog: pytest.LogCaptureFixture
) -> None:
    url, name = role
    server.execute(f"ALTER ROLE {name} SET statement_timeout = '1ms'")
    house = houses(url, "&wait_s=10")

    @house.app.task
    def fine(ctx: Context) -> int:
        return ctx.attempt

    house.start()
    assert fine.enqueue().result(60) == 1
    with psycopg.connect(server.url) as db:  # somebody has the table for himself
        db.execute(f"LOCK TABLE {schema}.job IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreUnavailable, match="another transaction holds a lock"):
            fine.enqueue()
        until(lambda: loud(caplog, "another transaction holds a lock"), "the worker says so")
    assert fine.enqueue().result(60) == 1


# ------------------------------------------------------------------------------------------- a lost standby


@pytest.fixture
def careful() -> Iterator[PostgresServer]:
    """A server whose commits wait for a standby, once it is told to have one."""
    server = PostgresServer(("fsync=off", "full_page_writes=off"))
    yield server
    server.close()


@pytest.mark.slow  # a commit is waited for for five seconds
def test_a_durable_ping_notices_that_no_commit_ends_because_the_standby_is_lost(
    careful: PostgresServer, schema: str
) -> None:
    """Reads, locks and statements that change nothing work as always: only a commit waits."""
    store = PostgresStore(f"{careful.url}?schema={schema}")
    store.migrate()
    store.ping(durably=True)
    written = f"SELECT xmin::text FROM {schema}.meta WHERE name = 'pinged_at'"
    a_while_ago = (
        f"SELECT extract(epoch FROM clock_timestamp()) - value::numeric > 0.5 FROM {schema}.meta "
        "WHERE name = 'pinged_at'"
    )
    before = careful.execute(written)
    store.ping()
    assert careful.execute(written) == before, "as a rule it writes nothing"
    store.ping(durably=True)
    assert careful.execute(written) == before, "one of a moment ago serves for all"
    careful.lose_standby()
    until(lambda: careful.execute(a_while_ago) == [(True,)], "the last one says nothing any more")
    store.ping()
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=r"no answer within 5 s|holds a lock"):
            store.ping(durably=True)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    assert careful.execute(waiting) == [(1,)], "further tries leave no further session behind"
    careful.find_standby()
    until(lambda: careful.execute(waiting) == [(0,)], "the commit ends")
    store.ping(durably=True)
    assert careful.execute(written) != before
    store.close()
