"""Reads the store a few times a second, keeps what there is to see, and tells what is new in lines of words.

Everything shown is read from rows and journal, with the time at which the store wrote it, so that the lines of one look
come in the order in which things happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from holdfast.app import App
from holdfast.core.durations import duration
from holdfast.core.machine import State
from holdfast.core.records import Event, Filter, Job, Worker
from holdfast.demo.book import Book
from holdfast.demo.processes import Processes

TOLD = ("failed", "zombie", "held", "dead", "revived", "stale_report")
SMALL = "thumbnail"


class DemoLine(NamedTuple):
    """Something that happened, in words."""

    at: float  # wall time
    text: str
    style: str = ""


class Observer:
    """See the module's docstring. `say` is called with every new line."""

    def __init__(self, app: App, book: Book, crew: Processes, say: Callable[[DemoLine], object]) -> None:
        self._app = app
        self._crew = crew
        self._say = say
        self._seq = 0
        self.book = book
        self.began_at = app.clock.lease()
        self.act, self.title, self.words = "", "", ""  # the script sets them
        self.story: dict[str, str] = {}  # task -> job id
        self.killed: set[int] = set()  # pids: shown so until their successors are there
        self.now = app.store.now()
        self.workers: dict[str, Worker] = {}  # by id, oldest first
        self.rows: dict[str, Job] = {}  # story jobs, by task
        self.running: list[Job] = []
        self.counts: dict[str, int] = {}
        self.events: list[Event] = []  # of the kinds in TOLD
        self.lines: deque[DemoLine] = deque(maxlen=200)

    # ------------------------------------------------------------------------------- what was seen

    def newest(self) -> dict[str, tuple[str, Worker | None]]:
        """Return by name in which state each worker is, and its newest incarnation."""
        newest = {worker.name: worker for worker in self.workers.values()}
        return {name: (self._state(newest.get(name)), newest.get(name)) for name in self._crew.worker_names}

    def alive(self) -> list[Worker]:
        """Return the workers that can run jobs now."""
        return [worker for state, worker in self.newest().values() if worker is not None and state == "alive"]

    def event(self, kind: str, job: Job) -> Event | None:
        """Return the newest event of this kind of a job, with its fence."""
        found = [each for each in self.events if (each.kind, each.job_id, each.fence) == (kind, job.id, job.fence)]
        return found[-1] if found else None

    def name(self, worker_id: str | None) -> str:
        worker = self.workers.get(worker_id or "")
        return worker.name if worker is not None else "a worker"

    def _state(self, worker: Worker | None) -> str:
        if worker is None:
            return "starting"
        if worker.pid in self.killed:
            return "killed"
        return "gone" if worker.gone_at is not None else "frozen" if worker.pid in self._crew.frozen else "alive"

    # ------------------------------------------------------------------------------------- looking

    def look(self) -> None:
        """Read the store, and tell what is new."""
        store = self._app.store
        self.now = store.now()
        known, workers = self.workers, sorted(store.workers(gone=True), key=lambda worker: worker.started_at)
        self.workers = {worker.id: worker for worker in workers}
        lines = [
            DemoLine(worker.started_at, f"worker {worker.name} is ready (pid {worker.pid})")
            for worker in workers
            if worker.id not in known
        ]
        before, found = self.rows, ((task, store.get(job_id)) for task, job_id in self.story.items())
        self.rows = {task: row for task, row in found if row is not None}
        events = [event for event in store.journal(kinds=TOLD, limit=500) if event.seq > self._seq]
        self._seq = max([self._seq, *(event.seq for event in events)])
        self.events += events
        lines += self._of_events(events)
        lines += [line for task, row in self.rows.items() for line in self._of_row(before.get(task), row)]
        self.running = store.find(Filter(states=(State.RUNNING,), limit=500))
        self.counts = self._app.counts()
        for line in sorted(lines, key=lambda line: line.at):
            self.tell(line)

    def tell(self, line: DemoLine) -> None:
        self.lines.append(line)
        self._say(line)

    # --------------------------------------------------------------------------------------- telling

    def _of_row(self, before: Job | None, row: Job) -> Iterator[DemoLine]:
        attempt = f"attempt {row.attempt}"
        if row.state is State.RUNNING and (before is None or before.fence != row.fence):
            text = f"{row.task}: {attempt} on {self.name(row.worker)}, fence {row.fence}"
            death = self.book.deaths.get(row.id)
            if death is not None and row.on_crash == "retry":
                text += f", {duration((row.claimed_at or 0.0) - death.at)} after {death.by}"
            yield DemoLine(row.claimed_at or 0.0, text, "cyan")
        if row.state is State.DONE and (before is None or before.state is not State.DONE):
            by = f" on {self.name(before.worker)}" if before is not None and before.worker else ""
            yield DemoLine(row.ended_at or 0.0, f"{row.task}: done{by}, {attempt}, fence {row.fence}", "green")

    def _of_events(self, events: list[Event]) -> Iterator[DemoLine]:
        tasks = {job_id: task for task, job_id in self.story.items()}
        small: dict[str, list[float]] = {}
        for event in events:
            if event.job_id in tasks:
                yield DemoLine(event.at, *self._of_event(tasks[event.job_id], event))
            elif event.kind == "zombie":
                found = f"on {self.name(event.worker)}: found by {event.detail['detector']}, {event.detail['decision']}"
                small.setdefault(found, []).append(event.at)
        for found, times in small.items():
            number = f" x {len(times)}" if len(times) > 1 else ""
            yield DemoLine(max(times), f"zombie {SMALL}{number} {found}", "yellow")

    def _of_event(self, task: str, event: Event) -> tuple[str, str]:
        detail, worker = event.detail, self.name(event.worker)
        match event.kind:
            case "zombie":
                death = self.book.deaths.get(event.job_id)
                after = f" in {duration(event.at - death.at)}" if death and death.job.fence == event.fence else ""
                fences = f"fence {detail['fence_before']}->{detail['fence_after']}"
                return f"zombie {task}: found by {detail['detector']}{after}, {detail['decision']}, {fences}", "yellow"
            case "failed":
                return f"{task}: failed on {worker}, {detail.get('decision')}: {detail.get('error')}", "yellow"
            case "held" | "dead":
                return f"{task}: {event.kind}: {detail.get('reason')}", "magenta" if event.kind == "held" else "red"
            case "stale_report":
                what = f"reports {task} as {detail['reported']}" if "reported" in detail else f"beats for {task}"
                fences = f"with fence {event.fence}; the fence is {self.rows[task].fence}"
                return f"stale_report: {worker} {what} {fences}: refused", "bold magenta"
            case _:  # revived
                return f"{task}: {event.kind} by {event.actor}: {detail.get('note')}", "magenta"
