"""Reads the store a few times a second, and tells what is new: as a scene to draw, and as lines of words.

Everything told is read from rows and journal, with the time at which the store wrote it, so that the lines of one look
come in the order in which things happened.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from holdfast.core.machine import State
from holdfast.core.records import Event, Filter, Job, Worker
from holdfast.demo.book import Book, Death
from holdfast.demo.processes import Processes
from holdfast.stores.protocol import Store

Tone = Literal["plain", "act", "kill", "found", "start", "done", "held", "refused", "dead"]

TOLD = ("failed", "zombie", "released", "held", "dead", "revived", "resolved", "stale_report", "timed_out", "stalled")
SMALL = "thumbnail"


@dataclass(frozen=True, slots=True)
class Line:
    """Something that happened, in words."""

    at: float  # wall time
    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as the view shows it: its newest incarnation."""

    name: str
    state: Literal["starting", "alive", "killed", "frozen", "gone"]
    pid: int | None = None
    slots: int = 0
    running: tuple[Job, ...] = ()


@dataclass(slots=True)
class Scene:
    """What there is to see now."""

    wall: float = 0.0
    lease: float = 0.0
    began_at: float = 0.0
    act: int = 0
    acts: int = 0
    title: str = ""
    words: str = ""
    posts: list[WorkerView] = field(default_factory=list)
    actors: list[tuple[str, Job | None]] = field(default_factory=list)  # (task, row)
    counts: dict[str, int] = field(default_factory=dict)
    submitted: int = 0
    names: dict[str, str] = field(default_factory=dict)  # worker id -> name
    lines: deque[Line] = field(default_factory=lambda: deque(maxlen=200))


