"""Findings about settings, from what was observed: leases, time limits, and attempts that were wrongly given up."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from msgspec.structs import replace

from holdfast.alerts.rules import FALSE_MAX
from holdfast.core.durations import duration
from holdfast.core.machine import State
from holdfast.core.policy import BEATS_PER_LEASE
from holdfast.core.records import Filter, Job
from holdfast.core.text import counted, listed
from holdfast.insight.findings import Finding, ok, warning
from holdfast.insight.format import brief
from holdfast.insight.health import BEATING, vanished_ids, worker_state
from holdfast.insight.views import all_jobs, totals
from holdfast.insight.zombies import FoundZombie, Lookback
from holdfast.stores.protocol import Store

SAMPLE = 2000  # the newest jobs that were done
RUNS_LEAST = 20  # of a task, before anything is said about it
LEASE_LONG_S = 300.0
UNEVEN = 10.0  # the longest run is this many times the usual one
LONG_RUN_S = 60.0
CRASHES_MAX = 0.01  # a larger share of jobs that lost a worker is not chance,
CRASHED_LEAST = 4  # unless they are fewer than this
_PAGE = 1000
_NICE = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400)


@dataclass(frozen=True, slots=True)
class Runs:
    """The durations of a task's jobs, from the claim to the end, and the settings of the newest."""

    seconds: list[float]
    newest: Job

    def share(self, part: float) -> float:
        """Return the length that this part of the runs did not exceed."""
        return self.seconds[max(0, math.ceil(part * len(self.seconds)) - 1)]


@dataclass(frozen=True, slots=True)
class Sample:
    """The newest jobs that were done."""

    runs: dict[str, Runs]  # by task
    jobs: int
    crashed: int  # of these, how many had lost a worker on the way


def sample(store: Store) -> Sample:
    """Look at the newest jobs that were done."""
    found: dict[str, list[Job]] = defaultdict(list)
    for job in islice(all_jobs(store, Filter(states=(State.DONE,), limit=_PAGE)), SAMPLE):
        found[job.task].append(replace(job, payload="", result=None))  # which may be large
    runs = {}
    for task, jobs in found.items():
        took = [
            job.ended_at - job.claimed_at for job in jobs if job.ended_at is not None and job.claimed_at is not None
        ]
        if seconds := sorted(each for each in took if each >= 0):  # the clock on the wall may have been set back
            runs[task] = Runs(seconds, jobs[0])
    everyone = [job for jobs in found.values() for job in jobs]
    return Sample(runs, len(everyone), sum(job.zombies > 0 for job in everyone))


def of_settings(store: Store, look: Lookback) -> Iterator[Finding]:
    """Compare leases and limits with what was observed."""
    seen = sample(store)
    found = [*_long_leases(seen.runs), *_missing_limits(seen.runs), *_endless(store, seen.runs), *_late_beats(store)]
    if not found:
        text = f"the newest {counted(seen.jobs, 'run')} of {counted(len(seen.runs), 'task')} were looked at"
        found.append(ok("Leases and limits fit the work", text if seen.jobs else "no job was done yet"))
    yield from found
    yield from _false_ones(look)
    yield from _crashes(seen, look, sum(totals(store).values()))


def _long_leases(runs: Mapping[str, Runs]) -> Iterator[Finding]:
    for task, each in runs.items():
        lease_s = each.newest.lease_s
        if lease_s >= LEASE_LONG_S:
            evidence = f"{task}: lease_s={lease_s:g}, and runs take {duration(each.share(0.95))} (95 of 100)"
            fix = (
                f"after a power cut or a hang of the host its jobs wait {brief(lease_s)}. A lease is renewed while the "
                "work continues, however long: lease_s=30 is enough"
            )
            yield warning("A lease is longer than needed", evidence, fix)


def _missing_limits(runs: Mapping[str, Runs]) -> Iterator[Finding]:
    for task, each in runs.items():
        usual, longest = each.share(0.5), each.seconds[-1]
        if each.newest.timeout_s is not None or len(each.seconds) < RUNS_LEAST:
            continue
        if longest > LONG_RUN_S and longest > UNEVEN * usual:
            evidence = (
                f"{task}: half of the runs take {duration(usual)}, 95 of 100 {duration(each.share(0.95))}, "
                f"the longest took {duration(longest)}, and nothing ends one that hangs"
            )
            yield warning("A time limit is missing", evidence, f"declare timeout_s={nice(2 * longest):g} for the task")


