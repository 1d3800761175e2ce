"""Tests of a Django project: `TestCase` and `TransactionTestCase` of Django with jobs of the test's own.

    class OrderTests(TestCase):
        def test_an_order_is_shipped(self) -> None:
            self.client.post("/orders/")
            self.jobs.drain()
            self.assertTrue(Order.objects.get().shipped)

Tasks use the database connections of the test, so they see what it has not committed. A job that is enqueued inside
`atomic()` vanishes when that block rolls back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from importlib import resources
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, cast

from django import test
from django.db import connections

from holdfast.app import App
from holdfast.core.records import Seen
from holdfast.errors import UsageError
from holdfast.integrations.django.configuration import alias_of, configuration, database_url, project_app
from holdfast.integrations.django.connections import shared
from holdfast.stores import fit, open_store
from holdfast.stores.protocol import Store
from holdfast.testing import AppTester
from holdfast.testing.postgres import own_schema

_KINDS = (("t", "table"), ("v", "view"))  # as Django's introspection has them
StoreKind = Literal["memory", "database"]


class DjangoTester(AppTester):
    """An `AppTester` for a Django project.

    store: "memory" (the default), or "database" for the test database itself: that has `ctx.transaction()`, and needs
    a test that commits, such as `TransactionTestCase`. The rest is as in `AppTester`.
    """

    def __init__(self, store: StoreKind = "memory", *, wall: float | None = None, eager: bool = False) -> None:
        if store not in ("memory", "database"):
            raise UsageError(f'store={store!r} must be "memory" or "database"')
        super().__init__(wall=wall, eager=eager)
        self._alias = alias_of(configuration())
        self._in_database = store == "database"
        self._pending: list[tuple[_Enqueued, list[str]]] = []
        self._connection: Any = None  # of the test; its tasks have it too

    def __enter__(self) -> Self:
        url = database_url(self._alias) if self._in_database else None
        self._connection = connections[self._alias]
        super().__enter__()
        if url is None:
            self._at_the_end.enter_context(shared({alias: connections[alias] for alias in connections}))
        elif url.startswith("postgresql:"):
            self._kind = self._at_the_end.enter_context(own_schema(url))
        else:
            self._kind = url
            self._at_the_end.callback(remove_folder, connections[self._alias].settings_dict["NAME"])
            self._at_the_end.callback(drop_tables, self._alias)
        project_app().counts()  # now: inside `atomic()` on SQLite it could not make its tables
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        self._pending.clear()

    def _opened(self, app: App, url: str) -> Store:
        if self._in_database:
            store = open_store(self._kind, clock=self.clock, create=True)
            fit(store, migrate=True)
            return store
        return cast(Store, _FollowsAtomic(super()._opened(app, url), self))

    def note(self, ids: list[str]) -> None:
        """Remember jobs of the `atomic()` that is open: they vanish with it."""
        if self._connection.in_atomic_block and ids:
            enqueued = _Enqueued()
            self._connection.on_commit(enqueued)
            self._pending.append((enqueued, ids))

    def forget_rolled_back(self, store: Store) -> None:
        """Remove the jobs whose `atomic()` was rolled back: Django has forgotten what it was to call at its commit."""
        kept = []
        waiting = [each[1] for each in self._connection.run_on_commit]
        for enqueued, ids in self._pending:
            if enqueued in waiting:
                kept.append((enqueued, ids))
            elif not enqueued.is_committed:
                rows = [row for row in map(store.get, ids) if row is not None]
                store.delete([Seen(row.id, row.state, row.fence) for row in rows])
        self._pending = kept


class _Enqueued:
    """A function that Django calls at a commit, and forgets at a rollback."""

    is_committed = False

    def __call__(self) -> None:
        self.is_committed = True


class _FollowsAtomic:
    """A store in memory whose jobs follow the transactions of Django."""

    def __init__(self, store: Store, tester: DjangoTester) -> None:
        self._store = store
        self._tester = tester

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in ("get", "find", "claim", "counts", "add"):
            self._tester.forget_rolled_back(self._store)
        return self._noting(found) if name == "add" else found

    def _noting(self, add: Callable[..., Any]) -> Callable[..., Any]:
        def added(*arguments: Any, **named: Any) -> Any:
            answers = add(*arguments, **named)
            self._tester.note([each.id for each in answers if not each.existed])
            return answers

        return added


class HoldfastTestMixin:
    """Gives each test a `DjangoTester` as `self.jobs`. A `setUp` of your own must call that of `super()`."""

    jobs_store: StoreKind = "memory"
    jobs: DjangoTester

    def setUp(self) -> None:
        """Put every app of the project on a store of this test."""
        super().setUp()  # type: ignore[misc]
        self.jobs = self.enterContext(DjangoTester(self.jobs_store))  # type: ignore[attr-defined]


class TestCase(HoldfastTestMixin, test.TestCase):  # type: ignore[misc]  # Django brings no types
    """Django's `TestCase` with `self.jobs`."""


class TransactionTestCase(HoldfastTestMixin, test.TransactionTestCase):  # type: ignore[misc]
    """Django's `TransactionTestCase` with `self.jobs`; with `jobs_store = "database"` in the test database."""


def remove_folder(database: object) -> None:
    """Remove the folder for the locks of workers next to the SQLite file of a test, if it is empty."""
    with suppress(OSError):
        Path(f"{database}-workers").rmdir()


def drop_tables(alias: str) -> None:
    """Leave no table of ours in the SQLite file of a test: the next test begins without."""
    folder = resources.files("holdfast.integrations.django")
    drop = {kind: folder.joinpath(f"drop_{name}.sql").read_text("utf-8") for kind, name in _KINDS}
    database = connections[alias]
    with database.cursor() as cursor:
        found = [each for each in database.introspection.get_table_list(cursor) if each.name.startswith("holdfast_")]
        for each in sorted(found, key=lambda each: each.type != "v"):  # views first: they need the tables
            statement = drop[each.type].format(name=database.ops.quote_name(each.name))
            cursor.execute(statement)
