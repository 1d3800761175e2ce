"""Runs the user's own tasks on a store of their own while their workers die, freeze and lose the store.

Each round is about one task and one disturbance. The first rounds are undisturbed: they show what each input does when
all goes well.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from holdfast.app import App
from holdfast.clock import Clock, pause
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job, NewJob
from holdfast.enqueueing.many import store_many
from holdfast.errors import HoldfastError, UsageError
from holdfast.ids import chance, new_job_id
from holdfast.tasks import Task
from holdfast.torture.fleet import Group, without_writes
from holdfast.torture.lines import EffectFile, EffectLine
from holdfast.torture.plan import CALM, Disturbance, rounds
from holdfast.torture.verdict import Ran, TaskReport, report

LOOK_S = 0.1
LEASE_S, BEAT_S = 3.0, 0.75
CUT_S = 4.0  # longer than a lease
JOBS_LEAST = 4  # in a round, so that one is hit after the first
ROUND_MAX_S = 60.0  # beyond ten times the undisturbed round


class Call(NamedTuple):
    """An input: the arguments of one job."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = {}


class TorturedJob(NamedTuple):
    """A job as `--check` sees it."""

    id: str
    task: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Fleet(NamedTuple):
    """The worker groups of a round."""

    groups: list[Group]
    add: Callable[[Disturbance | None], None]


Check = Callable[[TorturedJob], int]
Told = Callable[[str], object]


