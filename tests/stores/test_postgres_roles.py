"""One process of the fleet looks for the dead, and one for what is due. Nobody relies on them for more than speed."""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import App
from holdfast.stores.postgres import roles
from holdfast.stores.postgres.roles import SILENT_S, TURN_LOOKS_S, TURN_S, Role
from holdfast.stores.postgres.store import PostgresStore
from tests.factory import enrol, make_job
from tests.servers import PostgresServer
from tests.worker.house import until


@pytest.fixture
def fleet(server: PostgresServer, schema: str) -> Iterator[list[PostgresStore]]:
    """Three processes, each with a worker and with threads that look."""
    stores = [PostgresStore(f"{server.url}?schema={schema}") for _ in range(3)]
    stores[0].migrate()
    for store in stores:
        enrol(store)
        store.stands_by()
        store.is_woken()
    until(lambda: all(store._liveness._standby for store in stores), "all have asked")
    yield stores
    for store in stores:
        store.close()


class Looks:
    """Let a process look for the dead and for what is due, as the threads of a worker do."""

    def __init__(self, store: PostgresStore) -> None:
        self._over = threading.Event()
        self._store = store
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._over.wait(0.1):
            if self._store.stands_by() is None:
                self._store.vanished()
            if not self._store.is_woken():
                self._store.wake_sleepers()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join()


def holders(stores: list[PostgresStore], role: str) -> list[PostgresStore]:
    return [store for store in stores if getattr(store._liveness, role).is_held]


# ------------------------------------------------------------------------------------------ one of all


@pytest.mark.parametrize("role", ["dead", "due"])
def test_one_process_has_a_role_and_the_next_takes_over_when_it_dies(fleet: list[PostgresStore], role: str) -> None:
    until(lambda: holders(fleet, role), "one has it")
    [holder] = holders(fleet, role)
    holder.close()
    until(lambda: [store for store in holders(fleet, role) if store is not holder], "the next one has it")
    assert len([store for store in holders(fleet, role) if store is not holder]) == 1


def test_a_program_that_goes_on_without_a_worker_gives_its_roles_up(
    server: PostgresServer, schema: str, fleet: list[PostgresStore]
) -> None:
    until(lambda: holders(fleet, "dead"), "one has it")
    [holder] = holders(fleet, "dead")
    [worker] = holder._liveness._workers
    assert holder.retire(worker, "left")
    until(lambda: [store for store in holders(fleet, "dead") if store is not holder], "the next one has it")
    assert holder.stands_by() is None
    assert server.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(4,)]


def test_a_standby_leaves_the_search_for_the_dead_to_the_holder(fleet: list[PostgresStore]) -> None:
    until(lambda: holders(fleet, "dead"), "one has the role")
    [holder] = holders(fleet, "dead")
    with Looks(holder):
        others = [store for store in fleet if store is not holder]
        until(lambda: all(store.stands_by() for store in others), "the others stand by")
        others[0].close()
        until(holder.vanished, "the holder sees that its lock is free")
        assert others[1].vanished() == []


def test_a_process_without_a_thread_that_looks_does_not_rely_on_others(fleet: list[PostgresStore]) -> None:
    """As a sweep at the start of a worker, or a person."""
    until(lambda: holders(fleet, "dead"), "one has the role")
    visitor = PostgresStore(fleet[0].url)
    sweeps = PostgresStore(fleet[0].url)
    enrol(sweeps)
    fleet[1].close()
    for store in (visitor, sweeps):
        assert len(store.vanished()) == 1
        store.close()


def test_a_worker_that_does_not_look_does_not_take_a_role(server: PostgresServer, schema: str) -> None:
    """With `--no-reaper`, and without anybody who looks for what is due."""
    store = PostgresStore(f"{server.url}?schema={schema}")
    store.migrate()
    enrol(store)
    until(lambda: store._liveness._standby, "it has asked")
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    assert server.execute(locks) == [(1,)]
    store.close()