def _endless(store: Store, runs: Mapping[str, Runs]) -> Iterator[Finding]:
    """Find jobs that run far longer than their task ever did, with no limit to end them."""
    now = store.now().wall
    for job in store.find(Filter(states=(State.RUNNING,), limit=_PAGE)):
        known = runs.get(job.task)
        if job.claimed_at is None or job.timeout_s is not None or known is None or len(known.seconds) < RUNS_LEAST:
            continue
        took = now - job.claimed_at
        if took > LONG_RUN_S and took > UNEVEN * known.seconds[-1]:
            before = duration(known.seconds[-1])
            evidence = f"{job.task}: {job.id} has run for {duration(took)}; the longest before took {before}"
            fix = f"look: holdfast jobs show {job.id}; stop it: holdfast jobs cancel {job.id}; then declare timeout_s"
            yield warning("A job seems to hang", evidence, fix)
            return


def _late_beats(store: Store) -> Iterator[Finding]:
    now, vanished = store.now().wall, vanished_ids(store)
    for worker in store.workers():
        if not worker.running or worker_state(worker, store.now(), vanished) not in BEATING:
            continue
        jobs = store.find(Filter(states=(State.RUNNING,), worker=worker.id, limit=_PAGE))
        shortest = min((job.lease_s for job in jobs), default=math.inf)
        silent = now - max([worker.beat_at, *(job.claimed_at or 0.0 for job in jobs)])
        if silent > shortest * 2 / BEATS_PER_LEASE:
            evidence = f"worker {worker.name} gave no sign for {duration(silent)}; its shortest lease is {shortest:g} s"
            fix = f"fewer slots on that host, isolate=True for code that blocks, or lease_s={nice(3 * silent):g}"
            yield warning("Heartbeats are late", evidence, fix)


def _false_ones(look: Lookback) -> Iterator[Finding]:
    """Say how many attempts were given up that went on; propose a lease that would have spared them."""
    if not look.found:
        return
    number = f"{len(look.false)} of {counted(len(look.found), 'zombie')} in a day reported later"
    if look.false_rate <= FALSE_MAX:
        yield ok("Workers that were declared dead were dead", number)
        return
    worst: dict[str, FoundZombie] = {}
    for each in sorted(look.false, key=lambda each: each.silent_s or 0.0):
        worst[each.task] = each
    advice = []
    for task, each in worst.items():
        victim = look.victims[each.job_id]
        if victim.task is None:
            continue
        wanted = max(1.5 * (each.silent_s or 0), 1.5 * victim.lease_s, BEATS_PER_LEASE * victim.beat_s)
        advice.append(f"lease_s={nice(wanted):g} for {task} (now {victim.lease_s:g})")
    fix = (
        f"{listed(advice, 3)}; or give the workers more processor: they were too slow to beat"
        if advice
        else "see above"
    )
    yield warning("Living workers are declared dead", f"{number}; more than {FALSE_MAX:.0%} is too many", fix)


def _crashes(seen: Sample, look: Lookback, jobs_kept: int) -> Iterator[Finding]:
    """Say how often workers die under jobs, and which jobs that happens to again and again."""
    if look.repeats:
        often = listed([f"{victim.id} ({victim.task}, {victim.zombies} times)" for victim in look.repeats], 3)
        fix = f"find out what kills it: holdfast jobs show {look.repeats[0].id}"
        yield warning("Jobs keep losing their worker", f"over their life: {often}", fix)
    yield from _groups(look)
    lost = f"{counted(len(look.found), 'attempt')} in {brief(look.until - look.since)}"
    shares = {
        f"the newest {seen.jobs} done jobs": (seen.crashed, seen.jobs),
        f"all {jobs_kept} jobs": (len(look.victims), jobs_kept),
    }
    whole, (lossy, jobs) = max(shares.items(), key=lambda share: share[1][0] / max(1, share[1][1]))
    if lossy > CRASHES_MAX * jobs and lossy >= CRASHED_LEAST:
        evidence = f"{lost}; {lossy} of {whole} ({lossy / jobs:.0%}) had lost a worker"
        yield warning("Workers die often", evidence, "see under which tasks and how: holdfast zombies")
    else:
        yield ok("Workers die rarely", f"{lost} lost {'its' if len(look.found) == 1 else 'their'} worker")


def _groups(look: Lookback) -> Iterator[Finding]:
    """Name the calls that crash under one id after the other."""
    if not look.groups:
        return
    calls = [f"{len(each.victims)} jobs of {each.call.task} with arguments #{each.call.digest}" for each in look.groups]
    last_seen = duration(look.until - max(each.last_seen for each in look.groups))
    evidence = f"{listed(calls, 3)}; last seen {last_seen} ago"
    example = look.groups[0].victims[0].id
    fix = f"see what kills them: holdfast jobs show {example}; repair the task; hold_after=3 holds new ones"
    yield warning("The same call crashes under new ids", evidence, fix)


def nice(seconds: float) -> float:
    """Round a length of time up to one that people would choose."""
    return next((each for each in _NICE if each >= seconds), float(round(seconds)))
