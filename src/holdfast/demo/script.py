"""The acts, in order. One thread does everything: it feeds small jobs, looks, draws, and waits for what must happen.

A step that does not happen in time ends the demo with a clear message; it never hangs.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from holdfast.clock import pause
from holdfast.core.machine import State
from holdfast.core.records import Detector, Event, Job, Worker
from holdfast.demo import tasks
from holdfast.demo.book import Book, Death
from holdfast.demo.observer import DemoLine, Observer
from holdfast.demo.pages import PagesServer
from holdfast.demo.processes import Processes
from holdfast.demo.summary import sum_up
from holdfast.demo.view import View
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.jobs import Job as Handle
from holdfast.stores import open_store

TICK_S = 0.1
FEED_PER_S = 20.0  # small jobs
FEED_MAX = 20  # at once, after a pause
STEP_MAX_S = 15.0  # no step of the story takes longer
PLAY_MAX_S = 48.0  # all of it, without the clean-up
FREEZES_MAX = 5
FROZEN_LOCK_S = 0.3  # a frozen worker that still holds the file's write lock after this was frozen inside a write

ACTS = {  # title -> what a person should know
    "kill -9 a worker in the middle of a job": "Its supervisor sees the process end, and settles its leases at once.",
    "kill -9 a supervisor and all its workers": "Nobody is left to report it; others see that its locks are free.",
    "a worker freezes, and comes back from the dead": (
        "It is not dead, so only its short lease (2 s) can tell. Then it wakes up."
    ),
    "a job that must not run twice": 'charge has on_crash="hold": after a crash only a person decides.',
    "a job that kills every worker it meets": (
        "crashes_max=3: it joins the dead letters with its reason; the other jobs continue."
    ),
}

T = TypeVar("T")


def url_in(folder: Path) -> str:
    """Return the address of the demo's store."""
    return f"sqlite:///{quote(str(folder))}/demo.db"


class DidNotHappen(HoldfastError):
    """A step of the story did not happen, or something was lost."""


