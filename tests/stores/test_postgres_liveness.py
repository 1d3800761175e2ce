"""Restarts and cut sessions on PostgreSQL: they never look like a death, and a death is found all the same
(DESIGN 15.3)."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Context
from holdfast.stores.postgres import liveness
from holdfast.stores.postgres.connection import SESSION_GRACE_S
from holdfast.stores.postgres.store import PostgresStore
from tests.factory import enrol
from tests.proxy import Proxy
from tests.servers import PostgresServer
from tests.timing import assert_within
from tests.worker.house import House, until

Houses = Callable[..., House]
GRACE_S = 6.0  # time enough for a session to come back on a busy machine
LOCKS = "SELECT objid, pid FROM pg_locks WHERE locktype = 'advisory' AND granted"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One that keeps what it has acknowledged when it is killed."""
    server = PostgresServer(("fsync=off", "full_page_writes=off"))
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _running(server: PostgresServer) -> None:
    """Whatever the test before has done to it."""
    if server._process is None:
        server.start()


class Fleet:
    """Two workers, each with connections of its own; one is busy, one is idle."""

    def __init__(self, house: House, other: House) -> None:
        self.house, self.other = house, other
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.tasks = [self._define(each) for each in (house, other)]
        self.runner = house.start(name="busy")
        self.busy = self.tasks[0].enqueue(True)
        assert self.begun.wait(60)
        other.start(name="idle")

    def _define(self, house: House) -> Any:
        @house.app.task(name="work", lease_s=30)
        def work(ctx: Context, wait: bool) -> int:
            self.begun.set()
            while wait and not self.go_on.is_set():
                time.sleep(0.01)
            return ctx.attempt

        return work

    def consumes(self) -> bool:
        return bool(self.tasks[1].enqueue(False).result(60) == 1)

    def is_whole(self) -> None:
        """Nothing died, nothing ran twice."""
        self.go_on.set()
        assert self.busy.result(60) == 1
        workers = self.house.store.workers(gone=True)
        assert sorted((each.name, each.gone_at) for each in workers) == [("busy", None), ("idle", None)]
        assert self.house.store.journal(kinds=["zombie", "released", "stale_report", "failed"]) == []


@pytest.fixture
def fleet(houses: Houses, proxy: Proxy, server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """Of workers that judge at once, whatever has happened to their own sessions."""
    monkeypatch.setattr(liveness, "SETTLE_S", 0.0)
    fleet = Fleet(*(houses(url, f"&session_grace_s={GRACE_S}") for url in (proxy.url, server.url)))
    yield fleet
    fleet.go_on.set()


def look_until(fleet: Fleet, condition: Callable[[], object], what: str) -> None:
    """Wait, and then for as long as a free lock is doubted, and somewhat longer."""
    until(condition, what)
    settled_at = time.monotonic() + liveness.SETTLE_S + GRACE_S + 0.5
    until(lambda: time.monotonic() > settled_at)


# ---------------------------------------------------------------------------------------- restarts


@pytest.mark.slow  # a server is restarted, and everybody's doubts are waited for
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["stopped", "killed"])
def test_a_restart_of_the_server_is_nobodys_death(fleet: Fleet, server: PostgresServer, how: signal.Signals) -> None:
    assert fleet.consumes()
    server.stop(how)
    server.start()
    assert fleet.consumes()
    look_until(fleet, lambda: len(server.execute(LOCKS)) == 4, "both have their locks, and the roles are taken")
    fleet.is_whole()


@pytest.mark.slow  # as above
def test_a_session_crash_that_restarts_the_server_is_not_a_workers_death(fleet: Fleet, server: PostgresServer) -> None:
    """The server ends every session and frees every lock, and its start stays what it was."""
    started = "SELECT pg_postmaster_start_time()::text"
    before = server.execute(started)
    [[victim]] = helper = _helper(server)
    os.kill(int(str(victim)), signal.SIGKILL)  # as the system does when memory runs out
    until(lambda: _helper(server) not in ([], helper), "the server is back")
    assert server.execute(started) == before
    assert fleet.consumes()
    look_until(fleet, lambda: len(server.execute(LOCKS)) == 4, "both have their locks, and the roles are taken")
    fleet.is_whole()


def _helper(server: PostgresServer) -> list[tuple[object, ...]]:
    """Return a process of the server's own; nothing while it does not answer."""
    try:
        return server.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
    except psycopg.OperationalError:
        return []


