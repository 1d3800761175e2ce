"""Reads that are run together: one message for all that need nothing of each other, and the answers as one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.errors import StoreError
from holdfast.stores import rounds
from holdfast.stores.postgres.connection import Connections
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.rounds import ROUNDS_MAX, once, together
from tests.factory import add, enrol, start


class Server:
    """Answers a statement with its own words, and keeps what each message asked for."""

    def __init__(self, *broken: str) -> None:
        self.messages: list[list[str]] = []
        self.broken = broken

    def rows(self, asked: Sequence[tuple[str, Mapping[str, Any] | None]]) -> list[Any]:
        self.messages.append([query for query, _ in asked])
        if set(self.broken) & {query for query, _ in asked}:
            raise StoreError("no luck")
        return [f"{query} {values}" for query, values in asked]

    def one(self, query: str, values: Mapping[str, Any] | None = None) -> Any:
        is_there, row = rounds.row_of(self, query, values)
        return row if is_there else self.rows([(query, values)])[0]

    def asks(self, query: str) -> Callable[[], Any]:
        return lambda: self.one(query)


def test_reads_that_need_nothing_of_each_other_share_a_message() -> None:
    server = Server()
    assert together(server.asks("a"), lambda: 7, server.asks("b")) == ["a None", 7, "b None"]
    assert server.messages == [["a", "b"]]


def test_a_read_that_needs_another_answer_first_asks_in_the_next_message() -> None:
    server = Server()
    found = together(lambda: server.one("b", {"of": server.one("a")}), server.asks("c"))
    assert found == ["b {'of': 'a None'}", "c None"]
    assert server.messages == [["a", "c"], ["b"]]


def test_reads_inside_of_others_share_their_messages_and_their_answers() -> None:
    server = Server()
    inner = lambda: together(server.asks("a"), server.asks("b"))  # noqa: E731
    assert together(inner, server.asks("c"), server.asks("a")) == [["a None", "b None"], "c None", "a None"]
    assert server.messages == [["a", "b", "c"]]


def test_where_one_cannot_be_answered_each_is_asked_alone_and_that_one_raises() -> None:
    server = Server("bad")

    def tolerant() -> str:
        try:
            return str(server.one("bad"))
        except StoreError:
            return "not known"

    assert together(tolerant, server.asks("a")) == ["not known", "a None"]
    with pytest.raises(StoreError):
        together(server.asks("bad"), server.asks("a"))
    assert server.one("a") == "a None", "later reads are not run together any more"


def test_what_is_made_once_is_the_same_for_all_reads_and_their_repetitions() -> None:
    server, made = Server(), iter(range(100))
    instant = lambda: once("now", lambda: next(made))  # noqa: E731
    found = together(lambda: server.one("a", {"since": instant()}), instant)
    assert found == ["a {'since': 0}", 0]
    assert [instant(), instant()] == [1, 2]


def test_a_read_that_asks_for_something_else_each_time_comes_to_an_end() -> None:
    server, numbers = Server(), iter(range(1000))
    [found] = together(lambda: server.one("a", {"since": next(numbers)}))
    assert found == f"a {{'since': {ROUNDS_MAX}}}"


def test_every_store_answers_together_as_one_by_one(store: Store) -> None:
    add(store, queue="mail")
    job = start(store, enrol(store, name="box"), queue="media")
    reads: list[Callable[[], Any]] = [
        store.counts,
        lambda: store.get(job.id),
        lambda: [each.id for each in store.find(Filter(states=(State.RUNNING,)))],
        lambda: [worker.name for worker in store.workers()],
        lambda: store.journal(job.id),
        store.queues,
        store.now,
        store.figures.backlog,
        lambda: store.figures.flow(store.now().wall - 60),
    ]
    assert together(*reads) == [read() for read in reads]


def test_postgres_answers_many_reads_in_one_round_trip(postgres: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = PostgresStore(postgres)
    store.migrate()
    calls: list[str] = []
    run = Connections.run

    def counted(self: Connections, work: Any, limits: Any = None) -> Any:
        calls.append(work.__qualname__)
        return run(self, work, limits)

    monkeypatch.setattr(Connections, "run", counted)
    together(store.counts, store.workers, store.queues, store.now, lambda: store.errors(store.now().wall - 60))
    assert len(calls) == 2, calls
    store.close()
