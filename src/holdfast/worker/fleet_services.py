"""The threads that a program with workers runs for the fleet, each under a duty: scheduler, pruner, notifier, and the
folder of rollups."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.alerts.notifier import Notifier
from holdfast.upkeep.pruner import Pruner
from holdfast.upkeep.rollup_folder import RollupFolder
from holdfast.upkeep.scheduler import Scheduler

if TYPE_CHECKING:
    from holdfast.app import App

log = logging.getLogger("holdfast.worker")


@contextmanager
def fleet_services(app: App, name: str) -> Iterator[None]:
    """Run them while the block runs; none where a server does it."""
    store, clock = app.store, app.clock
    if store.is_served:
        if app.schedules:
            log.info("the schedules of this app are declared by the server, if it runs it: holdfast server APP")
        yield
        return
    pruner = Pruner(store, clock, app.keep, hooks=app.hooks, name=name)
    folder = RollupFolder(store, clock, hooks=app.hooks, name=name)
    with Notifier(store, clock, app.alerts, name=name), pruner, folder, Scheduler(app, name=name):
        yield