def test_listening_resumes_after_a_restart(
    houses: Houses, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new job is picked up by the hint: the next poll would be an hour away."""
    monkeypatch.setattr("holdfast.worker.claimer.POLL_S", 3600.0)
    house, asking = houses(server.url), houses(server.url)

    def define(each: House) -> Any:
        @each.app.task(name="fine")
        def fine() -> str:
            return "fine"

        return fine

    define(house)
    fine = define(asking)  # its store has no worker: what wakes the worker is the server
    house.start()
    assert fine.enqueue().result(60) == "fine"
    server.stop()
    server.start()
    assert fine.enqueue().result(60) == "fine"
    listens = "SELECT 1 FROM pg_stat_activity WHERE query ~ 'LISTEN|dead_looks'"
    until(lambda: server.execute(listens), "it listens again")
    for _ in range(5):
        assert fine.enqueue().result(60) == "fine"


# ------------------------------------------------------------------------------------ cut sessions


@pytest.mark.slow  # doubts are waited for
def test_a_worker_whose_session_was_ended_takes_its_lock_again_and_keeps_its_jobs(
    fleet: Fleet, server: PostgresServer
) -> None:
    before = server.execute(LOCKS)
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
    ended = {pid for _, pid in before}
    look_until(
        fleet,
        lambda: {lock for lock, pid in server.execute(LOCKS) if pid not in ended} >= {lock for lock, _ in before[:2]},
        "the locks are taken again",
    )
    assert fleet.consumes()
    fleet.is_whole()


@pytest.mark.slow  # a death is believed after a second, and none must be here
def test_a_session_that_lingers_on_the_server_is_succeeded_by_the_new_one(
    fleet: Fleet, proxy: Proxy, server: PostgresServer
) -> None:
    """The server does not know that the worker's old connection is dead, and keeps its lock."""
    [lock] = server.execute(f"SELECT hashtextextended('{fleet.runner.worker_id}', 0) & 4294967295")
    holder = f"SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = {lock[0]}"
    before = server.execute(holder)
    ends = proxy.cut(server_side=False)
    assert fleet.consumes()
    assert server.execute(holder) == before, "the old one has it still"
    for end in ends:
        end.close()
    look_until(fleet, lambda: server.execute(holder) not in ([], before), "the new one has it")
    fleet.is_whole()


@pytest.mark.slow  # one is away for longer than a death is doubted
def test_a_whole_fleet_that_was_cut_off_comes_back_without_a_death(
    houses: Houses, proxy: Proxy, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All locks are free, the server runs on, and the first who is back finds the other missing."""
    monkeypatch.setattr(liveness, "SETTLE_S", GRACE_S + 2)
    second = Proxy(server.url)
    fleet = Fleet(*(houses(url, f"&session_grace_s={GRACE_S}") for url in (second.url, proxy.url)))
    with second.down():
        with proxy.down():
            until(lambda: server.execute(LOCKS) == [], "all locks are free")
        until(lambda: server.execute(LOCKS), "the first is back")
        back_at = time.monotonic()
        until(lambda: time.monotonic() > back_at + liveness.SETTLE_S + 0.3)
    look_until(fleet, lambda: len(server.execute(LOCKS)) == 4, "both are back")
    assert fleet.consumes()
    fleet.is_whole()
    second.close()


@pytest.mark.slow  # one is away for longer than a death is doubted by default
def test_a_worker_is_given_as_long_to_come_back_as_the_address_says(
    houses: Houses, proxy: Proxy, server: PostgresServer
) -> None:
    """Its proxy is restarted, the others are not concerned: only the address can say that this is no death."""
    fleet = Fleet(houses(proxy.url, "&session_grace_s=30"), houses(server.url, "&session_grace_s=30"))
    with proxy.down():
        until(lambda: len(server.execute(LOCKS)) < 4, "its lock is free")
        free_at = time.monotonic()
        until(lambda: time.monotonic() > free_at + 2 * SESSION_GRACE_S)
    look_until(fleet, lambda: len(server.execute(LOCKS)) == 4, "both have their locks")
    fleet.is_whole()


@pytest.fixture
def visitor(server: PostgresServer, schema: str) -> Iterator[str]:
    """The address of a user that owns the schema; the test may take away its right to connect."""
    server.execute("CREATE ROLE visitor LOGIN")
    server.execute(f"CREATE SCHEMA {schema} AUTHORIZATION visitor")
    url = server.url.replace("holdfast@", "visitor@")
    store = PostgresStore(f"{url}?schema={schema}")
    store.migrate()
    store.close()
    yield url
    server.execute(f"DROP SCHEMA {schema} CASCADE")
    server.execute("DROP ROLE visitor")


@pytest.mark.slow  # a death would be believed after a second and a half
def test_a_worker_whose_session_was_cut_beats_and_lives_while_the_server_has_no_connection_for_it(
    visitor: str, houses: Houses, server: PostgresServer, schema: str
) -> None:
    """Everything else of it works: only its lock is free, and nobody knows for how long."""
    house, other = houses(visitor), houses(server.url)
    fleet = Fleet(house, other)
    assert fleet.consumes()
    liveness_of = house.store.real._liveness
    assert house.store.holds_lock(fleet.runner.worker_id)
    server.execute("ALTER ROLE visitor CONNECTION LIMIT 0")
    lock = f"(hashtextextended('{fleet.runner.worker_id}', 0) & 4294967295)::oid"
    holder = f"FROM pg_locks WHERE locktype = 'advisory' AND granted AND objid = {lock}"
    server.execute(f"SELECT pg_terminate_backend(pid) {holder}")
    until(lambda: liveness_of._cut, "it notices")
    assert not house.store.holds_lock(fleet.runner.worker_id)
    beats = f"SELECT beats FROM {schema}.worker WHERE id = '{fleet.runner.worker_id}'"
    [[before]] = server.execute(beats)
    cut_at = time.monotonic()
    until(lambda: time.monotonic() > cut_at + liveness.SETTLE_S + 4 * SESSION_GRACE_S)
    [[after]] = server.execute(beats)
    assert int(str(after)) - int(str(before)) >= 5, "it beats about twice a second; every ten by itself"
    assert server.execute(f"SELECT count(*) {holder}") == [(0,)], "its lock was free all the time"
    server.execute("ALTER ROLE visitor CONNECTION LIMIT -1")
    until(lambda: house.store.holds_lock(fleet.runner.worker_id), "it has a session again")
    fleet.is_whole()


@pytest.mark.slow  # it is dead for as long as a death is doubted
def test_a_worker_that_dies_without_a_session_is_found_by_its_silence(
    visitor: str, houses: Houses, server: PostgresServer, schema: str
) -> None:
    """Its beats are all that others see of it, and they end with it."""
    house = houses(server.url)

    @house.app.task(name="work", lease_s=300)
    def work(ctx: Context, wait: bool) -> int:
        return ctx.attempt

    victim = subprocess.Popen(
        [sys.executable, "-c", LONE, f"{visitor}?schema={schema}"], stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        assert victim.stdout is not None
        job = work.enqueue(True)
        assert victim.stdout.readline() == b"begun\n"
        server.execute("ALTER ROLE visitor CONNECTION LIMIT 0")
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        house.start(name="other")
        beats = f"SELECT beats FROM {schema}.worker WHERE name = 'victim' AND gone_at IS NULL"
        [[before]] = server.execute(beats)
        until(lambda: int(str(server.execute(beats)[0][0])) > int(str(before)) + 1, "its beats show that it lives")
    finally:
        victim.kill()
        victim.wait(60)
        if victim.stdout is not None:
            victim.stdout.close()
        server.execute("ALTER ROLE visitor CONNECTION LIMIT -1")
    assert job.result(60) == 2
    [zombie] = house.events(job.id, "zombie")
    assert zombie.detail["detector"] == "vanished"


def test_a_session_that_does_not_answer_in_time_proves_nothing(
    server: PostgresServer, schema: str, proxy: Proxy
) -> None:
    """The server may have ended it, and its word of that may be lost: for some seconds nobody here can know."""
    store = PostgresStore(f"{proxy.url}?schema={schema}")
    store.migrate()
    worker = enrol(store)
    assert store.holds_lock(worker)
    proxy.stall()
    until(lambda: not store.holds_lock(worker), "a look is late")
    assert not store._liveness._cut, "it was not given up yet"
    proxy.flow()
    until(lambda: store.holds_lock(worker), "it has answered")
    assert store.holds_lock("a worker of another process")
    store.close()


def test_a_beat_beside_a_locked_row_is_seen_by_the_search_for_free_locks(server: PostgresServer, schema: str) -> None:
    first, second = (PostgresStore(f"{server.url}?schema={schema}") for _ in range(2))
    first.migrate()
    worker = enrol(first)
    first._liveness.close()  # its lock is free
    [before] = second.vanished()
    with psycopg.connect(server.url) as other:
        other.execute(f"SELECT 1 FROM {schema}.worker FOR UPDATE".encode())
        assert not first.beat(worker, []).counted
        [after] = second.vanished()
    assert after.worker.beat_at > before.worker.beat_at
    first.close()
    second.close()


# ------------------------------------------------------------------------------------------ deaths

LONE = """
import sys
from holdfast import App
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner
import time
app = App(sys.argv[1])
@app.task(name="work", lease_s=30)
def work(ctx, wait: bool) -> int:
    print("begun", flush=True)
    time.sleep(60)
    return 0
Runner(app, WorkerOptions(name="victim")).run()
"""


def test_a_process_that_is_killed_is_found_within_three_seconds(
    houses: Houses, server: PostgresServer, schema: str
) -> None:
    house = houses(server.url)

    @house.app.task(name="work", lease_s=30)
    def work(ctx: Context, wait: bool) -> int:
        return ctx.attempt

    def took() -> float:
        victim = subprocess.Popen(
            [sys.executable, "-c", LONE, f"{server.url}?schema={schema}"],
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            job = work.enqueue(True)
            assert victim.stdout is not None
            assert victim.stdout.readline() == b"begun\n"
            runner = house.start()
        finally:
            victim.kill()
            victim.wait(60)
            if victim.stdout is not None:
                victim.stdout.close()
        died_at = time.monotonic()
        assert job.result(60) == 2
        took_s = time.monotonic() - died_at
        [zombie] = house.events(job.id, "zombie")
        assert zombie.detail["detector"] == "vanished"
        house.stop(runner)
        return took_s

    assert_within(3.0, took)


@pytest.mark.slow  # the session asks once a second
def test_a_death_is_found_after_the_servers_counters_were_reset(server: PostgresServer, schema: str) -> None:
    """The name of the server's run is made of them. The rows of workers whose sessions last follow it."""
    first, second = (PostgresStore(f"{server.url}?schema={schema}") for _ in range(2))
    first.migrate()
    workers = {enrol(first), enrol(second)}
    before = server.execute(f"SELECT {schema}.server()")
    server.execute("SELECT pg_stat_reset_shared('bgwriter')")
    if int(str(server.execute("SHOW server_version_num")[0][0])) >= 150_000:
        assert server.execute(f"SELECT {schema}.server()") != before
    named = f"SELECT id FROM {schema}.worker WHERE server = {schema}.server()"
    until(lambda: {worker for (worker,) in server.execute(named)} == workers, "both rows name the run")
    first.close()
    until(lambda: [each.worker.id for each in second.vanished()], "the death is found")
    second.close()


@pytest.mark.slow  # it waits for the moment at which it may look again
def test_a_process_that_was_cut_off_gives_others_time_to_reconnect_before_it_looks(
    server: PostgresServer, schema: str, proxy: Proxy
) -> None:
    store = PostgresStore(f"{proxy.url}?schema={schema}")
    store.migrate()
    enrol(store)
    assert store._liveness.watches()
    proxy.cut()
    cut_at = time.monotonic()
    until(lambda: store._liveness._cut, "it notices")
    assert not store._liveness.watches()
    until(store._liveness.watches, "it looks again")
    assert time.monotonic() - cut_at >= liveness.SETTLE_S
    store.close()


# -------------------------------------------------------------------------------------------- forks

FORK = """
import os, sys
from holdfast.core.records import Worker
from holdfast.stores.postgres.store import PostgresStore
store = PostgresStore(sys.argv[1])
store.migrate()
store.enroll(Worker(id="parent", name="p", host="h", pid=1, boot_id="b", slots=1))
pid = store._db.one("identity") and store._db.run(lambda db: db.connection.info.backend_pid)
child = os.fork()
if child == 0:
    store.ping()
    assert store._db.run(lambda db: db.connection.info.backend_pid) != pid
    store.enroll(Worker(id="child", name="c", host="h", pid=1, boot_id="b", slots=1))
    assert sorted(worker.id for worker in store.workers()) == ["child", "parent"]
    assert store.vanished() == []
    store.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert store._db.run(lambda db: db.connection.info.backend_pid) == pid, "its sessions stay"
assert [found.worker.id for found in store.vanished()] == ["child"], "its lock stays; the child's went with it"
store.close()
"""


def test_a_forked_child_opens_connections_of_its_own(server: PostgresServer, schema: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORK, f"{server.url}?schema={schema}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
