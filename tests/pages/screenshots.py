"""Takes the pictures of the pages for README and docs: `make screenshots`.

The store is seeded with a morning of a shop, on a clock that stands still. Each page is taken in both themes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Browser

from holdfast.alerts import declare
from holdfast.alerts.notifier import LOOK_S, Notifier
from holdfast.app import App
from holdfast.core.durations import iso
from holdfast.core.records import Detector, Job
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Lost, Outcome, Succeeded, judge
from holdfast.runtime.hooks import Hooks
from holdfast.testing import FakeClock
from holdfast.upkeep.rollup_folder import RollupFolder
from tests.factory import a_step, add, again, enrol, record, row, settle, start, start_flow
from tests.pages.browser.find import launched
from tests.pages.site import Site

FOLDER = Path(__file__).parent.parent.parent / "docs" / "pictures"
TOTAL_MAX = 1_500_000  # bytes of all pictures
SIZE = {"width": 1280, "height": 800}
THEMES = ("light", "dark")
MORNING = 1_794_904_200.0
MINUTES = 60
TASKS = (("mail.welcome", "mail"), ("mail.receipt", "mail"), ("media.thumbnail", "media"), ("reports.daily", "reports"))


class Shop:
    """The jobs of a shop; `job` was recovered, `flow` is a workflow that waits for a person."""

    def __init__(self, app: App, clock: FakeClock) -> None:
        self._app, self._store, self._clock = app, app.store, clock
        self._workers = [
            enrol(self._store, name=name, host=host, queues=["mail", "media", "reports", "shop"], release="2026.11.3")
            for name, host in (("web-1", "paris-1"), ("web-2", "paris-2"), ("media-1", "oslo-1"))
        ]
        folder = RollupFolder(self._store, clock, hooks=Hooks(), name="web-1")
        alerts = Notifier(self._store, clock, [declare(log=True)], name="web-1")
        self._hour(folder)
        self.job = self._recovered()
        self._errors()
        self._held()
        self.flow = self._order()
        self._now()
        for _ in range(2):
            alerts.look()
            self._pass(LOOK_S)
        for duty in ("reaper", "scheduler", "pruner"):
            self._store.acquire(duty, "web-1:1" if duty == "reaper" else "web-2:1", 60.0)
        folder.once()
        report = app.task(name="reports.nightly")(lambda: None)
        app.schedule("nightly", "0 3 * * *", report)

    def _pass(self, seconds: float) -> None:
        self._clock.advance(seconds)
        for worker in self._workers:
            self._store.beat(worker, [])

    def _hour(self, folder: RollupFolder) -> None:
        for minute in range(MINUTES):
            for number in range(6 + (minute * 7) % 5 + (8 if 30 < minute < 40 else 0)):
                task, queue = TASKS[(minute + number) % len(TASKS)]
                dies = task == "reports.daily" and (minute + number) % 41 == 0
                job = add(self._store, task=task, queue=queue, attempts_max=1 if dies else 10)
                self._clock.advance(0.05 + (number % 4) * 0.1)
                job = again(self._store, job, self._workers[number % 3])
                ran_s = 0.1 + (number % 7) * 0.3
                self._clock.advance(ran_s)
                self._settle(job, Failed("ValueError: no rows for Tuesday") if dies else Succeeded('"ok"'), ran_s)
            self._pass(max(1.0, 60.0 - self._clock.wall() % 60.0))
            folder.once()

    def _lose(self, task: str, detector: Detector, silent_s: float) -> Job:
        """Run a job for a while and lose its worker; return the attempt."""
        payload = '{"film": "harbour.mov", "width": 1920}'
        job = start(self._store, self._workers[2], task=task, queue="media", lease_s=30.0, payload=payload)
        claimed_at = self._clock.wall()
        self._pass(8.0 + silent_s)
        beat_at = self._clock.wall() - silent_s
        autopsy = {
            "signal": 9,
            "seconds_since_beat": silent_s,
            "claimed_at": iso(claimed_at),
            "last_beat": iso(beat_at),
            "lease_until": iso(beat_at + 30.0),
        }
        cause = "its lease ran out" if detector == "expired" else "its process was killed by SIGKILL"
        settle(self._store, job, Lost(detector, cause, autopsy=autopsy))
        return job

    def _recovered(self) -> str:
        silent: tuple[tuple[Detector, float], ...] = (
            *(("exit", 0.05), ("exit", 0.08), ("exit", 0.2), ("vanished", 0.6), ("expired", 30.4)),
        )
        for detector, silent_s in silent:
            lost = self._lose("media.encode", detector, silent_s)
            self._pass(2.0)
            job = again(self._store, row(self._store, lost.id), self._workers[0])
            self._pass(14.0)
            if detector == "expired":  # it was frozen, and comes back
                settle(self._store, lost, Succeeded('"harbour-1920.mp4"'))
            self._pass(12.0)
            self._settle(job, Succeeded('"harbour-1920.mp4"'), 26.0)
            self._pass(30.0)
        return lost.id

    def _settle(self, job: Job, outcome: Outcome, ran_s: float) -> None:
        judged = judge(outcome, job, self._clock.wall(), chance=0.5)
        self._store.settle([settlement(job, judged, ran_s=ran_s)])

    def _errors(self) -> None:
        for number in range(5):
            job = start(self._store, self._workers[1], task="mail.receipt", queue="mail", attempts_max=1)
            self._pass(1.0)
            settle(self._store, job, Failed(f"TimeoutError: smtp{number % 2}.example.org did not answer"))

    def _held(self) -> None:
        for number, killed in enumerate(("SIGKILL", "the kernel: out of memory")):
            payload = json.dumps({"order_id": 1042 + number, "cents": 4990})
            cause = f"its process was killed by {killed}"
            autopsy = {"seconds_since_beat": 0.1, "signal": 9, "log": ["POST /charges", "waiting for the bank"]}
            lost = Lost("exit", cause, autopsy=autopsy)
            given = {"task": "shop.charge", "queue": "shop", "on_crash": "hold", "payload": payload}
            job = start(self._store, self._workers[1], **given)
            self._pass(3.0)
            settle(self._store, job, lost)
            self._pass(60.0)

    def _order(self) -> str:
        flow = start_flow(self._store, self._workers[0], task="shop.order", queue="shop", lease_s=900.0)
        now = self._clock.wall()
        done = {"fence": flow.fence}
        record(
            self._store,
            flow,
            a_step(1, name="reserve", started_at=now, ended_at=now + 8, result='"R-77"', has_undo=True, **done),
            a_step(2, name="charge", started_at=now + 8, ended_at=now + 31, result='"ch_12"', has_undo=True, **done),
            a_step(3, name="print label", started_at=now + 31, ended_at=now + 36, result='"DHL 004"', **done),
            a_step(4, "started", name="ship", started_at=now + 60, repeatable=False, **done),
        )
        self._pass(95.0)
        return flow.id

    def _now(self) -> None:
        for number, (lease_s, task) in enumerate(((30, "media.encode"), (120, "reports.daily"), (30, "mail.welcome"))):
            start(self._store, self._workers[number], task=task, queue=task.partition(".")[0], lease_s=float(lease_s))
            self._pass(3.0)
        for number in range(14):
            add(self._store, task="mail.welcome", queue="mail", payload=json.dumps({"user": 500 + number}))
        self._pass(6.0)


def take(browser: Browser, folder: Path, names: Callable[[str], bool] = lambda _: True) -> list[Path]:
    """Take the pictures whose names are wanted, and return their files."""
    taken = []
    clock = FakeClock(wall=MORNING)
    with App("memory://", clock=clock) as app:
        shop = Shop(app, clock)
        pages = {
            "overview": "/",
            "job": f"/jobs/{shop.job}",
            "review": "/review",
            "zombies": "/zombies",
            "workflow": f"/workflows/{shop.flow}",
            "alerts": "/alerts",
        }
        with Site(app) as site:
            for theme in THEMES:
                tab = browser.new_page(
                    viewport=SIZE,  # type: ignore[arg-type]
                    color_scheme=theme,  # type: ignore[arg-type]
                    locale="en-GB",
                    timezone_id="UTC",
                    reduced_motion="reduce",
                )
                for name, path in pages.items():
                    if names(name):
                        tab.goto(site.url + path)
                        tab.wait_for_function("document.getElementById('clock').textContent.length === 8")
                        taken.append(folder / f"{name}-{theme}.png")
                        tab.screenshot(path=taken[-1])
                tab.close()
    return taken


def main() -> None:
    """Write all pictures, and fail if they are too large for a repository."""
    FOLDER.mkdir(exist_ok=True)
    with launched() as browser:
        taken = take(browser, FOLDER)
    total = sum(path.stat().st_size for path in taken)
    print(f"{len(taken)} pictures in {FOLDER}, {total / 1000:.0f} kB")
    if total > TOTAL_MAX:
        sys.exit(f"they are larger than {TOTAL_MAX / 1000:.0f} kB; take fewer, or smaller ones")


if __name__ == "__main__":
    main()
