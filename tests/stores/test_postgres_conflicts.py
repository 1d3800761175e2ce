"""Transactions that wait for each other: producers with the same keys in another order, and a conflict that the server
resolves by undoing one of them."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast import App
from holdfast.core.records import Filter
from holdfast.errors import OutcomeUnknown, StoreLocked, StoreUnavailable
from holdfast.stores.postgres import connection, statements
from holdfast.stores.postgres.connection import Limits
from holdfast.stores.postgres.store import PostgresStore
from tests.factory import make_job
from tests.servers import PostgresServer
from tests.worker.house import until


@pytest.fixture
def store(server: PostgresServer, schema: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(f"{server.url}?schema={schema}")) as store:
        store.migrate()
        yield store


def sleepers(server: PostgresServer) -> int:
    """How many sessions wait for another one."""
    [[found]] = server.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
    return int(str(found))


@pytest.mark.parametrize("many", [3, 151])
def test_two_producers_with_the_same_keys_in_opposite_order_do_not_wait_for_each_other(
    server: PostgresServer, store: PostgresStore, schema: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONFLICT_S", ())
    keys = [f"key-{number:03}" for number in range(many)]
    middle = keys[many // 2]
    with (
        ThreadPoolExecutor() as pool,
        psycopg.connect(server.url) as holder,
        App(f"{server.url}?schema={schema}") as app,
    ):
        app.task(name="t")(lambda: None).using(connection=holder, key=middle).enqueue()
        producers = []
        for number, order in enumerate((keys, keys[::-1]), start=1):
            producers.append(pool.submit(store.add, [make_job(key=key) for key in order]))
            until(lambda number=number: sleepers(server) == number, "the producer waits")
        holder.rollback()
        answers = [producer.result(60) for producer in producers]
    assert sorted(sum(not each.existed for each in answer) for answer in answers) == [0, many]
    assert {each.id for each in answers[0]} == {each.id for each in answers[1]}


@pytest.mark.parametrize("many", [3, 151])
def test_jobs_with_keys_run_in_the_order_of_the_call(store: PostgresStore, many: int) -> None:
    jobs = [make_job(key=f"key-{number * 7919 % many}") for number in range(many)]
    store.add(jobs)
    assert [each.id for each in store.find(Filter(limit=many))] == [each.id for each in reversed(jobs)]


def test_of_two_jobs_with_one_key_in_a_batch_the_first_is_stored(store: PostgresStore) -> None:
    first, other, second = make_job(key="b"), make_job(key="a"), make_job(key="b")
    answers = store.add([first, other, second])
    assert [(each.id, each.existed) for each in answers] == [(first.id, False), (other.id, False), (first.id, True)]


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Let a test act once between the statement that stores a batch and the one that reads who has its taken keys."""
    check_path = statements.check_path

    def arm(act: Callable[[], object]) -> None:
        def acting(leads_to_ours: bool) -> None:
            monkeypatch.setattr(statements, "check_path", check_path)
            check_path(leads_to_ours)
            act()

        monkeypatch.setattr(statements, "check_path", acting)

    return arm


def test_a_batch_that_fails_while_it_reads_the_holders_of_keys_stores_nothing(
    store: PostgresStore, between: Callable[[Callable[[], object]], None]
) -> None:
    taken = make_job(key="taken")
    store.add([taken])

    def lock() -> None:
        raise psycopg.errors.LockNotAvailable("canceling statement due to lock timeout")

    between(lock)
    with pytest.raises(StoreLocked, match="changed nothing"):
        store.add([make_job(key="taken"), make_job(), make_job()])
    assert [each.id for each in store.find(Filter())] == [taken.id]


def test_a_key_twice_in_a_batch_is_one_job_even_if_that_could_end_at_once(
    server: PostgresServer, store: PostgresStore, schema: str, between: Callable[[Callable[[], object]], None]
) -> None:
    with App(f"{server.url}?schema={schema}") as app:
        between(lambda: [job.cancel() for job in app.find()])
        first, second = store.add([make_job(key="a"), make_job(key="a")])
    assert (first.id, first.existed, second.existed) == (second.id, False, True)


def test_a_batch_whose_taken_key_becomes_free_on_the_way_is_new_in_every_part(
    server: PostgresServer, store: PostgresStore, schema: str, between: Callable[[Callable[[], object]], None]
) -> None:
    taken = make_job(key="taken")
    store.add([taken])
    jobs = [make_job(), make_job(key="taken")]
    with App(f"{server.url}?schema={schema}") as app:
        between(lambda: app.cancel(taken.id))
        answers = store.add(jobs)
    assert [(each.id, each.existed) for each in answers] == [(job.id, False) for job in jobs]


