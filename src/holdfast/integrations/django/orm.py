"""Django's ORM inside `ctx.transaction()`: what it writes commits with the end of the attempt.

For the block, a connection of Django's on the lent connection takes the place of the thread's own. The block is an
`atomic()` inside a transaction that is already open, so for Django it is a savepoint.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn
from urllib.parse import unquote, urlsplit

from django.db import connections
from django.db import transaction as django_transaction

from holdfast.errors import UsageError
from holdfast.integrations.lent import kind_of


@contextmanager
def transaction(db: Any, using: str = "default") -> Iterator[None]:
    """Let Django's ORM write through the connection that `ctx.transaction()` gives, in this thread, during the block.

    using: the alias of the database, which must be the store's. If the block raises, its writes are taken back to where
    it began, and the error goes on to the task. Raises `UsageError` if a statement has failed and the block went on:
    Django takes all of its writes back then, and the task would succeed without them.
    """
    kind, own = kind_of(db), connections[using]
    if isinstance(own, _Lent) or own.in_atomic_block:
        raise UsageError(f"a transaction of Django's is open on {using!r}; open ctx.transaction() outside of it")
    if own.vendor != kind or not _is_same_database(own, db):
        raise UsageError(f"the database {using!r} of Django is not the store's; use the alias whose database it is")
    with _adapted(own, db):
        connections[using] = _lent_class(own.__class__).on(own, db)
        try:
            block: Any = django_transaction.atomic(using=using)
            with block:
                yield
                connections[using].check_failures()
        finally:
            connections[using] = own


class _Lent:
    """Refuse what would end the transaction, on a connection of Django's that is lent."""

    is_lent = True
    is_to_be_undone = False  # the block has asked for it
    needs_rollback: bool

    @classmethod
    def on(cls, own: Any, db: Any) -> Any:
        made: Any = cls(own.settings_dict, alias=own.alias)  # type: ignore[call-arg]
        made.connection, made.autocommit, made.in_atomic_block = db, False, True
        if own.vendor == "postgresql":
            made.isolation_level = db.isolation_level
        return made

    def set_rollback(self, rollback: bool) -> None:
        super().set_rollback(rollback)  # type: ignore[misc]
        self.is_to_be_undone = rollback

    def check_failures(self) -> None:
        if self.needs_rollback and not self.is_to_be_undone:
            raise UsageError(
                "a statement failed and the task went on: Django takes back all that the block wrote. Let the error "
                "pass, or put what may fail into a block `with transaction.atomic():` of Django's"
            ) from getattr(self, "rollback_exc", None)

    def close(self) -> NoReturn:
        raise UsageError("Holdfast closes the connection; do not close it by hand")

    def connect(self) -> NoReturn:
        raise UsageError("the transaction that this connection belongs to is over")

    def on_commit(self, func: Callable[[], object], robust: bool = False) -> NoReturn:
        raise UsageError(
            "Holdfast commits after the task has returned, and calls nothing then: "
            "enqueue a job with using(connection=…) instead of on_commit()"
        )


@functools.cache
def _lent_class(kind: Any) -> Any:
    return type("LentDatabase", (_Lent, kind), {})


@contextmanager
def _adapted(own: Any, db: Any) -> Iterator[None]:
    """Give the driver's connection the types, functions and time zone that Django expects, and take back what would
    disturb Holdfast's own statements."""
    if own.vendor == "sqlite":
        from django.db.backends.sqlite3.base import register_functions

        register_functions(db)
        yield
        return
    from psycopg.adapt import AdaptersMap

    wanted = own.get_connection_params()
    before = db.cursor_factory, db._adapters, db.prepare_threshold
    zone = db.info.parameter_status("TimeZone")
    db.cursor_factory, db.prepare_threshold = wanted["cursor_factory"], wanted["prepare_threshold"]
    db._adapters = AdaptersMap(wanted["context"])
    try:
        own._configure_timezone(db)
        yield
    finally:
        db.cursor_factory, db._adapters, db.prepare_threshold = before
        with suppress(Exception):  # the transaction is over, and with it the setting
            if db.info.parameter_status("TimeZone") != zone:
                db.execute(own.ops.set_time_zone_sql(), [zone])


def _is_same_database(own: Any, db: Any) -> bool:
    name = str(own.settings_dict["NAME"])
    if own.vendor == "postgresql":
        return bool(name == db.info.dbname)
    if name.startswith("file:"):
        name = unquote(urlsplit(name).path)
    with suppress(OSError):
        return os.path.samefile(name, db.execute("PRAGMA database_list").fetchone()[2])
    return False
