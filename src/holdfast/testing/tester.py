"""`AppTester`: the apps of a program on stores of a test, with a clock in the test's hand.

    with AppTester() as jobs:
        shop.checkout(42)
        jobs.assert_enqueued(shop.charge, order_id=42)
        jobs.drain()

The fixture `holdfast` of the pytest plugin is one. Jobs run in this process, one at a time, as `app.tick()` runs them.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self, cast

from holdfast.app import App
from holdfast.core.machine import State
from holdfast.core.payload import JSON
from holdfast.core.records import Filter
from holdfast.core.schedule import next_instant
from holdfast.errors import UsageError
from holdfast.jobs import Job
from holdfast.stores import fit, open_store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Store
from holdfast.tasks import Sender, Task
from holdfast.testing.clock import SteppedClock
from holdfast.testing.crashes import At, Crash, Crashes, MortalStore
from holdfast.testing.postgres import own_schema
from holdfast.testing.redirect import Redirect
from holdfast.worker.options import WorkerOptions
from holdfast.worker.tick import tick

ROUNDS_MAX = 10_000  # of jobs that enqueue jobs; more of them never end
LOOK_AT = 1_000  # jobs that are looked at for the next instant at which one is due
TICK_S = 300.0  # how long the jobs of one round may take
OPTIONS = WorkerOptions(slots=1, reaper=False, in_process=True)  # one after the other, where the test's patches are

AnyTask = Sender[..., Any] | str


class AppTester:
    """See the module's docstring.

    store: "memory" (the default), "sqlite" for a file in a folder of its own, or the address of a PostgreSQL database,
    in which it makes a schema and drops it at the end. wall: the instant at which the clock stands at first, in
    seconds since 1970; by default the present. eager: every enqueue runs the job before it returns.
    """

    def __init__(
        self, store: str = "memory", *, wall: float | None = None, eager: bool = False, folder: Path | None = None
    ) -> None:
        if store not in ("memory", "sqlite") and not store.startswith(("postgresql://", "postgres://")):
            raise UsageError(f'store={store!r} must be "memory", "sqlite" or the address of a PostgreSQL database')
        self.clock = SteppedClock(wall)
        self._kind = store
        self._folder = folder
        self._at_the_end = ExitStack()
        self._eager = eager
        self._running = threading.Lock()
        self._crashes = Crashes()
        self._redirect = Redirect(self._open, self.clock)
        self._shared: dict[object, MemoryStore] = {}
        self._files: dict[str, str] = {}
        self._order: dict[str, int] = {}  # the ids of jobs, as they were enqueued

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self._kind == "sqlite" and self._folder is None:
                self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="holdfast-")))
            elif self._kind not in ("memory", "sqlite"):
                self._kind = stack.enter_context(own_schema(self._kind))
            self._at_the_end = stack.pop_all()
        self._redirect.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        missing = self._crashes.end()
        with self._at_the_end:
            self._redirect.end()
        if missing and error is None:
            raise AssertionError(f"these never happened: {', '.join(map(str, missing))}")

    # ----------------------------------------------------------------------------------------- time

    def advance(self, *, seconds: float = 0, minutes: float = 0, hours: float = 0, days: float = 0) -> int:
        """Let this much time pass as a running worker lives through it; return how many attempts ended.

        Jobs, retries, timers of workflows and schedules that become due on the way run at their own instants, in order.
        """
        until = self.clock.wall() + seconds + 60 * minutes + 3600 * hours + 86_400 * days
        return self._run() + self._live_until(until)

    def drain(self) -> int:
        """Run jobs until none is left that will run by itself; return how many attempts ended.

        When nothing is due, the clock jumps to the next job, retry or sleep of a workflow. Jobs that are held, and
        workflows that wait for a signal or an answer, stay where they are. Schedules fire for the instants that pass.
        """
        ended = self._run()
        rounds = 0
        while (at := self._next_instant(only_jobs=True)) is not None:
            rounds += 1
            if rounds > ROUNDS_MAX:
                raise AssertionError(f"drain() does not end: after {ROUNDS_MAX} rounds there still are jobs to run")
            ended += self._live_until(at)
        return ended

    def run_due(self) -> int:
        """Run what is due now, and do not move the clock; return how many attempts ended."""
        return self._run()

    # ----------------------------------------------------------------------------------------- jobs

    def enqueued(self, task: AnyTask, /, *args: Any, **kwargs: Any) -> list[Job[Any]]:
        """Return the jobs of a task, in any state and oldest first, that have these arguments and any others."""
        found = [job for app in self._redirect.apps for job in app.find(task=_name_of(task), limit=LOOK_AT)]
        matching = [job for job in found if _matches(job, task, args, kwargs)]
        last = len(self._order)  # ids do not say: the clock stood still while they were made
        return sorted(matching, key=lambda job: (job.row.created_at, self._order.get(job.id, last)))

    def assert_enqueued(self, task: AnyTask, /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Return the newest job of a task that has these arguments and any others; fail if there is none."""
        found = self.enqueued(task, *args, **kwargs)
        if not found:
            raise AssertionError(f"no job of {_name_of(task)} with {_call(args, kwargs)} was enqueued; {self._all()}")
        return found[-1]

    def assert_not_enqueued(self, task: AnyTask, /, *args: Any, **kwargs: Any) -> None:
        """Fail if there is a job of a task that has these arguments."""
        found = self.enqueued(task, *args, **kwargs)
        if found:
            raise AssertionError(f"{len(found)} jobs of {_name_of(task)} were enqueued: {_listed(found)}")

    @contextmanager
    def eager(self) -> Iterator[None]:
        """Run each job before the call that enqueues it returns, during the block."""
        before, self._eager = self._eager, True
        try:
            yield
        finally:
            self._eager = before

    def crash(
        self,
        *,
        during: Task[..., Any] | Callable[..., Any] | str,
        at: At = "end",
        note: str | None = None,
        times: int = 1,
    ) -> Crash:
        """Let the worker die in the next attempt that gets there, as many `times` as asked for.

        during: a task, the function of a step of a workflow, or the name of a step. at: "start", before its first line;
        "end", when it has returned and nothing is saved yet; "saved", when the result of the step is saved. note: at
        the call of `ctx.progress(note=…)` with this note instead. The end of the test fails if a death never happened.
        """
        return self._crashes.ask(during, at, note, times)

    # ------------------------------------------------------------------------------------------ inside

    def _open(self, app: App, url: str) -> Store:
        store = self._opened(app, url)
        app.__dict__["_url"] = store.url.partition("?")[0] if self._kind == "sqlite" else store.url
        return cast(Store, MortalStore(store, self._crashes, self._added))

    def _opened(self, app: App, url: str) -> Store:
        if self._kind == "memory":
            key: object = app if url.startswith("memory:") else url
            return self._shared.setdefault(key, MemoryStore(clock=self.clock))
        store = open_store(self._address(url), clock=self.clock, create=True)
        fit(store, migrate=True)
        return store

    def _address(self, url: str) -> str:
        if self._kind != "sqlite":
            return self._kind
        name = self._files.setdefault(url, f"jobs-{len(self._files) + 1}.db" if self._files else "jobs.db")
        return f"sqlite:///{self._folder}/{name}?synchronous=normal"

    def _added(self, ids: list[str]) -> None:
        for job_id in ids:
            self._order.setdefault(job_id, len(self._order))
        if self._eager and self._running.acquire(blocking=False):  # a job that enqueues one is in a round already
            try:
                self._rounds()
            finally:
                self._running.release()

    def _run(self) -> int:
        """Run what is due."""
        if not self._running.acquire(blocking=False):
            raise UsageError("a job cannot run the jobs of its test: call drain(), run_due() and advance() in the test")
        try:
            return self._rounds()
        finally:
            self._running.release()

    def _rounds(self) -> int:
        ended, rounds, more = 0, 0, True
        while more:
            deaths = self._crashes.happened
            reports = [tick(app, TICK_S, OPTIONS) for app in self._redirect.apps]
            more = self._crashes.happened > deaths or any(
                report.settled or report.fired or report.recovered for report in reports
            )
            ended += sum(report.settled for report in reports)
            rounds += 1
            if rounds > ROUNDS_MAX:
                raise AssertionError(f"jobs do not end: after {ROUNDS_MAX} rounds there still are jobs to run")
        return ended

    def _live_until(self, until: float) -> int:
        """Run what becomes due until then, at its own instant."""
        ended = 0
        while (at := self._next_instant()) is not None and at <= until:
            self.clock.advance_to(at)
            ended += self._run()
        self.clock.advance_to(until)
        return ended + self._run()

    def _next_instant(self, *, only_jobs: bool = False) -> float | None:
        """Return the next instant at which something becomes due; with `only_jobs` no schedule, and no workflow that
        waits for more than the time."""
        now = self.clock.wall()
        instants: list[float] = []
        for app in self._redirect.apps:
            store, known = app.store, set(app.tasks)
            opens = {queue.name: queue.opens_at(now) for queue in store.queues()}
            for row in store.find(Filter(states=(State.READY,), limit=LOOK_AT)):
                opens_at = opens.get(row.queue, 0.0)  # by its rate or pause; None: a person has paused it
                instants += [max(row.run_at, opens_at)] if row.task in known and opens_at is not None else []
            for row in store.find(Filter(states=(State.WAITING,), limit=LOOK_AT)):
                if row.wake_at is not None and not (only_jobs and row.awaits):
                    instants.append(row.wake_at)
            if not only_jobs:
                due = (next_instant(each.spec, each.tz, now) for each in store.schedules() if not each.paused)
                instants += [at for at in due if at is not None]
        return min((at for at in instants if at > now), default=None)

    def _all(self) -> str:
        found = [job for app in self._redirect.apps for job in app.find(limit=10)]
        return f"enqueued were: {_listed(found)}" if found else "nothing was"