def test_an_enqueue_of_many_that_fails_on_the_way_says_what_is_stored(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand jobs share one transaction; the third thousand meets a key that somebody holds."""
    monkeypatch.setattr(Limits, "patient", lambda _: Limits(0.5, 60.0))
    with App(f"{server.url}?schema={schema}") as app, psycopg.connect(server.url) as holder:
        task = app.task(name="t")(lambda: None)
        drafts = [task.using(key=f"key-{number}").job() for number in range(3_500)]
        ids = [draft.new.id for draft in drafts]
        task.using(connection=holder, key="key-2500").enqueue()
        with pytest.raises(StoreLocked) as caught:
            app.enqueue_many(drafts)
        said = r"2,000 of 3,500 jobs are stored. .* stores nothing twice. The next 1,000 failed: .* changed nothing"
        assert re.match(said, str(caught.value))
        assert caught.value.stored_ids == tuple(ids[:2_000])
        assert [each.id for each in app.store.find(Filter(limit=5_000))] == ids[1_999::-1]
        holder.rollback()
        jobs = app.enqueue_many(drafts)
        assert [job.id for job in jobs] == ids
        assert [job.existed for job in jobs] == [True] * 2_000 + [False] * 1_500
        assert app.counts()["ready"] == 3_500


def test_an_enqueue_of_many_whose_answer_is_lost_names_the_jobs_that_may_be_stored(
    server: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with App(f"{server.url}?schema={schema}") as app:
        task = app.task(name="t")(lambda: None)
        drafts = [task.job() for _ in range(2_500)]
        ids = [draft.new.id for draft in drafts]
        real, calls = statements.add, []

        def add(*given: Any) -> Any:
            calls.append(1)
            answer = real(*given)
            if len(calls) == 2:
                raise OutcomeUnknown("the connection was cut")
            return answer

        monkeypatch.setattr(statements, "add", add)
        with pytest.raises(
            OutcomeUnknown, match=r"^1,000 of 2,500 jobs are stored.* The next 1,000 failed: "
        ) as caught:
            app.enqueue_many(drafts)
        assert (caught.value.stored_ids, caught.value.job_ids) == (tuple(ids[:1_000]), tuple(ids[1_000:2_000]))
        assert [job.existed for job in app.enqueue_many(drafts)] == [True] * 2_000 + [False] * 500
        assert app.counts()["ready"] == 2_500


def test_a_deadlock_in_our_own_transaction_is_tried_again(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    with App(f"{server.url}?schema={schema}") as app, psycopg.connect(server.url) as caller:
        task = app.task(name="t")(lambda: None)
        caller.execute("SET deadlock_timeout = '60s'")  # so the server undoes the other one
        task.using(connection=caller, key="b").enqueue()
        jobs = [make_job(key="a"), make_job(key="b")]
        with ThreadPoolExecutor() as pool:
            ours = pool.submit(store.add, jobs)
            until(lambda: sleepers(server) == 1, "ours waits for the caller")
            assert task.using(connection=caller, key="a").enqueue().existed is False
            caller.commit()
            assert [each.existed for each in ours.result(60)] == [True, True]


@pytest.fixture
def slow_to_see_deadlocks(server: PostgresServer) -> Iterator[None]:
    """All sessions of the server but those that say otherwise look for a deadlock only after a minute."""
    server.execute("ALTER SYSTEM SET deadlock_timeout = '60s'")
    server.execute("SELECT pg_reload_conf()")
    yield
    server.execute("ALTER SYSTEM RESET deadlock_timeout")
    server.execute("SELECT pg_reload_conf()")


@pytest.mark.usefixtures("slow_to_see_deadlocks")
def test_a_deadlock_in_a_caller_s_transaction_is_raised(
    server: PostgresServer, store: PostgresStore, schema: str
) -> None:
    with App(f"{server.url}?schema={schema}") as app, psycopg.connect(server.url) as caller:
        task = app.task(name="t")(lambda: None)
        caller.execute("SET deadlock_timeout = '10ms'")
        caller.commit()
        task.using(connection=caller, key="b").enqueue()
        with ThreadPoolExecutor() as pool:
            ours = pool.submit(store.add, [make_job(key="a"), make_job(key="b")])
            until(lambda: sleepers(server) == 1, "ours waits for the caller")
            with pytest.raises(StoreUnavailable, match="roll your transaction back and do it again"):
                task.using(connection=caller, key="a").enqueue()
            caller.rollback()
            assert [each.existed for each in ours.result(60)] == [False, False]


def test_a_conflict_that_does_not_end_is_said(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "CONFLICT_S", (0.001, 0.001))
    tries: list[int] = []

    def conflict(_: object) -> None:
        tries.append(1)
        raise psycopg.errors.SerializationFailure("could not serialize access")

    with pytest.raises(StoreUnavailable, match="could not serialize"):
        store._db.run(conflict)
    assert len(tries) == 3
