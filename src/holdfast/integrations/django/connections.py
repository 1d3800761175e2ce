"""Django's database connections around each attempt.

Django closes a broken connection when a request begins or ends, and a worker has no requests: without this, a
connection that was cut would fail in every later task of its thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections

from holdfast.worker.context import Context

_shared: dict[str, Any] = {}  # alias -> the connection of a test, which its tasks use too


def around_sync(ctx: Context) -> Iterator[None]:
    """Middleware of tasks that are plain functions."""
    if _is_on_a_loop():  # an async task: `around_async` does it
        yield
        return
    with in_this_thread():
        yield


async def around_async(ctx: Context) -> AsyncIterator[None]:
    """Middleware of async tasks: what Django runs in a thread for one of them has a thread of its own."""
    async with in_own_thread():
        yield


@contextmanager
def in_this_thread() -> Iterator[None]:
    """Begin with connections of this thread that work, or with none, and close at the end what Django would close."""
    if _shared:
        with _borrowed():
            yield
        return
    for connection in connections.all(initialized_only=True):
        connection.close_if_unusable_or_obsolete()
        connection.health_check_enabled = True  # asked when the task uses it first; most tasks use none
    try:
        yield
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close_if_unusable_or_obsolete()


@asynccontextmanager
async def in_own_thread() -> AsyncIterator[None]:
    """Give `sync_to_async`, and so Django's async ORM, a thread that nobody else uses, with connections of its own."""
    async with ThreadSensitiveContext() as context:
        borrowed = _borrowed() if _shared else None
        if borrowed is not None:
            await sync_to_async(borrowed.__enter__)()
        try:
            yield
        finally:
            if borrowed is not None:
                await sync_to_async(borrowed.__exit__)(None, None, None)
            elif context in SyncToAsync.context_to_thread_executor:  # it was used
                await sync_to_async(connections.close_all)()


@contextmanager
def shared(wanted: Mapping[str, Any]) -> Iterator[None]:
    """Let the tasks of this program use these connections, by their aliases: what a test has not committed is there."""
    for connection in wanted.values():
        connection.inc_thread_sharing()
    _shared.update(wanted)
    try:
        yield
    finally:
        for alias, connection in wanted.items():
            _shared.pop(alias, None)
            connection.dec_thread_sharing()


@contextmanager
def _borrowed() -> Iterator[None]:
    before = {each.alias: each for each in connections.all(initialized_only=True)}
    for alias, connection in _shared.items():
        connections[alias] = connection
    try:
        yield
    finally:
        for alias in _shared:
            if alias in before:
                connections[alias] = before[alias]
            else:
                del connections[alias]


def _is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