def _name_of(task: AnyTask) -> str:
    return task if isinstance(task, str) else task._task.name


def _matches(job: Job[Any], task: AnyTask, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if isinstance(task, str):
        if args:
            raise UsageError("name the arguments of a task that is given by its name: order_id=42")
        given: dict[str, Any] = job._app.codec.decode(job.row.payload)
    else:
        declared = cast(Task[..., Any], task._task)
        positional, given = declared.decode(job.row.payload)
        names = [*inspect.signature(declared.fn).parameters]
        names = names[1:] if declared.takes_context or declared.is_workflow else names
        given = {**dict(zip(names, positional, strict=False)), **given}
        if len(args) > len(names):
            raise UsageError(f"{declared.name} takes {len(names)} positional arguments, and {len(args)} were given")
        kwargs = {**dict(zip(names, args, strict=False)), **kwargs}
        if unknown := kwargs.keys() - set(names) - given.keys():
            raise UsageError(f"{declared.name} has no argument {sorted(unknown)[0]!r}")
    return all(name in given and _is_same(given[name], value) for name, value in kwargs.items())


def _is_same(stored: Any, wanted: Any) -> bool:
    """Compare as the job's function sees it, or as it travelled: a tuple is a list there."""
    if bool(stored == wanted):
        return True
    try:
        return JSON.encode(stored) == JSON.encode(wanted)
    except Exception:
        return False


def _call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    parts = [*map(repr, args), *(f"{name}={value!r}" for name, value in kwargs.items())]
    return f"({', '.join(parts)})" if parts else "any arguments"


def _listed(jobs: list[Job[Any]]) -> str:
    return ", ".join(f"{job.row.task} {job.row.payload} ({job.row.state.value})" for job in jobs)
