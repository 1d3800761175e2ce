"""A reaper inside any program: `app.reaper(…)` runs it on threads of this process."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from typing import TYPE_CHECKING, Self

from holdfast.alerts.notifier import Notifier
from holdfast.continuity import REAPER, Watcher
from holdfast.core.text import check_storable
from holdfast.errors import UsageError
from holdfast.runtime.closing import Work
from holdfast.runtime.duties import Election
from holdfast.upkeep.pruner import Pruner
from holdfast.upkeep.reaper_service import serve
from holdfast.upkeep.rollup_folder import RollupFolder

if TYPE_CHECKING:
    from holdfast.app import App

LEAVE_S = 30.0  # to finish a pass, tell hooks and alerts, and give the duty back
GRACE_MAX_S = 1e9


class EmbeddedReaper:
    """One replica of the reaper on threads of this process; `with` or `async with` starts and stops it.

    It does all that `holdfast reaper APP` does: it also sends alerts, and deletes what `keep` no longer keeps.
    """

    def __init__(
        self,
        app: App,
        *,
        name: str | None,
        interval_s: float,
        grace_s: float,
        ttl_s: float | None,
        renewal_s: float | None,
        retry_s: float | None,
    ) -> None:
        if isinstance(interval_s, bool) or not isinstance(interval_s, int | float) or not 0.05 <= interval_s <= 3600:
            raise UsageError(f"interval_s={interval_s!r} must be a number of seconds from 0.05 to 3600")
        if isinstance(grace_s, bool) or not isinstance(grace_s, int | float) or not 0 <= grace_s <= GRACE_MAX_S:
            raise UsageError(f"grace_s={grace_s!r} must be a number of seconds of at least 0")
        check_storable(name=name)
        self._app = app
        self.name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._interval_s, self._grace_s = interval_s, grace_s
        self._election = Election.declare(interval_s, ttl_s, renewal_s, retry_s)
        self._stopping, self._looked = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._raised: BaseException | None = None
        self.is_active = False  # it has the duty, as of its last look
        self.settled = 0  # lost attempts that it has settled

    def start(self) -> Self:
        """Start it, and return it once it has asked for the duty. Raises what keeps the store from being opened."""
        if self._thread is not None:
            raise UsageError("this reaper was started before; make another one with app.reaper(…)")
        if self._app.store.is_served:
            raise UsageError(f"the server at {self._app.url} recovers jobs itself; run the reaper beside its database")
        self._thread = threading.Thread(target=self._run, name="holdfast-reaper", daemon=True)
        self._thread.start()
        self._looked.wait(self._election.ttl_s)  # a store that fails is tried again
        return self

    def stop(self) -> None:
        """Let the pass that is under way be the last, and give the duty back. Raises what has ended it before."""
        if self._thread is None:
            raise UsageError("this reaper was not started; call .start(), or use it in a `with` block")
        self._stopping.set()
        self._thread.join(LEAVE_S)
        error, self._raised = self._raised, None
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(self, *exc: object) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    def _run(self) -> None:
        app = self._app
        work = Work(self._stopping.set, LEAVE_S)
        try:
            app.closing.begin(work)
            store, clock, hooks = app.store, app.clock, app.hooks
            pruner = Pruner(store, clock, app.keep, hooks=hooks, name=self.name)
            folder = RollupFolder(store, clock, hooks=hooks, name=self.name)
            notifier = Notifier(store, clock, app.alerts, name=self.name)
            with Watcher(store, clock, self.name, REAPER), notifier, pruner, folder:
                serve(
                    *(store, clock, self._stopping),
                    hooks=hooks,
                    name=self.name,
                    grace_s=self._grace_s,
                    interval_s=self._interval_s,
                    election=self._election,
                    on_turn=self._note,
                )
        except BaseException as error:
            self._raised = error
        finally:
            app.closing.end(work)
            self._looked.set()

    def _note(self, active: bool, settled: int) -> None:
        self.is_active, self.settled = active, settled
        self._looked.set()
