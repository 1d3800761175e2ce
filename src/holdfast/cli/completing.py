"""The names that a shell completes: queues, tasks, workers, as the store knows them.

A shell asks while a person types: whatever goes wrong, nothing is offered and nothing is printed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from typing import Any

import click

from holdfast.errors import HoldfastError
from holdfast.stores.protocol import Store

Complete = Callable[[click.Context, click.Parameter, str], list[Any]]


def _names(ask: Callable[[Store], Iterable[str]]) -> Complete:
    def complete(ctx: click.Context, _: click.Parameter, typed: str) -> list[Any]:
        from holdfast.cli.base import Settings
        from holdfast.stores import open_store

        given = ctx.find_root().ensure_object(Settings)
        with suppress(HoldfastError, OSError), closing(open_store(given.db, create=False)) as store:
            return sorted({name for name in ask(store) if name.startswith(typed)})
        return []

    return complete


def _tasks(store: Store) -> list[str]:
    return [task.name for task in store.published()]


def _queues(store: Store) -> list[str]:
    served = [queue for worker in store.workers() for queue in worker.queues]
    return [*store.counts(), *(queue.name for queue in store.queues()), *served]


def _workers(store: Store) -> list[str]:
    found = [worker.name for worker in store.workers(gone=True)]
    return [*found, *(name.rpartition("/")[0] for name in found if "/" in name)]


complete_task = _names(_tasks)
complete_queue = _names(_queues)
complete_worker = _names(_workers)
