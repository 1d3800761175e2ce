"""A look back at the zombies: how many, of which tasks, how they were found and how fast, and what became of them.

All of it is in the journal. A zombie whose attempt reported after all was none: a late report that was refused is the
sign of a false positive, and their share says whether leases are too short for the work.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Literal

from holdfast.alerts.rules import FALSE_MAX, Line
from holdfast.core.autopsy import number_in, silence_of
from holdfast.core.crash_fingerprint import Fingerprint, call_of, is_guilty
from holdfast.core.durations import iso
from holdfast.core.figures import LostCount, LostLine
from holdfast.core.machine import Transition
from holdfast.core.records import shown_state
from holdfast.insight.explain import reason
from holdfast.insight.storms import storm_view, storms
from holdfast.stores.protocol import Store, rows_of

REPEATS_LEAST = 2  # a job that was a zombie this often perhaps kills its workers; by default a third time ends it
GROUP_LEAST = 3  # this many jobs of the same call that crashed, each by a death of its own, are not a coincidence
DECISIONS = (Transition.RETRY, Transition.HOLD, Transition.BURY, Transition.UNDO, Transition.CANCEL)
_REPEAT_FIELDS = ("id", "task", "queue", "zombies", "state", "error")
SUSPECTS_MAX = 1_000  # jobs whose errors and calls are read: the newest
_JOBS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundZombie(Line):
    """A zombie, with what its autopsy says."""

    detector: str
    overdue_s: float | None  # from the end of its lease; only if that is how it was found
    step: str | None  # of a workflow: the one that it was in, where that is known


@dataclass(frozen=True, slots=True)
class LostJob:
    """The current state of a job that was a zombie."""

    id: str
    task: str | None = None
    queue: str | None = None
    state: str = "deleted"
    zombies: int = 0
    error: str | None = None
    lease_s: float = 0.0
    beat_s: float = 0.0
    call: Fingerprint | None = None  # only if its crashes count against that


@dataclass(frozen=True, slots=True)
class ZombieGroup:
    """Jobs of the same call that crashed, the newest crash first."""

    call: Fingerprint
    victims: list[LostJob]
    last_seen: float


@dataclass(frozen=True, slots=True)
class Lookback:
    """The zombies since an instant: the newest with their jobs, whether these reported after all, and counts of all."""

    since: float
    until: float
    found: list[FoundZombie]  # the newest `LINES_MAX`
    victims: Mapping[str, LostJob]
    late: set[tuple[str, int]]  # (job, fence)
    total: int = 0  # of the whole time; more than were found where there are very many
    total_false: int = 0
    counts: Sequence[LostCount] = ()  # of the whole time

    @property
    def is_whole(self) -> bool:
        """Say whether every zombie of that time was found."""
        return self.total <= len(self.found)

    @property
    def false(self) -> list[FoundZombie]:
        """Return those that were not zombies: their attempts went on and reported."""
        return [each for each in self.found if (each.job_id, each.fence) in self.late]

    @property
    def false_rate(self) -> float:
        return self.total_false / self.total if self.total else 0.0

    @property
    def storms(self) -> list[list[Line]]:
        """Return the times in which very many lost their worker, oldest first."""
        return list(storms(self.found))

    @property
    def repeats(self) -> list[LostJob]:
        """Return the jobs that were zombies more than once over their life, the worst first."""
        often = [victim for victim in self.victims.values() if victim.zombies >= REPEATS_LEAST]
        return sorted(often, key=lambda victim: -victim.zombies)

    @property
    def groups(self) -> list[ZombieGroup]:
        """Return the calls that crash under one id after the other, the worst first."""
        crashes = [each for each in self.found if (each.job_id, each.fence) not in self.late]
        last_seen: dict[str, float] = {}
        deaths: dict[str, set[str]] = defaultdict(set)
        for each in sorted(crashes, key=lambda each: each.at):
            last_seen[each.job_id] = each.at
            deaths[each.job_id].add(each.death)
        calls: dict[Fingerprint, list[LostJob]] = defaultdict(list)
        for job_id in sorted(last_seen, key=lambda each: -last_seen[each]):
            if (call := self.victims[job_id].call) is not None:
                calls[call].append(self.victims[job_id])
        groups = [
            ZombieGroup(call, jobs, last_seen[jobs[0].id])
            for call, jobs in calls.items()
            if min(len(jobs), len(set().union(*(deaths[job.id] for job in jobs)))) >= GROUP_LEAST
        ]
        return sorted(groups, key=lambda group: -len(group.victims))


def look_back(store: Store, since_s: float) -> Lookback:
    """Collect the zombies of the last `since_s` seconds."""
    now = store.now()
    since = now.wall - since_s
    lost = store.figures.lost(since)
    victims = {line.job_id: _victim(line, now.wall) for line in lost.lines}
    _look_at_suspects(store, lost.lines, victims)
    found = [_found(line, victims[line.job_id]) for line in reversed(lost.lines)]  # the newest first
    late = {(line.job_id, line.fence) for line in lost.lines if line.is_late}
    return Lookback(since, now.wall, found, victims, late, lost.total, lost.late, lost.counts)


def _victim(line: LostLine, now: float) -> LostJob:
    if line.task is None:
        return LostJob(line.job_id)
    state = shown_state(line.state, line.run_at, line.failures + line.crashes, now)
    return LostJob(*(line.job_id, line.task, line.queue, state, line.zombies), lease_s=line.lease_s, beat_s=line.beat_s)


def _look_at_suspects(store: Store, lines: Sequence[LostLine], victims: dict[str, LostJob]) -> None:
    """Read the jobs that may be to blame: their errors, and their calls. Most jobs are lost once, by chance."""
    often = {line.job_id for line in lines if line.zombies >= REPEATS_LEAST or is_guilty(line)}
    for job in rows_of(store, list(often)[-SUSPECTS_MAX:], _JOBS):
        known = victims[job.id]
        error = reason(job) if job.error else None
        victims[job.id] = replace(known, error=error, call=call_of(job) if is_guilty(job) else None)


def _found(line: LostLine, victim: LostJob) -> FoundZombie:
    detail: dict[str, Any] = line.detail if isinstance(line.detail, dict) else {}
    detector = str(detail.get("detector", "unknown"))
    return FoundZombie(
        seq=line.seq,
        at=line.at,
        kind="zombie",
        job_id=line.job_id,
        fence=line.fence,
        task=victim.task or "(deleted)",
        death=line.job_id if detail.get("isolated") else line.worker or line.job_id,
        detector=detector,
        decision=str(detail.get("decision", "unknown")),
        silent_s=silence_of(line.at, detail),
        overdue_s=number_in(detail.get("seconds_overdue")) if detector == "expired" else None,
        worker_id=line.worker or "",
        worker=str(detail.get("worker") or line.worker),
        step=detail.get("step"),
    )


# ------------------------------------------------------------------------------------------------ the view


def zombies_view(look: Lookback) -> dict[str, Any]:
    """Show the look back as `holdfast zombies` does."""
    return {
        "since": iso(look.since),
        "until": iso(look.until),
        "zombies": look.total,
        "looked_at": len(look.found),
        "jobs": len(look.victims),
        "tasks": _by_task(look),
        "detectors": _by_detector(look),
        "decisions": _decisions(_counted(look, "decision")),
        "now": _states(look.victims.values()),
        "storms": [storm_view(storm) for storm in look.storms],
        "repeat_offenders": [{name: getattr(victim, name) for name in _REPEAT_FIELDS} for victim in look.repeats],
        "groups": [
            {
                "task": group.call.task,
                "arguments": group.call.digest,
                "jobs": len(group.victims),
                "last_seen": iso(group.last_seen),
                "example": group.victims[0].id,
                "now": _states(group.victims),
            }
            for group in look.groups
        ],
        "false_positives": {
            "late_reports": look.total_false,
            "rate": round(look.false_rate, 4),
            "rate_max": FALSE_MAX,
            "too_many": look.false_rate > FALSE_MAX,
        },
    }


def lost_views(look: Lookback, detector: str | None = None, limit: int = 1_000) -> list[dict[str, Any]]:
    """Show each lost attempt, the newest first; with `detector` only those that were found by it."""
    found = [each for each in look.found if detector in (None, each.detector)][:limit]
    return [_lost_view(each, look.victims[each.job_id], (each.job_id, each.fence) in look.late) for each in found]


def _lost_view(zombie: FoundZombie, victim: LostJob, is_late: bool) -> dict[str, Any]:
    return {
        "at": iso(zombie.at),
        "id": zombie.job_id,
        "task": victim.task,
        "worker": zombie.worker or None,
        "detector": zombie.detector,
        "silent_s": None if zombie.silent_s is None else round(zombie.silent_s, 3),
        "decision": zombie.decision,
        "step": zombie.step,
        "now": victim.state,
        "reported_later": is_late,
    }


def _counted(look: Lookback, what: Literal["detector", "decision"]) -> Counter[str]:
    """Count all zombies: those that were found, or by the counts of the store where there are too many."""
    if look.is_whole:
        return Counter(getattr(each, what) for each in look.found)
    found: Counter[str] = Counter()
    for each in look.counts:
        if each.kind == "zombie":
            found[getattr(each, what) or "unknown"] += each.attempts
    return found


def _by_task(look: Lookback) -> list[dict[str, Any]]:
    groups: dict[tuple[str | None, str | None], list[FoundZombie]] = defaultdict(list)
    for each in look.found:
        victim = look.victims[each.job_id]
        groups[victim.task, victim.queue].append(each)
    number = Counter({of: len(found) for of, found in groups.items()})
    if not look.is_whole:
        number = Counter(dict.fromkeys(groups, 0))
        for count in look.counts:
            if count.kind == "zombie":
                number[count.task or None, count.queue or None] += count.attempts
    most_first = sorted(number, key=lambda of: (-number[of], str(of)))
    return [_of_task(look, of, number[of], groups[of]) for of in most_first]


def _of_task(
    look: Lookback, of: tuple[str | None, str | None], zombies: int, found: Sequence[FoundZombie]
) -> dict[str, Any]:
    jobs = {each.job_id for each in found}
    return {
        "task": of[0],
        "queue": of[1],
        "zombies": zombies,
        "jobs": len(jobs),
        "detectors": dict(Counter(each.detector for each in found).most_common()),
        "steps": dict(Counter(each.step for each in found if each.step is not None).most_common()),
        "decisions": _decisions(Counter(each.decision for each in found)),
        "now": _states(look.victims[job_id] for job_id in jobs),
        "late_reports": sum((each.job_id, each.fence) in look.late for each in found),
    }


def _by_detector(look: Lookback) -> list[dict[str, Any]]:
    return [
        {
            "detector": detector,
            "zombies": number,
            "looked_at": sum(each.detector == detector for each in look.found),
            "silent_s": _spread(each.silent_s for each in look.found if each.detector == detector),
            "overdue_s": _spread(each.overdue_s for each in look.found if each.detector == detector),
        }
        for detector, number in _counted(look, "detector").most_common()
    ]


def _spread(numbers: Iterable[float | None]) -> dict[str, float] | None:
    known = [number for number in numbers if number is not None]
    return {"median": round(median(known), 3), "worst": round(max(known), 3)} if known else None


def _decisions(number: Counter[str]) -> dict[str, int]:
    known = [move.value for move in DECISIONS]
    return {decision: number[decision] for decision in [*known, *(word for word in number if word not in known)]}


def _states(victims: Iterable[LostJob]) -> dict[str, int]:
    return dict(Counter(victim.state for victim in victims).most_common())
