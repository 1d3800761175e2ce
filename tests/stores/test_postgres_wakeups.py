"""Who is woken by an enqueue on PostgreSQL: workers that sleep, after the commit, and nobody else."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import App
from holdfast.errors import StoreUnavailable
from holdfast.stores.postgres import wakeup_sender
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.wakeup_sender import FRESH_S, LOOK_AGAIN_S, WakeupSender
from holdfast.testing import FakeClock
from tests.api.doors import driver
from tests.factory import make_job

PATIENCE_S = 60.0


@pytest.fixture
def producer(postgres: str) -> Iterator[PostgresStore]:
    yield from _opened(postgres)


@pytest.fixture
def worker(postgres: str) -> Iterator[PostgresStore]:
    yield from _opened(postgres)


@pytest.fixture
def outside(producer: PostgresStore, postgres: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that hears every hint."""
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("LISTEN holdfast")
        connection.execute("SELECT setval('holdfast.sleep_count', 1, false)")  # nobody has slept yet
        yield connection


def _opened(url: str) -> Iterator[PostgresStore]:
    store = PostgresStore(url)
    store.migrate()
    yield store
    store.close()


def hints(outside: psycopg.Connection[Any]) -> list[str]:
    """Return those that were sent since the last call: one of our own comes after them."""
    for thread in threading.enumerate():
        if thread.name == "holdfast-wakeup":
            thread.join(PATIENCE_S)
    outside.execute("SELECT pg_notify('holdfast', '\"the last\"')")
    heard: list[str] = []
    for notify in outside.notifies(timeout=PATIENCE_S):
        if notify.payload == '"the last"':
            return heard
        heard.append(notify.payload)
    raise AssertionError("the last one did not come")


def falls_asleep(store: PostgresStore, *queues: str) -> None:
    """Say that a worker sleeps, in a session that listens; take the hints that came before."""
    store._liveness.start()
    store._liveness._ask(lambda session: None)  # it listens by then
    while store.wait(0):
        pass
    assert store.due(queues or ["default"], ["t"], sleeps=True) is None


# ------------------------------------------------------------------------------------------ who is told


@pytest.mark.parametrize("many", [1, 2, 150], ids=["one", "as rows", "as a stream"])
def test_a_producer_sends_nothing_while_nobody_sleeps(
    producer: PostgresStore, outside: psycopg.Connection[Any], many: int
) -> None:
    producer.add([make_job() for _ in range(many)])
    assert hints(outside) == []


@pytest.mark.parametrize("many", [1, 2, 150], ids=["one", "as rows", "as a stream"])
def test_a_worker_that_sleeps_is_woken_once(
    producer: PostgresStore, worker: PostgresStore, outside: psycopg.Connection[Any], many: int
) -> None:
    falls_asleep(worker)
    producer.add([make_job() for _ in range(many)])
    assert worker.wait(PATIENCE_S) is True
    producer.add([make_job() for _ in range(many)])
    assert hints(outside) == ['"default"']  # it has not said again that it sleeps


def test_a_worker_that_found_work_is_woken_again_after_it(
    producer: PostgresStore, worker: PostgresStore, outside: psycopg.Connection[Any]
) -> None:
    for _ in range(3):
        falls_asleep(worker)
        job = make_job()
        producer.add([job])
        assert worker.wait(PATIENCE_S) is True
        outside.execute("DELETE FROM holdfast.job WHERE id = %s", [job.id])
    assert hints(outside) == ['"default"'] * 3


def test_a_sleep_is_said_once_however_often_the_worker_polls(
    worker: PostgresStore, outside: psycopg.Connection[Any]
) -> None:
    falls_asleep(worker)
    before = _slept(outside)
    for _ in range(3):
        assert worker.due(["default"], ["t"], sleeps=True) is None
    assert _slept(outside) == before
    assert worker.due(["default", "other"], ["t"], sleeps=True) is None  # for this queue it was not said
    assert _slept(outside) == before + 1