def test_a_standby_learns_when_the_earliest_lease_ends(fleet: list[PostgresStore]) -> None:
    until(lambda: holders(fleet, "dead"), "one has the role")
    [holder] = holders(fleet, "dead")
    other = next(store for store in fleet if store is not holder)
    other.add([make_job(lease_s=30.0)])
    worker = enrol(other)
    [job] = other.claim(worker, "claim", ["default"], ["t"], 1)
    with Looks(holder):
        until(lambda: (other.stands_by() or other._liveness._standby).deadline == job.lease_until, "it knows")


# ------------------------------------------------------------------------------------- silent holders


@pytest.mark.parametrize("role", ["dead", "due"])
def test_another_one_acts_for_a_holder_that_does_not_look_and_stops_when_it_does(
    fleet: list[PostgresStore], role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be frozen: its session, and the lock with it, stays."""
    monkeypatch.setattr(roles, "SILENT_S", 1.0)
    until(lambda: holders(fleet, role), "one has it")
    [holder] = holders(fleet, role)
    others = [store for store in fleet if store is not holder]
    with Looks(others[0]), Looks(others[1]):
        acts = until(lambda: [store for store in others if getattr(store._liveness, role).is_ours], "one acts")
        assert len(acts) == 1
        assert holders(fleet, role) == [holder]
        with Looks(holder):
            until(lambda: not any(getattr(store._liveness, role).is_ours for store in others), "it stops")


def test_a_look_of_ones_own_is_not_taken_for_that_of_another() -> None:
    role = Role()
    role.is_wanted = True
    role.told(False, 5, 0.0, TURN_LOOKS_S)
    for number, now in ((6, 2.0), (7, 4.0)):
        role.looked(number)
        role.told(False, number, now, TURN_LOOKS_S)
        assert not role.is_done_elsewhere
    assert role.is_ours
    role.told(False, 8, 6.0, TURN_LOOKS_S)
    assert (role.is_ours, role.is_done_elsewhere) == (False, True)
    role.told(False, 8, 6.0 + SILENT_S, TURN_LOOKS_S)
    assert (role.is_ours, role.is_done_elsewhere) == (False, True)
    role.told(False, 8, 6.1 + SILENT_S, TURN_LOOKS_S)
    assert (role.is_ours, role.is_done_elsewhere) == (True, False)


def test_a_process_that_cannot_see_the_holder_looks_now_and_then() -> None:
    role = Role()
    role.told(False, None, 0.0, 0.0)
    assert not role.is_ours, "it is not wanted"
    role.is_wanted = True
    ours = []
    for turn in range(20):
        role.told(False, None, float(turn), float(turn))
        ours.append(role.is_ours)
    assert ours == [turn % TURN_S < TURN_LOOKS_S for turn in range(20)]
    assert not role.is_done_elsewhere


def test_a_cut_session_takes_the_role_with_it() -> None:
    role = Role()
    role.is_wanted = True
    role.told(True, 1, 0.0, TURN_LOOKS_S)
    assert role.is_ours
    assert not role.asks
    role.cut()
    assert not role.is_ours
    assert role.asks


# ------------------------------------------------------------------------------------------ what is due


@pytest.fixture
def outside(server: PostgresServer, schema: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of another program; it hears what is told to workers."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f'LISTEN "{schema}"'.encode())
        yield connection


def store_without_a_hook(store: PostgresStore, url: str, **options: Any) -> None:
    with App(url) as app, psycopg.connect(url.partition("?")[0]) as connection:
        app.task(name="t", **options)(lambda: None).using(connection=connection).enqueue()
        connection.commit()


def test_a_job_without_a_hint_wakes_a_sleeping_worker_only_once(
    fleet: list[PostgresStore], server: PostgresServer, schema: str, outside: psycopg.Connection[Any]
) -> None:
    url = f"{server.url}?schema={schema}"
    until(lambda: holders(fleet, "due"), "one has the role")
    [holder] = holders(fleet, "due")
    other = next(store for store in fleet if store is not holder)

    def sleeps() -> None:
        while other.wait(0):
            pass
        other.due(["default"], ["unknown"], sleeps=True)

    def hints() -> list[str]:
        outside.execute("SELECT pg_notify(%s, 'last')", [schema])
        heard: list[str] = []
        for notify in outside.notifies(timeout=60):
            if notify.payload == "last":
                return heard
            heard.append(notify.payload)
        raise AssertionError

    def is_woken() -> None:
        heard = other._heard
        assert holder.wake_sleepers()
        assert hints() == ['"default"']
        until(lambda: other._heard > heard, "it hears the hint: until then it believes that it sleeps")

    sleeps()
    assert holder.wake_sleepers()
    assert hints() == [], "nothing is due"
    store_without_a_hook(other, url)
    assert hints() == []
    assert holder.wake_sleepers()
    assert other.wait(60)
    assert hints() == ['"default"']
    for _ in range(3):  # nobody has its task
        sleeps()
        assert holder.wake_sleepers()
    assert hints() == []
    store_without_a_hook(other, url)
    is_woken()
    other.add([make_job() for _ in range(1000)])  # of a task that nobody has: one more would not show
    hints()
    for _ in range(2):
        sleeps()
        is_woken()


@pytest.mark.parametrize("many", [1, 1001], ids=["one", "more than are counted"])
def test_due_jobs_are_found_in_every_queue_and_priority_and_others_are_not(
    fleet: list[PostgresStore], outside: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch, many: int
) -> None:
    until(lambda: holders(fleet, "due"), "one has the role")
    [holder] = holders(fleet, "due")
    told: list[dict[str, list[int]]] = []
    monkeypatch.setattr(holder._sender, "are_due", lambda queues, slept, since: told.append(queues))
    later = {"delay_s": 3600.0}
    holder.add([make_job(queue="a", priority=priority) for priority in (3, 0, -3) for _ in range(many)])
    holder.add([make_job(queue="a", priority=9, **later), make_job(queue="b", **later)])
    holder.add([make_job(queue="c", priority=-1), make_job(queue="c", priority=5, **later), make_job(queue="é")])
    holder.add([make_job(queue="paused")])
    holder.pause("paused", True)
    assert holder.wake_sleepers()
    assert {queue: jobs for queue, (jobs, _) in told[-1].items()} == {"a": 3 * min(many, 1000), "c": 1, "é": 1}


def test_only_the_holder_of_the_role_looks_for_due_jobs(fleet: list[PostgresStore]) -> None:
    until(lambda: holders(fleet, "due"), "one has the role")
    [holder] = holders(fleet, "due")
    assert not holder.is_woken()
    assert [store.wake_sleepers() for store in fleet if store is not holder] == [False, False]
    with Looks(holder):
        until(lambda: all(store.is_woken() for store in fleet if store is not holder), "the others rely on it")


def test_a_worker_that_claims_no_more_leaves_the_search_for_due_jobs_to_another(fleet: list[PostgresStore]) -> None:
    until(lambda: holders(fleet, "due"), "one has the role")
    [holder] = holders(fleet, "due")
    holder.stop_waking()
    until(lambda: [store for store in holders(fleet, "due") if store is not holder], "the next one has it")
    assert not holder.wake_sleepers()
    for store in fleet:
        if store is not holder:
            store.close()
    holder.is_woken()  # another worker of this process claims
    until(lambda: holder in holders(fleet, "due"), "it has the role again")


# ---------------------------------------------------------------------------------- what the session costs


def test_a_sign_of_life_costs_the_server_no_transaction(server: PostgresServer, schema: str) -> None:
    store = PostgresStore(f"{server.url}?schema={schema}")
    commits = "SELECT pg_stat_get_db_xact_commit(oid) FROM pg_database WHERE datname = current_database()"
    session = store._db.open_pinned()
    [[before]] = server.execute(commits)
    for _ in range(500):
        session.answers()
    session.close()
    gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'"
    until(lambda: server.execute(gone) == [(0,)], "it has told what it did")
    [[after]] = server.execute(commits)
    assert int(str(after)) - int(str(before)) < 400
    store.close()


def test_a_session_that_has_ended_gives_no_sign_of_life(server: PostgresServer, schema: str) -> None:
    store = PostgresStore(f"{server.url}?schema={schema}")
    session = store._db.open_pinned()
    session.answers()
    server.execute(f"SELECT pg_terminate_backend({session.info.backend_pid})")
    with pytest.raises(psycopg.OperationalError):
        until(session.answers)
    session.close()
    store.close()