class Observer:
    """See the module's docstring. `say` is called with every new line."""

    def __init__(self, store: Store, book: Book, crew: Processes, say: Callable[[Line], None]) -> None:
        self._store = store
        self._book = book
        self._crew = crew
        self._say = say
        self._seq = 0
        self._workers: dict[str, Worker] = {}  # by id
        self._rows: dict[str, Job] = {}  # story jobs as last seen, by id
        self._killed: set[int] = set()  # pids
        self.events: list[Event] = []  # of the kinds in TOLD
        self.scene = Scene()
        self.story: dict[str, str] = {}  # task -> job id

    # ------------------------------------------------------------------------------- what was seen

    def row(self, task: str) -> Job | None:
        """Return the row of a story job, as last seen."""
        return self._rows.get(self.story.get(task, ""))

    def worker(self, worker_id: str | None) -> Worker | None:
        return self._workers.get(worker_id or "")

    def alive(self) -> list[Worker]:
        """Return the workers that can run jobs now."""
        names = {post.name for post in self.scene.posts if post.state == "alive"}
        return [worker for worker in self._newest().values() if worker.name in names]

    def event(self, kind: str, job_id: str, fence: int | None = None) -> Event | None:
        """Return the newest event of this kind of a job, with this fence if one is given."""
        for event in reversed(self.events):
            if event.kind == kind and event.job_id == job_id and fence in (None, event.fence):
                return event
        return None

    def note_killed(self, *pids: int) -> None:
        """Show these as killed until their successors are there."""
        self._killed.update(pids)

    # ------------------------------------------------------------------------------------- looking

    def look(self) -> None:
        """Read the store, redo the scene, and tell what is new."""
        store, scene = self._store, self.scene
        now = store.now()
        lines: list[Line] = []
        for worker in store.workers(gone=True):
            if worker.id not in self._workers:
                lines.append(Line(worker.started_at, f"worker {worker.name} is ready (pid {worker.pid})"))
            self._workers[worker.id] = worker
        rows = [row for job_id in self.story.values() if (row := store.get(job_id)) is not None]
        events = [event for event in store.journal(kinds=TOLD, limit=500) if event.seq > self._seq]
        self._seq = max([self._seq, *(event.seq for event in events)])
        self.events += events
        lines += [*self._of_events(events), *(line for row in rows for line in self._of_row(row))]
        self._rows = {row.id: row for row in rows}
        running = store.find(Filter(states=(State.RUNNING,), limit=500))
        scene.wall, scene.lease = now.wall, now.lease
        scene.names = {worker.id: worker.name for worker in self._workers.values()}
        scene.posts = [self._post(name, running) for name in self._crew.worker_names]
        scene.actors = [(task, self._rows.get(job_id)) for task, job_id in self.story.items()]
        counts = store.counts().values()
        scene.counts = {state.value: sum(jobs.get(state, 0) for jobs in counts) for state in State}
        scene.submitted = len(self._book.wanted)
        for line in sorted(lines, key=lambda line: line.at):
            self.tell(line)

    def tell(self, line: Line) -> None:
        self.scene.lines.append(line)
        self._say(line)

    def _newest(self) -> dict[str, Worker]:
        ordered = sorted(self._workers.values(), key=lambda worker: worker.started_at)
        return {worker.name: worker for worker in ordered}

    def _post(self, name: str, running: list[Job]) -> WorkerView:
        worker = self._newest().get(name)
        if worker is None:
            return WorkerView(name, "starting")
        own = tuple(job for job in running if job.worker == worker.id)
        if worker.pid in self._killed:
            return WorkerView(name, "killed", worker.pid, worker.slots, own)
        if worker.gone_at is not None:
            return WorkerView(name, "gone", worker.pid, worker.slots, own)
        state: Literal["frozen", "alive"] = "frozen" if self._crew.is_frozen(worker.pid) else "alive"
        return WorkerView(name, state, worker.pid, worker.slots, own)

    # --------------------------------------------------------------------------------------- telling

    def _of_row(self, row: Job) -> Iterator[Line]:
        before = self._rows.get(row.id)
        if row.state is State.RUNNING and (before is None or before.fence != row.fence):
            text = f"{row.task}: attempt {row.attempt} on {self._name(row.worker)}, fence {row.fence}"
            death = self._death(row.id)
            if death is not None and row.on_crash == "retry":
                text += f", {span((row.claimed_at or 0.0) - death.at)} after {death.by}"
            yield Line(row.claimed_at or 0.0, text, "start")
        if row.state is State.DONE and (before is None or before.state is not State.DONE):
            by = f" on {self._name(before.worker)}" if before is not None and before.worker else ""
            yield Line(row.ended_at or 0.0, f"{row.task}: done{by}, attempt {row.attempt}, fence {row.fence}", "done")

    def _of_events(self, events: list[Event]) -> Iterator[Line]:
        small: Counter[tuple[str, str, str]] = Counter()
        at: dict[tuple[str, str, str], float] = {}
        for event in events:
            task = next((task for task, job_id in self.story.items() if job_id == event.job_id), None)
            if task is not None:
                yield self._of_event(task, event)
            else:
                what = event.detail.get("detector", event.kind)
                group = (self._name(event.worker), what, event.detail.get("decision", ""))
                small[group] += 1
                at[group] = max(event.at, at.get(group, 0.0))
        for (worker, what, decision), number in small.items():
            jobs = f"{SMALL}{f' x {number}' if number > 1 else ''} on {worker}"
            yield Line(at[worker, what, decision], f"zombie {jobs}: found by {what}, {decision}", "found")

    def _of_event(self, task: str, event: Event) -> Line:
        detail, worker = event.detail, self._name(event.worker)
        match event.kind:
            case "zombie":
                death = self._book.deaths.get((event.job_id, event.fence))
                after = f" in {span(event.at - death.at)}" if death is not None else ""
                fences = f"fence {detail['fence_before']}->{detail['fence_after']}"
                text = f"zombie {task}: found by {detail['detector']}{after}, {detail['decision']}, {fences}"
                return Line(event.at, text, "found")
            case "failed":
                text = f"{task}: failed on {worker}, {detail.get('decision')}: {detail.get('error')}"
                return Line(event.at, text, "found")
            case "held":
                return Line(event.at, f"{task}: held: {detail.get('reason')}", "held")
            case "dead":
                return Line(event.at, f"{task}: dead: {detail.get('reason')}", "dead")
            case "stale_report":
                row = self._store.get(event.job_id)
                what = f"reports {task} as {detail['reported']}" if "reported" in detail else f"beats for {task}"
                text = f"stale_report: {worker} {what} with fence {event.fence}; the fence is"
                return Line(event.at, f"{text} {row.fence if row is not None else 'gone'}: refused", "refused")
            case "revived" | "resolved":
                note = f": {detail['note']}" if detail.get("note") else ""
                return Line(event.at, f"{task}: {event.kind} by {event.actor}{note}", "held")
            case _:
                return Line(event.at, f"{task}: {event.kind} on {worker}")

    def _death(self, job_id: str) -> Death | None:
        deaths = [death for death in self._book.deaths.values() if death.job_id == job_id]
        return max(deaths, key=lambda death: death.at, default=None)

    def _name(self, worker_id: str | None) -> str:
        worker = self.worker(worker_id)
        return worker.name if worker is not None else "a worker"


def span(seconds: float) -> str:
    """Write a measured length of time."""
    seconds = max(0.0, seconds)
    if seconds < 0.995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