def test_a_worker_with_something_due_does_not_sleep(
    producer: PostgresStore, worker: PostgresStore, outside: psycopg.Connection[Any]
) -> None:
    before = _slept(outside)
    producer.add([make_job()])
    assert worker.due(["default"], ["t"], sleeps=True) is not None
    assert _slept(outside) == before
    outside.execute("UPDATE holdfast.job SET run_at = run_at + 3600")
    assert worker.due(["default"], ["t"], sleeps=True) is not None  # but in an hour
    assert _slept(outside) == before + 1


def test_a_process_that_only_looks_is_not_listed_as_asleep(
    worker: PostgresStore, outside: psycopg.Connection[Any]
) -> None:
    before = _slept(outside)
    assert worker.due(["default"], ["t"]) is None
    assert _slept(outside) == before


def test_jobs_of_other_queues_wake_nobody_and_are_told_once(
    producer: PostgresStore, worker: PostgresStore, outside: psycopg.Connection[Any]
) -> None:
    falls_asleep(worker, "mine")
    for _ in range(3):
        producer.add([make_job(queue="theirs")])
    assert hints(outside) == ['"theirs"']  # somebody else might serve it
    while worker.wait(0):
        pass
    before = _slept(outside)
    assert worker.due(["mine"], ["t"], sleeps=True) is None
    assert _slept(outside) == before  # it sleeps on
    producer.add([make_job(queue="mine")])
    assert worker.wait(PATIENCE_S) is True


def test_what_anybody_else_notifies_is_a_hint(worker: PostgresStore, outside: psycopg.Connection[Any]) -> None:
    for payload in ("", '"', "nonsense"):
        falls_asleep(worker)
        while worker.wait(0):
            pass
        outside.execute("SELECT pg_notify('holdfast', %s)", [payload])
        assert worker.wait(PATIENCE_S) is True


def _slept(outside: psycopg.Connection[Any]) -> int:
    row = outside.execute("SELECT coalesce(pg_sequence_last_value('holdfast.sleep_count'::regclass), 0)").fetchone()
    assert row is not None
    return int(row[0])


# ------------------------------------------------------------------------------------------- the races


@pytest.fixture
def commits_wait(outside: psycopg.Connection[Any], postgres: str) -> Iterator[psycopg.Connection[Any]]:
    """Let every commit of a job wait until this connection unlocks 1."""
    outside.execute("""
        CREATE FUNCTION holdfast.stop() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER stop AFTER INSERT ON holdfast.job DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION holdfast.stop();
    """)
    with psycopg.connect(postgres, autocommit=True) as gate:
        gate.execute("SELECT pg_advisory_lock(1)")
        yield gate
    outside.execute("DROP FUNCTION holdfast.stop CASCADE")


def waits_at_the_gate(outside: psycopg.Connection[Any]) -> bool:
    found = outside.execute("SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND NOT granted")
    return found.fetchone() is not None


@pytest.mark.parametrize("many", [1, 2, 150], ids=["one", "as rows", "as a stream"])
def test_a_job_that_is_committed_after_the_worker_looked_wakes_it(
    producer: PostgresStore,
    worker: PostgresStore,
    outside: psycopg.Connection[Any],
    commits_wait: psycopg.Connection[Any],
    many: int,
) -> None:
    """The insert has read that nobody sleeps; its commit comes when the worker has looked twice, and sleeps."""
    with ThreadPoolExecutor(1) as elsewhere:
        adding = elsewhere.submit(producer.add, [make_job() for _ in range(many)])
        _until(lambda: waits_at_the_gate(outside))
        falls_asleep(worker)
        assert worker.wait(PATIENCE_S) is False  # and so it looks once more
        assert worker.due(["default"], ["t"], sleeps=True) is None
        commits_wait.execute("SELECT pg_advisory_unlock(1)")
        assert worker.wait(PATIENCE_S) is True
        adding.result(PATIENCE_S)
    assert worker.due(["default"], ["t"], sleeps=True) is not None


