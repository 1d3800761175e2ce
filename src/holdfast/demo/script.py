"""The acts, in order. One thread does everything: it feeds small jobs, looks, draws, and waits for what must happen.

A step that does not happen in time ends the demo with a clear message; it never hangs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from holdfast.clock import pause
from holdfast.core.machine import State
from holdfast.core.records import Detector, Job, Worker
from holdfast.demo import tasks
from holdfast.demo.book import Book, Death, Recovery
from holdfast.demo.observer import Line, Observer, Scene, Tone
from holdfast.demo.processes import Processes
from holdfast.demo.summary import Summary, sum_up
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.jobs import Job as Handle
from holdfast.stores import open_store

TICK_S = 0.05
FEED_PER_S = 20.0  # small jobs
FEED_MAX = 20  # at once, after a pause
STEP_MAX_S = 15.0  # no step of the story takes longer
PLAY_MAX_S = 48.0  # all of it, without the clean-up
FREEZES_MAX = 5
FROZEN_LOCK_S = 0.3  # a frozen worker that still holds the file's write lock after this was frozen inside a write

ACTS = (
    "kill -9 a worker in the middle of a job",
    "kill -9 a supervisor and all its workers",
    "a worker freezes, and comes back from the dead",
    "a job that must not run twice",
    "a job that kills every worker it meets",
)


def url_in(folder: Path) -> str:
    """Return the address of the demo's store."""
    return f"sqlite:///{quote(str(folder))}/demo.db"


class DidNotHappen(HoldfastError):
    """A step of the story did not happen, or something was lost."""


class View(Protocol):
    """Where the demo is shown."""

    linger_s: float  # how long a person may look at the end of an act

    def line(self, line: Line) -> None:
        """Tell one event."""
        ...

    def draw(self, scene: Scene) -> None:
        """Show the scene as it is now."""
        ...


