"""Ten thousand schedules that are due in one minute: schedules.py URL [SCHEDULES].

One scheduler, as in a worker, fires them on an empty store: all at one instant, then spread over a minute by jitter,
then after an hour that nobody made up for. It prints the seconds from the look to the last stored job, and what a look
costs while nothing is due. The clock of the store is a fake one that jumps to the instant; the work is real.

Exit code 1 if a job is missing, is there twice, or came more than 5 s after its schedules were due. URL: an empty
store, `sqlite:////tmp/bench.db` or `postgresql://…`.
"""

import argparse
import sys
import time

from holdfast import All, App
from holdfast.clock import SystemClock
from holdfast.core.schedule import Missed
from holdfast.testing import FakeClock
from holdfast.upkeep.scheduler import Scheduler, schedule_of

AT_ONCE = 1000
WITHIN_S = 5.0


def scene(app: App, clock: FakeClock, what: str, many: int, missed: Missed, jitter_s: float, away_s: float) -> bool:
    """Make schedules of every five minutes, let time pass, and fire what is due; say whether it came in time."""
    report = app.tasks["report"]
    made = [
        schedule_of(
            app, f"{what}-{number}", "*/5 * * * *", report, [number], {}, tz="UTC", missed=missed, jitter_s=jitter_s
        )
        for number in range(many)
    ]
    began = time.monotonic()
    for start in range(0, many, AT_ONCE):
        app.store.schedule(made[start : start + AT_ONCE])
    print(f"{what}: {many} schedules made in {time.monotonic() - began:.2f} s", flush=True)
    scheduler = Scheduler(app, name="bench")
    scheduler.look()
    began = time.monotonic()
    for _ in range(5):
        scheduler.look()
    idle_s = (time.monotonic() - began) / 5
    due = sum(1 if missed == "last" else int(away_s // 300) for _ in made)
    stored = jobs_in(app)
    clock.advance(away_s)
    began = time.monotonic()
    fired = 0
    while (now := scheduler.look()[0]) or not fired:
        fired += now
    took_s = time.monotonic() - began
    print(
        f"{what}: {fired} instants fired in {took_s:.2f} s; a look with nothing due {idle_s * 1000:.0f} ms", flush=True
    )
    scheduler.resign()
    for each in made:
        app.store.forget_schedule(each.key)
    if (fired, jobs_in(app) - stored) != (due, due):
        print(f"{what}: {due} were due, {fired} were fired, {jobs_in(app) - stored} jobs came", flush=True)
        return False
    return took_s <= WITHIN_S


def jobs_in(app: App) -> int:
    return sum(sum(states.values()) for states in app.store.counts().values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("schedules", nargs="?", type=int, default=10_000)
    asked = parser.parse_args()
    clock = FakeClock(wall=SystemClock().wall() // 300 * 300 + 1, boot_id=SystemClock().boot_id)
    with App(asked.url, clock=clock) as app:

        @app.task(name="report")
        def report(tenant: int) -> None: ...

        shown = [
            scene(app, clock, "due at once", asked.schedules, "last", 0.0, 300),
            scene(app, clock, "with jitter", asked.schedules, "last", 60.0, 300),
            scene(app, clock, "an hour missed", asked.schedules // 10, All(12), 0.0, 3600),
        ]
    if not all(shown):
        sys.exit(f"not shown: every schedule once, within {WITHIN_S:g} s")


if __name__ == "__main__":
    main()
