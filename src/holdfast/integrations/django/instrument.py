"""`instrument(app)`: connections of Django's that work in each attempt, and enqueues that join `atomic()`."""

from __future__ import annotations

import dataclasses
from typing import Any

from asgiref.sync import AsyncToSync, sync_to_async
from django.db import connections

from holdfast.app import App
from holdfast.errors import UsageError
from holdfast.integrations.django.connections import around_async, around_sync
from holdfast.tasks import Draft

_WITH_SQL = ("sqlite:", "postgresql:", "postgres:")


def instrument(app: App, database: str | None = "default") -> None:
    """Let tasks of an app of your own use Django's ORM. The app of the project has this already.

    Each attempt begins with database connections that work, and leaves none behind that it should not. An enqueue
    inside `atomic()` of this database is stored by that transaction; with `database=None`, for a store that is
    elsewhere, it is stored at once. Call it once, where the app is declared.
    """
    app.middleware(around_sync)
    app.middleware(around_async)
    if database is None:
        return

    @app.enqueue_middleware
    def join_atomic(draft: Draft[Any]) -> Draft[Any]:
        # A test may have put the app on a store without SQL.
        if draft.connection is None and app.url.startswith(_WITH_SQL) and connections[database].in_atomic_block:
            return dataclasses.replace(draft, connection=connections[database])
        return draft

    @app.enqueue_middleware
    async def refuse_async_to_sync(draft: Draft[Any]) -> Draft[Any]:
        """Refuse `async_to_sync(task.aenqueue)(…)` inside `atomic()`: an event loop has other connections."""
        if draft.connection is not None or not app.url.startswith(_WITH_SQL):
            return draft
        is_below_sync_code = getattr(AsyncToSync.executors, "current", None) is not None
        if is_below_sync_code and await sync_to_async(lambda: connections[database].in_atomic_block)():
            raise UsageError("aenqueue() cannot join atomic(), which belongs to another thread: call enqueue() there")
        return draft
