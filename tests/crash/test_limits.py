"""Limits and rates hold while eight processes claim and some are killed or stopped; no place leaks.

HOLDFAST_KILLS=500 kills that many processes in each run, and makes the other tests longer too.
"""

import itertools
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.core.limits import Setting, setting
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.stores import open_store
from holdfast.stores.protocol import Store
from holdfast.upkeep.reaper import Reaper
from tests.crash.limits_claimer import KEPT_S
from tests.factory import add_many, enrol, make_job

CLAIMERS = 8
LONG = "HOLDFAST_KILLS" in os.environ  # the long form
CHANGES, RATED, STOPS = (300, 3000, 60) if LONG else (18, 200, 8)
KILLS = int(os.environ.get("HOLDFAST_KILLS", "16"))
BACKLOG = 120  # jobs that wait for a place until the last one was killed, and all places are taken again after it
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param != "sqlite":
        return str(request.getfixturevalue(request.param))
    return f"sqlite:///{tmp_path / 'jobs.db'}?synchronous=normal"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    store = open_store(url)
    store.migrate()
    yield store
    store.close()


class Claimers:
    """Claimer processes. One that is killed is started again."""

    def __init__(self, url: str, folder: Path, batch: int, many: int = CLAIMERS, kept_s: float = KEPT_S) -> None:
        self._command = [sys.executable, "-m", "tests.crash.limits_claimer", url]
        self._batch, self._kept_s = str(batch), str(kept_s)
        self._report = folder / "report"
        self.died: Counter[str] = Counter()  # what the killed ones had reported last: `settled` dies in its next claim
        self._processes = [self._start(number) for number in range(many)]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [*self._command, f"c{number}", self._batch, f"{self._report}.{number}", self._kept_s]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)

    def send(self, number: int, what: signal.Signals) -> None:
        self._processes[number].send_signal(what)

    def lines(self, number: int, kind: str) -> list[list[str]]:
        """Return what one has reported of a kind so far, as words; half a line is left out."""
        path = Path(f"{self._report}.{number}")
        whole = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        return [line.split()[1:] for line in whole if line.startswith(f"{kind} ")]

    def kill(self, number: int) -> None:
        self._processes[number].kill()
        self._processes[number].communicate()
        path = Path(f"{self._report}.{number}")
        lines = path.read_text().rpartition("\n")[0].splitlines() if path.exists() else []
        self.died[lines[-1].split()[0] if lines else "settled"] += 1
        self._processes[number] = self._start(number)

    def end(self) -> list[tuple[int, int, int]]:
        """Kill all; return what they saw: running in the queue, running in the group, claimed at once."""
        for process in self._processes:
            process.send_signal(signal.SIGKILL)
        for process in self._processes:
            process.communicate()
        seen = []
        for number in range(len(self._processes)):
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
    jobs, lots = 0, random.Random(7)
    groups = [f"g{number}" for number in range(21)] if group_most is not None else [None]  # both limits are reached
    store.limit("q", setting(limit=most, group_limit=group_most))
    claimers = Claimers(url, tmp_path, batch)
    clock = SystemClock()
    reaper, killed, deadline = Reaper(store, clock), 0, clock.lease() + 240 + KILLS
    next_kill, is_full = clock.lease() + 0.3, False
    while clock.lease() < deadline:
        counts = store.counts().get("q", {})
        if (killed < KILLS or not is_full) and counts.get(State.READY, 0) < BACKLOG:
            new = [
                make_job(queue="q", lease_s=1.5, group=each, crashes_max=99) for each in groups * (210 // len(groups))
            ]
            store.add(new)
            jobs += len(new)
        elif counts.get(State.DONE, 0) == jobs:
            break
        reaper.once()
        taken = store.places("q").queue
        assert taken <= most
        is_full = is_full or (killed == KILLS and taken == most)  # a place that had leaked would be missing
        if killed < KILLS and clock.lease() >= next_kill:
            claimers.kill(lots.randrange(CLAIMERS))
            killed += 1
            next_kill = clock.lease() + 0.2
        time.sleep(0.02)
    seen = claimers.end()
    assert (killed, is_full) == (KILLS, True)
    assert store.counts()["q"] == {State.DONE: jobs}
    assert store.places("q").queue == 0
    assert max(queue for queue, _, _ in seen) == most
    assert group_most is None or max(group for _, group, _ in seen) == group_most
    assert not LONG or len(claimers.died) > 1  # in a claim, after it, in front of the settle
    print(f"limit {most}, group limit {group_most}: {len(seen)} looks, {killed} kills, {jobs} jobs, none above")
    print(f"what the killed claimers had reported last: {dict(claimers.died)}")


@pytest.fixture
def running(url: str, store: Store, tmp_path: Path) -> Iterator[list[Claimers]]:
    """What a test has started; killed at its end."""
    started: list[Claimers] = []
    yield started
    for each in started:
        each.end()


@pytest.mark.slow  # real processes
def test_a_limit_that_is_changed_under_load_is_in_force_when_the_call_returns(
    store: Store, url: str, tmp_path: Path, running: list[Claimers]
) -> None:
    """From the return on, the number of running attempts only falls until it is within the limit, and stays there."""
    add_many(store, [make_job(queue="q", group=f"g{n % 20}") for n in range(20_000)])
    running.append(Claimers(url, tmp_path, 5))
    clock, lots = SystemClock(), random.Random(11)
    changes = [setting(limit=10), Setting(), setting(limit=0), setting(group_limit=1), Setting(), setting(limit=7)]
    for change in itertools.islice(itertools.cycle(changes), CHANGES):
        store.limit("q", change)
        most = change.limit if isinstance(change.limit, int) else None
        before, look_until = store.places("q", "g3"), clock.lease() + 0.2 + lots.random() / 5
        while clock.lease() < look_until and store.counts()["q"].get(State.READY):
            places = store.places("q", "g3")
            assert most is None or places.queue <= max(most, before.queue), (change, before, places)
            assert change.group_limit != 1 or places.group <= max(1, before.group)
            before = places
    assert not [line for number in range(CLAIMERS) for line in running[0].lines(number, "error")]


@pytest.mark.slow  # a rate takes its time
@pytest.mark.parametrize(("rate", "burst"), [("50/1s", 1), ("200/1s", 7)])
def test_eight_claimers_together_keep_to_a_rate(
    store: Store, url: str, tmp_path: Path, running: list[Claimers], rate: str, burst: int
) -> None:
    store.limit("q", setting(rate=rate, burst=burst))
    store.add([make_job(queue="q") for _ in range(RATED)])
    clock = SystemClock()
    running.append(Claimers(url, tmp_path, 3))
    deadline = clock.lease() + 120
    while store.counts()["q"].get(State.DONE, 0) < RATED and clock.lease() < deadline:
        time.sleep(0.1)
    rows = store.find(Filter(queue="q", limit=RATED))
    starts = sorted(row.claimed_at or 0.0 for row in rows)
    assert {(row.state, row.attempt) for row in rows} == {(State.DONE, 1)}
    step = 1 / int(rate.partition("/")[0])
    for first, begin in enumerate(starts):
        for number, end in enumerate(starts[first:], 1):
            # Wall time as a float is a quarter of a microsecond coarse.
            assert number <= math.floor((end - begin) / step + 1e-3) + burst
    took_s = starts[-1] - starts[0]
    print(f"rate {rate}, burst {burst}: {RATED} starts in {took_s:.2f} s, {RATED * step / took_s:.0%} of the rate")


@pytest.mark.slow  # a lease ends
def test_a_stopped_claimer_gives_its_place_up_once_and_is_refused_when_it_goes_on(
    store: Store, url: str, tmp_path: Path, running: list[Claimers]
) -> None:
    store.limit("q", setting(limit=1))
    add_many(store, [make_job(queue="q", lease_s=1.5) for _ in range(3000)])
    running.append(Claimers(url, tmp_path, 1, many=2, kept_s=0.2))
    claimers, clock = running[0], SystemClock()
    reaper = Reaper(store, clock)
    frozen, worst = 0, float("-inf")
    for turn in range(4 * STOPS):
        if frozen == STOPS:
            break
        number = turn % 2
        claimers.send(number, signal.SIGSTOP)
        time.sleep(0.1)  # a statement that it has sent ends
        held = claimers.lines(number, "holds")[-1:]
        mine = held[0] if held else []
        row = store.get(mine[0]) if mine else None
        if row is None or (row.state, str(row.fence)) != (State.RUNNING, mine[1]):
            claimers.send(number, signal.SIGCONT)
            time.sleep(0.03)
            continue
        stopped_at = clock.lease()
        frozen += 1
        had = len(claimers.lines(1 - number, "holds"))
        lease_ends_at = stopped_at + 1.5  # at the latest
        while len(claimers.lines(1 - number, "holds")) == had and clock.lease() < stopped_at + 60:
            reaper.once()
            assert store.places("q").queue <= 1
            time.sleep(0.02)
        assert len(claimers.lines(1 - number, "holds")) > had
        worst = max(worst, clock.lease() - lease_ends_at)
        claimers.send(number, signal.SIGCONT)
        until_settled(claimers, number, mine, reaper, store)
        assert [line[2] for line in claimers.lines(number, "settled") if line[:2] == mine] == ["refused"]
    assert frozen
    print(f"limit 1: {frozen} claimers stopped with the place, every one refused, never two at once")
    print(f"the other one started {worst:.2f} s after the end of the lease, at most")


def until_settled(claimers: Claimers, number: int, mine: list[str], reaper: Reaper, store: Store) -> None:
    clock = SystemClock()
    give_up_at = clock.lease() + 60
    while mine not in [line[:2] for line in claimers.lines(number, "settled")]:
        assert clock.lease() < give_up_at
        reaper.once()
        assert store.places("q").queue <= 1
        time.sleep(0.02)


@pytest.mark.slow  # real processes
def test_a_claimer_that_is_stopped_in_a_large_claim_does_not_keep_the_queue_locked(
    postgres: str, tmp_path: Path
) -> None:
    """On SQLite a process that is stopped inside its write holds the file, which is documented."""
    store = open_store(postgres)
    store.migrate()
    store.limit("q", setting(limit=100_000))
    payload = '{"a":["' + "x" * 65_536 + '"]}'
    lots, clock, worst = random.Random(5), SystemClock(), 0.0
    claimers = Claimers(postgres, tmp_path, 500, many=1)
    worker = enrol(store, boot_id=clock.boot_id)
    for turn in range(STOPS):
        store.add([make_job(queue="q", payload=payload) for _ in range(500)])
        time.sleep(lots.random() * 0.15)
        claimers.send(0, signal.SIGSTOP)
        store.add([make_job(queue="q") for _ in range(5)])
        began = clock.lease()
        while not store.claim(worker, f"beside-{turn}", ["q"], ["t"], 1):
            assert clock.lease() < began + 60, "the queue stays locked"
        worst = max(worst, clock.lease() - began)
        claimers.send(0, signal.SIGCONT)
    claimers.end()
    store.close()
    print(f"a claim beside a stopped one of 500 jobs of 64 kB took {worst:.3f} s at most, of {STOPS}")
