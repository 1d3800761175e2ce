"""`app.tick()`: a worker for one call, where no process lives for long.

A call from a scheduler or a request fires schedules, sweeps up what dead calls left, claims and runs what is due, sends
alerts, prunes, and is gone within its budget: what it cannot finish is given back, or held if it was dangerous to
begin. A limit on the run time is normal here. Any number of calls may run at once.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import msgspec

from holdfast.alerts.notifier import tell_once
from holdfast.alerts.standing import STANDING_S
from holdfast.core.child_exit import EXIT_TOO_OLD
from holdfast.errors import DutyLost, StoreError, UsageError
from holdfast.runtime.closing import Work
from holdfast.stores.protocol import schema_too_new
from holdfast.upkeep.pruner import Pruner
from holdfast.upkeep.rollup_folder import RollupFolder
from holdfast.upkeep.scheduler import Scheduler
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner

if TYPE_CHECKING:
    from holdfast.app import App

log = logging.getLogger("holdfast.worker")

TELL_S = 2.0  # of the budget at most, for telling alerts, if there are any; a quarter of a short one
HOOKS_S = 5.0  # for hooks that are not done when the work is
PRUNE_S = 1.0  # of the budget at most, for deleting jobs that `keep` no longer keeps; an eighth of a short one
LEAVE_S = 1.0  # of the budget at most, for stopping handlers and saving outcomes; a quarter of a short one


class TickReport(msgspec.Struct, frozen=True):
    """The result of one tick."""

    settled: int  # attempts whose outcome was saved, including those given back
    recovered: int  # lost attempts of others that it settled
    fired: int  # instants of schedules whose jobs it stored
    pruned: int  # ended jobs that it deleted, because `keep` no longer keeps them
    finished: bool  # False: the budget ended, or the app was closed, before the work did


def tick(app: App, budget_s: float, options: WorkerOptions) -> TickReport:
    """Run what is due within the budget; return earlier when nothing is left to do."""
    if isinstance(budget_s, bool) or not isinstance(budget_s, int | float):
        raise UsageError(f"budget_s={budget_s!r} must be a number of seconds")
    if not 0.1 <= budget_s <= 86_400:
        raise UsageError(f"budget_s={budget_s} must be between 0.1 and 86400 seconds")
    spent = threading.Event()
    work = Work(spent.set, budget_s)
    app.closing.begin(work)
    try:
        return _tick(app, budget_s, options, spent)
    finally:
        app.closing.end(work)


def _tick(app: App, budget_s: float, options: WorkerOptions, spent: threading.Event) -> TickReport:
    began = app.clock.lease()  # to open the store and to fire schedules is part of the budget
    since = app.store.now().wall
    leave_s = min(LEAVE_S, budget_s / 4)
    tell_s = min(TELL_S, budget_s / 4) if app.alerts else 0.0
    prune_s = min(PRUNE_S, budget_s / 8) if app.keep and not app.store.is_served else 0.0
    fired = 0 if app.store.is_served else _fire(app, began + budget_s / 2)  # the other half is for the jobs
    runner = Runner(app, options, until_idle=True, stop_s=leave_s / 2, flush_s=leave_s / 4)

    def stop() -> None:
        spent.set()
        runner.stop_now()

    timer = threading.Timer(max(0.0, began + budget_s - app.clock.lease() - leave_s - tell_s - prune_s), stop)
    timer.daemon = True
    timer.start()
    try:
        code = runner.run()
    finally:
        timer.cancel()
    app.hooks.flush(min(HOOKS_S, max(0.0, began + budget_s - app.clock.lease() - tell_s - prune_s)))
    left_s = began + budget_s - app.clock.lease() - prune_s
    if not app.store.is_served:
        looks = _looks(app)
        if looks:
            _fold(app, runner.name, began + budget_s)
        timeout_s = max(tell_s, left_s)
        tell_once(app.store, app.clock, app.alerts, name=runner.name, since=since, timeout_s=timeout_s, looks=looks)
    if code == EXIT_TOO_OLD:
        raise schema_too_new(app.store.url, app.store.schema())
    finished = not spent.is_set()
    pruned = _prune(app, runner.name, began + budget_s) if prune_s else 0
    return TickReport(settled=runner.settled, recovered=runner.recovered, fired=fired, pruned=pruned, finished=finished)


def _looks(app: App) -> bool:
    """Say whether this tick looks for what stands: of many in this process only some do, as it costs some reads."""
    now = app.clock.lease()
    if now - app.flow_looked_at < STANDING_S:
        return False
    app.flow_looked_at = now
    return True


def _fire(app: App, until: float) -> int:
    """Enqueue what schedules ask for, unless another process has the duty."""
    scheduler = Scheduler(app, name="tick")
    try:
        return scheduler.look(until)[0]
    except DutyLost:
        return 0
    finally:
        scheduler.resign()


def _fold(app: App, name: str, until: float) -> None:
    """Add up what was counted for charts, unless another process has the duty. A store that fails is only logged."""
    folder = RollupFolder(app.store, app.clock, hooks=app.hooks, name=f"{name}:tick")
    try:
        folder.once(until)
    except StoreError as error:
        log.warning("could not add up what was counted for charts (%s); the next tick tries again", error)
    finally:
        folder.resign()


def _prune(app: App, name: str, until: float) -> int:
    """Delete what `keep` no longer keeps, unless another process has the duty. A store that fails is only logged."""
    pruner = Pruner(app.store, app.clock, app.keep, hooks=app.hooks, name=f"{name}:tick")
    try:
        return pruner.once(until)
    except StoreError as error:
        log.warning("could not delete jobs that ended long ago (%s); the next tick tries again", error)
        return 0
    finally:
        pruner.resign()