class Script:
    """See the module's docstring. One per process: it uses the app of `holdfast.demo.tasks`."""

    def __init__(self, folder: Path, view: View) -> None:
        self.url = url_in(folder)
        self.app = tasks.app
        self.app.url = self.url
        self.clock = self.app.clock
        self.book = Book()
        self.crew = Processes(folder, self.url, self.clock)
        self.view = view
        self._began_at = self.clock.lease()
        self._fed_at: float | None = None
        self._fed = 0
        self._played: list[str] = []
        self._lookout = Observer(self.app.store, self.book, self.crew, view.line)
        self._scene = self._lookout.scene
        self._scene.began_at, self._scene.acts = self._began_at, len(ACTS)

    def play(self) -> Summary:
        """Play all acts and check the books. Raises `DidNotHappen`, and leaves the clean-up to `close`."""
        try:
            self._open()
            for number, act in enumerate((self._act_1, self._act_2, self._act_3, self._act_4, self._act_5), 1):
                self._announce(number, ACTS[number - 1])
                act()
                self._played.append(ACTS[number - 1])
            return self._finale()
        except ProcessLookupError as error:
            raise self._failed(f"a worker was gone before it was signalled: {error}") from error

    def close(self) -> None:
        """End every process that was started. Safe to repeat."""
        self.crew.kill()
        self.app.close()

    # ------------------------------------------------------------------------------------------ acts

    def _open(self) -> None:
        self._title(0, "start the workers, submit jobs")
        self._words("Small jobs flow all the time. flaky fails at its first attempt.")
        for group in self.crew.groups:
            group.start()
            self._tell(f"$ holdfast worker holdfast.demo.tasks:app --name {group.name} --processes {group.processes}")
        self._fed_at = self.clock.lease()
        self._submit("flaky", tasks.flaky.enqueue(work_s=0.2))
        self._until_all_alive()
        self._until_in("flaky", State.DONE)

    def _act_1(self) -> None:
        self._words("Its supervisor sees the process end, and settles its leases at once.")
        self._submit("render", tasks.render.enqueue("holiday", work_s=2.0))
        job, worker = self._until_busy("render")
        death = self._death(1, job, worker.name, "exit")
        self.crew.kill_worker(worker.name, worker.pid)
        self._killed(death, f"kill -9 {worker.name} (pid {worker.pid})", worker.pid)
        self._recovered(death)
        self._until_in("render", State.DONE)
        self._linger()

    def _act_2(self) -> None:
        self._words("No process is left to report it; the others see that its liveness locks are free.")
        self._until_all_alive()
        self._submit("export", tasks.export.enqueue("orders", work_s=2.0))
        job, worker = self._until_busy("export")
        group = self.crew.group_of(worker.name)
        victims = [each for each in self._lookout.alive() if each.name in group.worker_names]
        death = self._death(2, job, group.name, "vanished")
        group.kill()
        pids = [each.pid for each in victims]
        self._killed(death, f"kill -9 {group.name}, {len(pids) + 1} processes,", *pids, others=1)
        self._recovered(death)
        self._linger()
        self._tell(f"{group.name} is started again, as systemd would")
        group.start()
        self._until_in("export", State.DONE)

    def _act_3(self) -> None:
        self._words("It is not dead, so only its short lease (2 s) can tell. Then it wakes up.")
        self._until_all_alive()
        self._submit("invoice", tasks.invoice.enqueue(42, work_s=1.5))
        job, worker = self._until_busy("invoice", for_s=0.1)
        self._freeze(worker)
        death = self._death(3, job, worker.name, "expired", by="SIGSTOP")
        self._killed(death, f"SIGSTOP {worker.name} (pid {worker.pid})", processes=False)
        self._recovered(death)
        self._until_in("invoice", State.DONE)
        self._tell(f"SIGCONT {worker.name}: it continues, unaware that invoice is done", "kill")
        self.crew.thaw(worker.pid)
        self._until("the zombie's report was refused", lambda: self._event("stale_report", job, job.fence))
        self._linger()

    def _act_4(self) -> None:
        self._words('charge has on_crash="hold": after a crash only a person decides.')
        self._until_all_alive()
        self._submit("charge", tasks.charge.enqueue(42, cents=999, work_s=1.0))
        job, worker = self._until_busy("charge", for_s=0.3)
        death = self._death(4, job, worker.name, "exit")
        self.crew.kill_worker(worker.name, worker.pid)
        self._killed(death, f"kill -9 {worker.name} (pid {worker.pid})", worker.pid)
        self._until_in("charge", State.HELD)
        self._recovered(death, again=False)
        self._linger()
        self.app.resolve(job.id, "retry", by="demo", note="no money has moved")
        self.book.approved += 1
        self._until_in("charge", State.DONE)

    def _act_5(self) -> None:
        self._words("crashes_max=3: it joins the dead letters with its reason; the other jobs continue.")
        self._until_all_alive()
        self._submit("poison", tasks.poison.enqueue(work_s=0.6), State.DEAD)
        self._until_in("poison", State.DEAD)
        self._linger()

    def _finale(self) -> Summary:
        self._title(len(ACTS) + 1, "stop everything, and count")
        self._words("Every acknowledged job must be there, in one state, and accepted once.")
        self._fed_at = None
        live = (State.READY, State.RUNNING, State.WAITING, State.HELD)
        self._until("every job ended", lambda: not any(self._scene.counts[state.value] for state in live))
        self._until_all_alive()
        self._tell("SIGTERM to both supervisors")
        codes = self.crew.stop()
        self._lookout.look()
        trouble = [f"{name} ended with code {code} after SIGTERM" for name, code in codes.items() if code != 0]
        return sum_up(
            self.app,
            self.book,
            acts=self._played,
            story=self._lookout.story,
            seconds=self._elapsed(),
            trouble=trouble,
        )

    # ----------------------------------------------------------------------------------------- steps

    def _until_busy(self, task: str, for_s: float = 0.8) -> tuple[Job, Worker]:
        """Wait until a worker is in the middle of the job; return both."""

        def is_busy() -> bool:
            row = self._lookout.row(task)
            if row is None or row.state is not State.RUNNING or row.claimed_at is None:
                return False
            busy_s = self._scene.wall - row.claimed_at
            return busy_s >= for_s + 0.5 or (busy_s >= for_s and row.progress is not None)

        self._until(f"{task} was running", is_busy)
        job = self._lookout.row(task)
        worker = self._lookout.worker(job.worker if job is not None else None)
        if job is None or worker is None:
            raise self._failed(f"{task} has no worker")
        return job, worker

    def _until_in(self, task: str, state: State) -> Job:
        self._until(f"{task} was {state.value}", lambda: (row := self._lookout.row(task)) and row.state is state)
        row = self._lookout.row(task)
        if row is None:
            raise self._failed(f"{task} is not in the store")
        return row

    def _until_all_alive(self) -> None:
        wanted = len(self.crew.worker_names)
        self._until(f"{wanted} workers are alive", lambda: len(self._lookout.alive()) == wanted)

    def _recovered(self, death: Death, *, again: bool = True) -> Recovery:
        """Wait until the death was found and, unless the job is held, a successor runs it."""

        def is_over() -> bool:
            row = self._lookout.row(death.task)
            found = self._lookout.event("zombie", death.job_id, death.fence)
            runs = row is not None and row.fence > death.fence and row.state is State.RUNNING
            return found is not None and (runs or not again)

        self._until(f"{death.task} was recovered from the death of {death.victim}", is_over)
        zombie = self._lookout.event("zombie", death.job_id, death.fence)
        row = self._lookout.row(death.task)
        if zombie is None or row is None:
            raise self._failed(f"{death.task} was not recovered")
        return self.book.recovered(death, zombie, row if again else None)

    def _freeze(self, worker: Worker) -> None:
        """Freeze a worker, but not inside a write: SQLite has one writer, and all others would wait for it."""
        probe = open_store(f"{self.url}?busy_s={FROZEN_LOCK_S}", clock=self.clock, create=False)
        try:
            for _ in range(FREEZES_MAX):
                self.crew.freeze(worker.name, worker.pid)
                try:
                    probe.ping()
                    return
                except StoreUnavailable:
                    self.crew.thaw(worker.pid)
                    self._tick()
        finally:
            probe.close()
        raise self._failed(f"{worker.name} was found inside a write {FREEZES_MAX} times")

    def _death(self, act: int, job: Job, victim: str, expected: Detector, by: str = "kill -9") -> Death:
        """Note who is about to die, as late as possible before the signal."""
        row = self.app.store.get(job.id) or job
        now = self.app.store.now()
        left_s = (row.lease_until or now.lease) - now.lease
        death = Death(
            act=act,
            by=by,
            expected=expected,
            at=now.wall,
            job_id=job.id,
            task=job.task,
            fence=job.fence,
            victim=victim,
            lease_left_s=left_s,
            lease_s=row.lease_s,
        )
        self.book.died(death)
        return death

    def _killed(self, death: Death, what: str, *pids: int, others: int = 0, processes: bool = True) -> None:
        self._lookout.note_killed(*pids)
        self.book.processes_killed += (len(pids) + others) if processes else 0
        text = f"{what} during {death.task}; lease left {death.lease_left_s:.1f} s"
        self._tell(text, "kill", death.at)

    # ---------------------------------------------------------------------------------- the machinery

    def _until(self, what: str, is_so: Callable[[], object]) -> None:
        give_up_at = min(self.clock.lease() + STEP_MAX_S, self._began_at + PLAY_MAX_S)
        self._tick()
        while not is_so():
            if self.clock.lease() > give_up_at:
                raise self._failed(f"this did not happen in time: {what}")
            pause(TICK_S)
            self._tick()

    def _linger(self) -> None:
        until = self.clock.lease() + self.view.linger_s
        while self.clock.lease() < until:
            self._tick()
            pause(TICK_S)

    def _tick(self) -> None:
        for group in self.crew.fallen():
            raise self._failed(f"the supervisor of {group.name} ended by itself, with code {group.exit_code()}")
        self._feed()
        self._lookout.look()
        self.view.draw(self._scene)

    def _feed(self) -> None:
        if self._fed_at is None:
            return
        due = int((self.clock.lease() - self._fed_at) * FEED_PER_S) - self._fed
        if due > 0:
            numbers = range(self._fed, self._fed + min(due, FEED_MAX))
            drafts = [tasks.thumbnail.job(number, ms=20 + number * 67 % 181) for number in numbers]
            self.book.submitted(job.id for job in self.app.enqueue_many(drafts))
            self._fed += due

    def _submit(self, task: str, job: Handle[object], wanted: State = State.DONE) -> None:
        self.book.submitted([job.id], wanted)
        self._lookout.story[task] = job.id
        self._tell(f"{task}: submitted")

    def _announce(self, number: int, title: str) -> None:
        self._title(number, title)
        self._tell(f"Act {number} of {len(ACTS)}: {title}", "act")

    def _title(self, number: int, title: str) -> None:
        self._scene.act, self._scene.title = number, title

    def _words(self, words: str) -> None:
        self._scene.words = words

    def _failed(self, what: str) -> DidNotHappen:
        number, title = self._scene.act, self._scene.title
        where = f"act {number}, {title}" if 1 <= number <= len(ACTS) else title
        logs = [f"  {group.name}: {line}" for group in self.crew.groups for line in group.last_words()]
        return DidNotHappen("\n".join([f"{where}: after {self._elapsed():.1f} s: {what}", *logs]))

    def _tell(self, text: str, tone: Tone = "plain", at: float | None = None) -> None:
        self._lookout.tell(Line(self.clock.wall() if at is None else at, text, tone))

    def _elapsed(self) -> float:
        return self.clock.lease() - self._began_at

    def _event(self, kind: str, job: Job, fence: int) -> object:
        return self._lookout.event(kind, job.id, fence)