def test_a_worker_looks_once_more_for_a_commit_that_sent_no_hint(
    producer: PostgresStore,
    postgres: str,
    outside: psycopg.Connection[Any],
    commits_wait: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A short insert trusts the number that it has read, though the worker fell asleep before the commit."""
    monkeypatch.setattr(wakeup_sender, "FRESH_S", float("inf"))
    clock = FakeClock()
    worker = PostgresStore(postgres, clock=clock)
    with ThreadPoolExecutor(1) as elsewhere:
        adding = elsewhere.submit(producer.add, [make_job(run_at=0.0)])
        _until(lambda: waits_at_the_gate(outside))
        falls_asleep(worker)
        commits_wait.execute("SELECT pg_advisory_unlock(1)")
        adding.result(PATIENCE_S)
    assert hints(outside) == []
    before = clock.lease()
    assert worker.wait(1.0) is False
    assert clock.lease() - before == pytest.approx(LOOK_AGAIN_S)
    assert worker.due(["default"], ["t"], sleeps=True) == 0.0
    before = clock.lease()
    assert worker.wait(1.0) is False
    assert clock.lease() - before == pytest.approx(1.0)  # it has said it once, and looks again once
    worker.close()


def test_the_second_look_is_later_than_an_insert_that_trusts_what_it_read() -> None:
    assert wakeup_sender.FRESH_S * 2 <= LOOK_AGAIN_S


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_callers_transaction_that_began_before_the_worker_slept_wakes_it(
    postgres: str, worker: PostgresStore, outside: psycopg.Connection[Any], level: Any
) -> None:
    """Its snapshot is older than the sleep, and its commit comes after the worker has looked."""
    engine = sqlalchemy.create_engine(driver(postgres), poolclass=NullPool, isolation_level=level)
    with App(postgres) as app, Session(engine) as session:
        ship = app.task(name="t")(lambda: None)
        session.execute(sqlalchemy.text("SELECT count(*) FROM holdfast.job"))
        falls_asleep(worker)
        ship.using(connection=session).enqueue()
        assert worker.due(["default"], ["t"], sleeps=True) is None
        assert hints(outside) == []
        session.commit()
        assert worker.wait(PATIENCE_S) is True
    assert worker.due(["default"], ["t"], sleeps=True) is not None


def test_a_commit_that_tells_nobody_is_found_by_the_next_look(
    postgres: str, worker: PostgresStore, outside: psycopg.Connection[Any]
) -> None:
    with App(postgres) as app, psycopg.connect(postgres) as connection:
        falls_asleep(worker)
        app.task(name="t")(lambda: None).using(connection=connection).enqueue()
        connection.commit()
        assert hints(outside) == []
        assert worker.due(["default"], ["t"], sleeps=True) is not None


def _until(condition: Callable[[], bool]) -> None:
    give_up = threading.Event()
    threading.Timer(PATIENCE_S, give_up.set).start()
    while not condition():
        assert not give_up.is_set()


# ------------------------------------------------------------------------------------- what it needs


def test_a_worker_that_may_not_say_that_it_sleeps_polls(postgres: str, worker: PostgresStore) -> None:
    with psycopg.connect(postgres, autocommit=True) as owner:
        owner.execute("DROP ROLE IF EXISTS humble; CREATE ROLE humble LOGIN")
        owner.execute("GRANT USAGE ON SCHEMA holdfast TO humble")
        owner.execute("GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO humble")
        parts = urlsplit(postgres)
        humble = PostgresStore(parts._replace(netloc=f"humble@{parts.hostname}:{parts.port}").geturl(), create=False)
        assert humble.due(["default"], ["t"], sleeps=True) is None
        humble.close()
        owner.execute("DROP OWNED BY humble; DROP ROLE humble")


def test_a_producer_that_cannot_see_the_sleepers_wakes_every_worker(
    postgres: str, producer: PostgresStore, outside: psycopg.Connection[Any]
) -> None:
    outside.execute("DROP ROLE IF EXISTS modest; CREATE ROLE modest LOGIN; GRANT USAGE ON SCHEMA holdfast TO modest")
    outside.execute("GRANT SELECT, INSERT ON ALL TABLES IN SCHEMA holdfast TO modest")
    parts = urlsplit(postgres)
    modest = PostgresStore(parts._replace(netloc=f"modest@{parts.hostname}:{parts.port}").geturl(), create=False)
    modest.add([make_job()])
    modest.add([make_job()])
    assert hints(outside) == ['"default"'] * 2
    modest.close()
    outside.execute("DROP OWNED BY modest; DROP ROLE modest")


def test_a_worker_on_a_server_that_takes_no_writes_looks_all_the_same(
    postgres: str, worker: PostgresStore, outside: psycopg.Connection[Any]
) -> None:
    outside.execute("ALTER ROLE holdfast SET default_transaction_read_only = on")
    try:
        reader = PostgresStore(postgres, create=False)
        assert reader.due(["default"], ["t"], sleeps=True) is None
        reader.close()
    finally:
        outside.execute("ALTER ROLE holdfast RESET default_transaction_read_only")


# -------------------------------------------------------------------------------------- one process


class Server:
    """Takes hints one at a time, and counts them."""

    channel = "holdfast"

    def __init__(self, slept: int | None = 1) -> None:
        self.slept = slept
        self.sent: list[list[str]] = []
        self.fails = False
        self.goes_on = threading.Event()
        self.goes_on.set()

    def one(self, query: str, values: dict[str, Any]) -> tuple[int | None, int]:
        assert query == "wake"
        self.sent.append(values["queues"])
        assert self.goes_on.wait(PATIENCE_S)
        if self.fails:
            raise StoreUnavailable("gone")
        return self.slept, 1


def test_threads_that_enqueue_at_once_share_their_hints() -> None:
    server: Any = Server()
    sender = WakeupSender(server, FakeClock())
    server.goes_on.clear()
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(sender.committed, ["q"])
        _until(lambda: len(server.sent) == 1)
        others = [threads.submit(sender.committed, [f"q{number}"]) for number in range(8)]
        _until(lambda: len(sender._wanted) == 8)
        server.goes_on.set()
        for each in [first, *others]:
            each.result(PATIENCE_S)
    assert server.sent == [["q"], [f"q{number}" for number in range(8)]]


def test_hooks_of_callers_share_one_thread() -> None:
    server: Any = Server()
    sender = WakeupSender(server, FakeClock())
    with sender._sending:
        for number in range(8):
            sender.committed_elsewhere([f"q{number}"])
        [thread] = [each for each in threading.enumerate() if each.name == "holdfast-wakeup"]
    thread.join(PATIENCE_S)
    assert server.sent == [[f"q{number}" for number in range(8)]]


def test_a_commit_does_not_fail_where_no_thread_can_be_started_and_the_next_hint_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`RLIMIT_NPROC`, a pids limit, or an interpreter of Python 3.12 that shuts down."""
    server: Any = Server()
    sender = WakeupSender(server, FakeClock())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_thread)
        sender.committed_elsewhere(["q"])
        sender.committed_elsewhere(["q"])
    assert server.sent == []
    with sender._sending:
        sender.committed_elsewhere(["r"])
        [thread] = [each for each in threading.enumerate() if each.name == "holdfast-wakeup"]
    thread.join(PATIENCE_S)
    assert server.sent == [["q", "r"]]


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_hint_that_cannot_be_sent_is_no_error_of_the_enqueue_and_is_tried_again() -> None:
    server: Any = Server()
    clock = FakeClock()
    sender = WakeupSender(server, clock)
    server.fails = True
    sender.committed(["q"], slept=1, since=clock.lease())
    server.fails = False
    sender.committed(["q"], slept=1, since=clock.lease())
    sender.committed(["q"], slept=1, since=clock.lease())
    assert server.sent == [["q"], ["q"]]


def test_only_an_insert_that_was_quick_by_the_stores_clock_knows_whether_a_worker_sleeps() -> None:
    server: Any = Server()
    clock = FakeClock()
    sender = WakeupSender(server, clock)
    sender.committed(["q"], slept=1, since=clock.lease())
    began = clock.lease()
    clock.advance(FRESH_S / 2)
    sender.committed(["q"], slept=1, since=began)
    assert server.sent == [["q"]]
    clock.advance(FRESH_S)
    sender.committed(["q"], slept=1, since=began)
    assert server.sent == [["q"], ["q"]]