class Torture:
    """Rounds over the tasks of an app. The app's store is one that `holdfast torture` has made."""

    def __init__(
        self,
        app: App,
        words: Sequence[str],
        inputs: Mapping[str, Sequence[Call]],
        folder: Path,
        clock: Clock,
        tell: Told,
        check: Check | None = None,
    ) -> None:
        self._app = app
        self._words = words  # of `holdfast worker`
        self._inputs = inputs
        self._folder = folder
        self._clock = clock
        self._tell = tell
        self._check = check
        self._effects = EffectFile(folder / "effects")
        self._calm: dict[str, list[Ran]] = {}
        self._calm_s: dict[str, float] = {}
        self._ran: dict[str, list[Ran]] = {}
        self._calls: dict[str, TorturedJob] = {}
        self.rounds = 0

    def run(self, for_s: float, only: Sequence[str] = ()) -> list[TaskReport]:
        """Disturb until the time is over, each task in turn; return what was found."""
        for name in self._inputs:
            began = self._clock.lease()
            self._calm[name] = self._round(name, CALM)
            self._calm_s[name] = self._clock.lease() - began
            failed = [each for each in self._calm[name] if each.state not in (State.DONE, State.WAITING, State.HELD)]
            if failed:
                row = self._rows({failed[0].id: 0})[0]
                raise UsageError(f"task {name} does not work undisturbed: {row.state.value}, {row.error}")
        until = self._clock.lease() + for_s
        plans = {name: rounds(self._app.tasks[name].is_workflow, only) for name in self._inputs}
        while self._clock.lease() < until:
            for name, plan in plans.items():  # all of them: a task that was not disturbed is not known
                self._ran.setdefault(name, []).extend(self._round(name, next(plan)))
        return [self._report(name) for name in self._inputs]

    def _report(self, name: str) -> TaskReport:
        task, ran = self._app.tasks[name], self._ran.get(name, [])
        checked = None if self._check is None else {each.id: int(self._check(self._calls[each.id])) for each in ran}
        return report(name, task.policy.on_crash, self._calm[name], ran, checked)

    def _round(self, name: str, disturbance: Disturbance) -> list[Ran]:
        self.rounds += 1
        self._tell(f"{name}: {disturbance}")
        jobs = self._store_jobs(self._app.tasks[name])
        within_s = ROUND_MAX_S + 10 * self._calm_s.get(name, 0.0)
        with self._fleet(disturbance) as fleet:
            give_up_at = self._clock.lease() + within_s
            cut, struck = disturbance.act != "cut", set[str]()
            while True:
                rows = self._rows(jobs)
                if all(_is_over(row) for row in rows):
                    break
                if not cut and any(row.state is State.RUNNING for row in rows):
                    cut = True
                    with without_writes(self._folder / "torture.db"):
                        pause(CUT_S)
                if disturbance.act == "freeze":
                    self._let_return(fleet, rows)
                elif disturbance.act == "strike":
                    self._strike(rows, struck, LOOK_S * len(jobs) / self._calm_s[name])
                self._check_groups(fleet.groups)
                if self._clock.lease() > give_up_at:
                    left = Counter(row.state.value for row in rows if not _is_over(row))
                    raise HoldfastError(f"{name}, {disturbance}: after {within_s:.0f} s there are still {dict(left)}")
                pause(LOOK_S)
        return self._seen(name, disturbance, jobs)

    def _store_jobs(self, task: Task[..., Any]) -> dict[str, int]:
        """Store a job for each input, several if there are few; return the number of the input of each."""
        calls = list(self._inputs[task.name])
        made: dict[str, int] = {}
        drafts: list[NewJob] = []
        for place in range(max(JOBS_LEAST, len(calls))):
            number = place % len(calls)
            call = calls[number]
            new = task.job(*call.args, **call.kwargs).new
            policy = new.policy
            retry = replace(policy.retry, base_s=0.05, cap_s=0.2)
            policy = replace(policy, lease_s=LEASE_S, beat_s=BEAT_S, crashes_max=100, retry=retry)
            job_id = new_job_id(self._clock)
            drafts.append(msgspec.structs.replace(new, id=job_id, key=None, key_rule=None, policy=policy))
            made[job_id] = number
            self._calls[job_id] = TorturedJob(job_id, task.name, call.args, call.kwargs)
        store_many(self._app, drafts)
        return made

    @contextmanager
    def _fleet(self, disturbance: Disturbance) -> Iterator[Fleet]:
        """Start the worker that is disturbed; `add` starts another one that is not."""
        with ExitStack() as stack:
            groups: list[Group] = []

            def add(armed: Disturbance | None) -> None:
                log = self._folder / "worker.log"
                groups.append(Group(f"torture{len(groups)}", self._words, self._effects.path, log, armed))
                stack.callback(groups[-1].stop)

            add(disturbance)
            yield Fleet(groups, add)

    def _strike(self, rows: Sequence[Job], struck: set[str], chance_each: float) -> None:
        """Kill the worker of each job at most once, wherever its handler is."""
        running = {row.worker: row.id for row in rows if row.state is State.RUNNING and row.started}
        for worker in self._app.store.workers():
            job_id = running.get(worker.id)
            if job_id is not None and job_id not in struck and chance() < chance_each:
                struck.add(job_id)
                with suppress(ProcessLookupError):
                    os.kill(worker.pid, signal.SIGKILL)

    def _let_return(self, fleet: Fleet, rows: Sequence[Job]) -> None:
        """Let another worker take over from a frozen one, which returns when none of its jobs is its own any more."""
        if not (frozen := fleet.groups[0].frozen()):
            return
        if len(fleet.groups) == 1:
            fleet.add(None)
        holders = {row.worker for row in rows if row.state is State.RUNNING}
        pids = {worker.pid for worker in self._app.store.workers() if worker.id in holders}
        fleet.groups[0].thaw([pid for pid in frozen if pid not in pids])

    def _check_groups(self, groups: Sequence[Group]) -> None:
        for group in groups:
            if group.exit_code == -signal.SIGKILL:
                group.start()
            elif group.exit_code is not None:
                lines = (self._folder / "worker.log").read_text("utf-8", errors="replace").splitlines()[-8:]
                raise UsageError("the worker ended by itself:\n" + "\n".join(lines))

    def _rows(self, jobs: Mapping[str, int]) -> list[Job]:
        return self._app.store.find(Filter(ids=tuple(jobs), limit=len(jobs)))

    def _seen(self, name: str, disturbance: Disturbance, jobs: Mapping[str, int]) -> list[Ran]:
        marked: dict[str | None, list[EffectLine]] = {}
        for line in self._effects.new():
            marked.setdefault(line.job, []).append(line)
        ran = []
        for row in self._rows(jobs):
            lost = self._app.store.journal(row.id, ["zombie"])
            begun = sum(1 for event in lost if event.detail.get("started"))
            starts = begun + row.failures + (row.state is State.DONE)
            effects = Counter((line.name, line.key) for line in marked.get(row.id, []))
            ran.append(Ran(row.id, jobs[row.id], row.state, str(disturbance), effects, starts, len(lost)))
        return ran


def _is_over(row: Job) -> bool:
    """Say whether nothing more happens to a job in this round: it has ended, or waits for a person or a signal."""
    waits = row.state is State.WAITING and row.wake_at is None
    return waits or row.state not in (State.READY, State.RUNNING, State.WAITING)
