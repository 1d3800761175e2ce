"""The threads that a server runs for the whole fleet: reaper, scheduler, timers, pruning, rollups, alerts.

Remote workers run none of them, and a store whose workers are all remote has no other program that does.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from contextlib import ExitStack

from holdfast.alerts.notifier import Notifier
from holdfast.app import App
from holdfast.continuity import REAPER, Watcher
from holdfast.runtime.service import Service
from holdfast.upkeep.pruner import Pruner
from holdfast.upkeep.reaper_service import serve
from holdfast.upkeep.rollup_folder import RollupFolder
from holdfast.upkeep.scheduler import Scheduler

log = logging.getLogger("holdfast.server")

TIMERS_S = 0.5  # how often to look for timers
LEAVE_S = 5.0  # how long the end waits for a thread


class Services:
    """Started and stopped with the server. Each thread survives the errors of the store."""

    def __init__(self, app: App, *, reaps: bool, grace_s: float = 0.0) -> None:
        self._app = app
        self._reaps = reaps
        self._grace_s = grace_s
        self._name = f"{socket.gethostname()}:{os.getpid()}:server"
        self._stopping = threading.Event()
        self._stack = ExitStack()

    def start(self) -> None:
        """Start the threads."""
        app, store, clock = self._app, self._app.store, self._app.clock
        enter = self._stack.enter_context
        enter(Watcher(store, clock, self._name, REAPER))
        enter(Notifier(store, clock, app.alerts, name=self._name))
        enter(Pruner(store, clock, app.keep, hooks=app.hooks, name=self._name))
        enter(RollupFolder(store, clock, hooks=app.hooks, name=self._name))
        enter(Scheduler(app, name=self._name, fires_for_others=True))
        timers = Service("holdfast-timers", self._wake_due, clock, log, TIMERS_S, "timers wait until it is back")
        timers.start()
        self._stack.callback(timers.stop, LEAVE_S)
        if self._reaps:
            reaper = threading.Thread(target=self._reap, name="holdfast-reaper", daemon=True)
            reaper.start()
            self._stack.callback(reaper.join, LEAVE_S)
        self._stack.callback(self._stopping.set)

    def stop(self) -> None:
        """Stop the threads, and give the duties back."""
        self._stack.close()

    def _reap(self) -> None:
        app = self._app
        try:
            serve(app.store, app.clock, self._stopping, hooks=app.hooks, name=self._name, grace_s=self._grace_s)
        except Exception:
            log.exception("the reaper of this server has stopped; others continue")

    def _wake_due(self) -> float | None:
        """Wake workflows whose time has come; return the seconds to the next one."""
        store = self._app.store
        store.wake_sleepers()
        earliest = store.wake_due()
        return None if earliest is None else max(0.001, earliest - store.now().wall)
