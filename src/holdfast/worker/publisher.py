"""Publishes a worker's tasks at its start, for enqueues by name."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from holdfast.clock import Clock
from holdfast.enqueueing.by_name import publish
from holdfast.errors import HoldfastError, StoreDenied
from holdfast.runtime.service import Service
from holdfast.stores.protocol import Store
from holdfast.tasks import Task

log = logging.getLogger("holdfast.worker")

AGAIN_S = 30.0  # the pause before the next try


class Publisher:
    """Publishes once. If that fails, a thread tries again, and the worker does not wait for it."""

    def __init__(self, store: Store, clock: Clock, tasks: Mapping[str, Task[..., Any]]) -> None:
        self._store = store
        self._tasks = tasks
        meanwhile = "enqueues by name see this worker's tasks as they were published before"
        self._service = Service("holdfast-publisher", self._try_again, clock, log, AGAIN_S, meanwhile)

    def begin(self) -> None:
        """Publish what is new."""
        try:
            publish(self._store, self._tasks)
        except StoreDenied:
            log.info("this worker's token may not publish its tasks; the server does, if it runs the app")
        except HoldfastError:
            self._service.start()

    def close(self) -> None:
        """Stop trying."""
        self._service.stop(0.0)

    def _try_again(self) -> None:
        publish(self._store, self._tasks)
        self._service.stopping.set()
