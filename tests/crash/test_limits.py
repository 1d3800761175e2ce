"""Limits hold while eight processes claim and some of them are killed; no place leaks, and no ghost keeps one.

HOLDFAST_KILLS=500 kills that many processes in each run.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.core.limits import setting
from holdfast.core.machine import State
from holdfast.reaper import Reaper
from holdfast.stores import open_store
from holdfast.stores.protocol import Store
from tests.factory import make_job

CLAIMERS = 8
KILLS = int(os.environ.get("HOLDFAST_KILLS", "16"))
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres"))
    return f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    store.migrate()
    yield store
    store.close()


class Claimers:
    """Eight claimer processes. One that is killed is started again."""

    def __init__(self, url: str, folder: Path, batch: int) -> None:
        self._command = [sys.executable, "-m", "tests.crash.limits_claimer", url]
        self._batch = str(batch)
        self._report = folder / "report"
        self._processes = [self._start(number) for number in range(CLAIMERS)]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [*self._command, f"c{number}", self._batch, f"{self._report}.{number}"]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].communicate()
        self._processes[number] = self._start(number)

    def end(self) -> list[tuple[int, int, int]]:
        """Kill all; return what they saw: running in the queue, running in the group, claimed at once."""
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.communicate()
        seen = []
        for number in range(CLAIMERS):
            path = Path(f"{self._report}.{number}")
            lines = path.read_text().splitlines() if path.exists() else []
            assert not [line for line in lines if line.startswith("error")]
            # A process that is killed may leave half a line.
            words = [line.split() for line in lines if line.startswith("saw ")]
            seen += [(int(each[1]), int(each[2]), int(each[3])) for each in words if len(each) == 4]
        return seen


@pytest.mark.slow  # real processes, killed and started again
@pytest.mark.parametrize(("most", "group_most", "batch"), [(10, None, 3), (1, None, 1), (40, 2, 500)])
def test_a_limit_is_exact_while_claimers_are_killed(
    store: Store, url: str, tmp_path: Path, most: int, group_most: int | None, batch: int
) -> None:
    jobs, lots = 1500, random.Random(7)
    groups = [f"g{number}" for number in range(50)] if group_most is not None else [None]
    store.add([make_job(queue="q", lease_s=1.5, group=groups[n % len(groups)], crashes_max=99) for n in range(jobs)])
    store.limit("q", setting(limit=most, group_limit=group_most))
    claimers = Claimers(url, tmp_path, batch)
    clock = SystemClock()
    reaper, killed, deadline = Reaper(store, clock), 0, clock.lease() + 240
    next_kill = clock.lease() + 0.3
    while store.counts()["q"].get(State.DONE, 0) < jobs and clock.lease() < deadline:
        reaper.once()
        assert store.places("q").queue <= most
        if killed < KILLS and clock.lease() >= next_kill:
            claimers.kill(lots.randrange(CLAIMERS))
            killed += 1
            next_kill = clock.lease() + 0.2
        time.sleep(0.02)
    seen = claimers.end()
    assert store.counts()["q"] == {State.DONE: jobs}
    assert store.places("q").queue == 0
    assert max(queue for queue, _, _ in seen) <= most
    assert group_most is None or max(group for _, group, _ in seen) <= group_most
    print(f"limit {most}, group limit {group_most}: {len(seen)} looks, {killed} kills, none above")