class Script:
    """See the module's docstring. One per process: it uses the app of `holdfast.demo.tasks`."""

    def __init__(self, folder: Path, view: View, pages: PagesServer | None = None) -> None:
        self.app = tasks.app
        self.app.url = self.url = url_in(folder)
        self.clock = self.app.clock
        self.book = Book()
        self.crew = Processes(folder, self.url, self.clock)
        self.view = view
        self._pages = pages
        self._fed_at: float | None = None
        self._fed = 0
        self._seen = Observer(self.app, self.book, self.crew, view.line)

    def play(self) -> dict[str, Any]:
        """Play all acts, check the books, and sum up. Raises `DidNotHappen`, and leaves the clean-up to `close`."""
        try:
            self._open()
            acts = (self._act_1, self._act_2, self._act_3, self._act_4, self._act_5)
            for number, ((title, words), act) in enumerate(zip(ACTS.items(), acts, strict=True), 1):
                self._announce(title, words, f"Act {number} of {len(ACTS)}: ")
                self._tell(f"{self._seen.act}{title}", "bold")
                self._until_all_alive()
                act()
            return self._finale()
        except ProcessLookupError as error:
            raise self._failed(f"a worker was gone before it was signalled: {error}") from error

    def close(self) -> None:
        """End every process that was started. Safe to repeat."""
        self.crew.kill()
        self.app.close()

    # ------------------------------------------------------------------------------------------ acts

    def _open(self) -> None:
        words = "Small jobs flow all the time. flaky fails at its first attempt."
        self._announce("start the workers, submit jobs", words)
        for group in self.crew.groups:
            group.start()
            self._tell(f"$ {group.command}")
        self._fed_at = self.clock.lease()
        self._submit("flaky", tasks.flaky.enqueue(work_s=0.2))
        if self._pages is not None:
            self._pages.start()
        self._until_all_alive()
        self._until_in("flaky", State.DONE)
        if self._pages is not None:
            address = self._until("the pages are served", self._pages.address)
            self._tell(f"the pages are at {address}", "bold")
            self._pages.show(address)

    def _act_1(self) -> None:
        self._submit("render", tasks.render.enqueue("holiday", work_s=2.0))
        self._recovered(self._kill_worker(1, *self._until_busy("render")))
        self._until_in("render", State.DONE)
        self._linger()

    def _act_2(self) -> None:
        self._submit("export", tasks.export.enqueue("orders", work_s=2.0))
        job, worker = self._until_busy("export")
        group = self.crew.group_of(worker.name)
        pids = [each.pid for each in self._seen.alive() if each.name in group.worker_names]
        death = self._death(2, job, group.name, "vanished")
        group.kill()
        self._killed(death, f"{group.name}, {len(pids) + 1} processes,", pids)
        self.book.processes_killed += 1  # the supervisor
        self._recovered(death)
        self._linger()
        self._tell(f"{group.name} is started again, as systemd would")
        group.start()
        self._until_in("export", State.DONE)

    def _act_3(self) -> None:
        self._submit("invoice", tasks.invoice.enqueue(42, work_s=1.5))
        job, worker = self._until_busy("invoice", for_s=0.1)
        self._freeze(worker)
        death = self._death(3, job, worker.name, "expired", by="SIGSTOP")
        self._killed(death, f"{worker.name} (pid {worker.pid})")
        self._recovered(death)
        self._until_in("invoice", State.DONE)
        self._tell(f"SIGCONT {worker.name}: it continues, unaware that invoice is done", "bold red")
        self.crew.thaw(worker.pid)
        self._until("the zombie's report was refused", lambda: self._seen.event("stale_report", job))
        self._linger()

    def _act_4(self) -> None:
        self._submit("charge", tasks.charge.enqueue(42, cents=999, work_s=1.0))
        death = self._kill_worker(4, *self._until_busy("charge", for_s=0.3))
        self._until_in("charge", State.HELD)
        self._recovered(death, again=False)
        self._linger()
        self.app.resolve(death.job.id, "retry", by="demo", note="no money has moved")
        self.book.approved += 1
        self._until_in("charge", State.DONE)

    def _act_5(self) -> None:
        self._submit("poison", tasks.poison.enqueue(work_s=0.6), State.DEAD)
        self._until_in("poison", State.DEAD)
        self._linger()

    def _finale(self) -> dict[str, Any]:
        words = "Every acknowledged job must be there, in one state, and accepted once."
        self._announce("stop everything, and count", words)
        self._fed_at = None
        live = ("ready", "running", "waiting", "held")
        self._until("every job ended", lambda: not any(self._seen.counts[state] for state in live))
        self._until_all_alive()
        self._tell("SIGTERM to both supervisors")
        codes = self.crew.stop()
        self._seen.look()
        trouble = [f"{name} ended with code {code} after SIGTERM" for name, code in codes.items() if code != 0]
        seconds, story = self._elapsed(), self._seen.story
        return sum_up(self.app, self.book, acts=list(ACTS), story=story, seconds=seconds, trouble=trouble)

    # ----------------------------------------------------------------------------------------- steps

    def _until_busy(self, task: str, for_s: float = 0.8) -> tuple[Job, Worker]:
        """Wait until a worker is in the middle of the job; return both."""

        def busy() -> tuple[Job, Worker] | None:
            row = self._seen.rows.get(task)
            worker = self._seen.workers.get(row.worker or "") if row is not None else None
            if row is None or worker is None or row.state is not State.RUNNING or row.claimed_at is None:
                return None
            busy_s = self._seen.now.wall - row.claimed_at
            is_busy = busy_s >= for_s + 0.5 or (busy_s >= for_s and row.progress is not None)
            return (row, worker) if is_busy else None

        return self._until(f"{task} was running", busy)

    def _until_in(self, task: str, state: State) -> None:
        self._until(f"{task} was {state.value}", lambda: (row := self._seen.rows.get(task)) and row.state is state)

    def _until_all_alive(self) -> None:
        wanted = len(self.crew.worker_names)
        self._until(f"{wanted} workers are alive", lambda: len(self._seen.alive()) == wanted)

    def _recovered(self, death: Death, *, again: bool = True) -> None:
        """Wait until the death was found and, unless the job is held, a successor runs it."""
        job = death.job

        def found() -> tuple[Event, Job] | None:
            row, zombie = self._seen.rows[job.task], self._seen.event("zombie", job)
            runs = row.fence > job.fence and row.state is State.RUNNING
            return (zombie, row) if zombie is not None and (runs or not again) else None

        zombie, row = self._until(f"{job.task} was recovered from the death of {death.victim}", found)
        self.book.recovered(death, zombie, row if again else None)

    def _freeze(self, worker: Worker) -> None:
        """Freeze a worker, but not inside a write: SQLite has one writer, and all others would wait for it."""
        with closing(open_store(f"{self.url}?busy_s={FROZEN_LOCK_S}", clock=self.clock, create=False)) as probe:
            for _ in range(FREEZES_MAX):
                self.crew.freeze(worker.name, worker.pid)
                try:
                    probe.ping()
                    return
                except StoreUnavailable:
                    self.crew.thaw(worker.pid)
                    self._tick()
        raise self._failed(f"{worker.name} was found inside a write {FREEZES_MAX} times")

    def _kill_worker(self, act: int, job: Job, worker: Worker) -> Death:
        death = self._death(act, job, worker.name, "exit")
        self.crew.signal(worker.name, worker.pid, signal.SIGKILL)
        self._killed(death, f"{worker.name} (pid {worker.pid})", [worker.pid])
        return death

    def _death(self, act: int, job: Job, victim: str, expected: Detector, by: str = "kill -9") -> Death:
        """Note who is about to die, as late as possible before the signal."""
        row, now = self.app.store.get(job.id) or job, self.app.store.now()
        left_s = (row.lease_until or now.lease) - now.lease
        death = Death(act=act, by=by, expected=expected, at=now.wall, job=job, victim=victim, lease_left_s=left_s)
        self.book.deaths[job.id] = death
        return death

    def _killed(self, death: Death, who: str, pids: Sequence[int] = ()) -> None:
        self._seen.killed.update(pids)
        self.book.processes_killed += len(pids)
        text = f"{death.by} {who} during {death.job.task}; lease left {death.lease_left_s:.1f} s"
        self._tell(text, "bold red", death.at)

    # ---------------------------------------------------------------------------------- the machinery

    def _until(self, what: str, found: Callable[[], T | None]) -> T:
        """Wait until something was found that is true; return it."""
        give_up_at = min(self.clock.lease() + STEP_MAX_S, self._seen.began_at + PLAY_MAX_S)
        self._tick()
        while not (thing := found()):
            if self.clock.lease() > give_up_at:
                raise self._failed(f"this did not happen in time: {what}")
            pause(TICK_S)
            self._tick()
        return thing

    def _linger(self) -> None:
        until = self.clock.lease() + self.view.linger_s
        self._until("a person has looked", lambda: self.clock.lease() >= until)

    def _tick(self) -> None:
        for group in self.crew.groups:
            if group.exit_code is not None:
                raise self._failed(f"the supervisor of {group.name} ended by itself, with code {group.exit_code}")
        self._feed()
        self._seen.look()
        self.view.draw(self._seen)

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
        self._seen.story[task] = job.id
        self._tell(f"{task}: submitted")

    def _announce(self, title: str, words: str, act: str = "") -> None:
        self._seen.act, self._seen.title, self._seen.words = act, title, words

    def _tell(self, text: str, style: str = "", at: float | None = None) -> None:
        self._seen.tell(DemoLine(self.clock.wall() if at is None else at, text, style))

    def _failed(self, what: str) -> DidNotHappen:
        where = f"{self._seen.act}{self._seen.title}: after {self._elapsed():.1f} s: {what}"
        logs = [f"  {group.name}: {line}" for group in self.crew.groups for line in group.last_words()]
        return DidNotHappen("\n".join([where, *logs]))

    def _elapsed(self) -> float:
        return self.clock.lease() - self._seen.began_at
