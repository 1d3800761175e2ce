"""Find what is worth an alert: a pure reading of the journal, and of conditions that stand.

    lines of the journal ──▶ findings (over a window, now) ──▶ incidents (new, more of it, over) ──▶ messages

The journal says what has happened, and the rows what is still so: of the jobs that were held or have died, only those
that still are so are sent. A condition that stands, such as a backlog, has a line for as long as it does; see
`standing.py`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypedDict, get_args

import msgspec

from holdfast.alerts.messages import JOBS_MAX, Message, span
from holdfast.core.durations import duration, iso
from holdfast.core.text import counted, listed
from holdfast.errors import UsageError

AlertKind = Literal[
    "held", "dead", "crashes", "zombie_rate", "false_positives", "late_schedules",
    "backlog", "no_worker", "silent_worker", "unknown_task", "recovery_rate", "slow_detection", "error_rate",
]  # fmt: skip
KINDS: tuple[AlertKind, ...] = get_args(AlertKind)
OF_QUEUES = frozenset[AlertKind]({"backlog", "no_worker"})
# These are read from the state of the store, and not from the journal.
STANDING = frozenset[AlertKind](
    {"late_schedules", "backlog", "no_worker", "silent_worker", "unknown_task", "error_rate"}
)
KINDS_OF_JOURNAL = frozenset(KINDS) - STANDING
# The kind of an incident, and its task or, if it is one of `OF_QUEUES`, its queue; "" for what is the fleet's.
Key = tuple[AlertKind, str]

FALSE_MAX = 0.05  # a larger share of false positives wants longer leases
LINES_MAX = 20_000  # of a worse storm only the newest lines are counted
FALSE_WINDOWS = 6  # a late report may come long after its zombie was found, so that share is taken over more windows
LOST_LEAST = 10  # of fewer lost attempts no share is taken
ERRORS_LEAST = 20  # of fewer failed attempts neither
WORKERS_NAMED = 3


class ThresholdOptions(TypedDict, total=False):
    """Limits as a caller may give them."""

    crashes: int
    zombies_max: int
    false_max: float
    window_s: float
    again_s: float
    backlog_s: float
    unserved_s: float
    silent_s: float
    recovered_min: float
    detection_s: float
    errors_max: float


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From when on something is worth an alert, and how often. Validated once."""

    crashes: int = 2  # of one job
    zombies_max: int = 20  # in one window: what a single worker with the usual slots loses is not yet too many
    false_max: float = FALSE_MAX
    window_s: float = 600.0
    again_s: float = 300.0  # pause before more of the same is sent
    backlog_s: float = 600.0  # how long a job may be due that a worker would claim
    unserved_s: float = 120.0  # how long a job may be due that no worker would claim: a deploy takes its time
    silent_s: float = 30.0  # how long a worker may be silent, after the beats that it may miss
    recovered_min: float = 0.9  # share of the lost attempts whose jobs go on without a person
    detection_s: float = 60.0  # how long a lost attempt may have been silent when it is found
    errors_max: float = 0.5  # share of the attempts of a task that may fail

    def __post_init__(self) -> None:
        if self.crashes < 1:
            raise UsageError(f"crashes={self.crashes} must be at least 1")
        if self.zombies_max < 0:
            raise UsageError(f"zombies_max={self.zombies_max} must be at least 0")
        if not 0 <= self.false_max < 1:
            raise UsageError(f"false_max={self.false_max} must be from 0 up to 1, such as 0.05")
        if not 1 <= self.window_s <= 86_400:
            raise UsageError(f"window_s={self.window_s} must be between a second and a day")
        for name in ("backlog_s", "unserved_s", "silent_s", "detection_s"):
            if not 0 <= getattr(self, name) <= 365 * 86_400:
                raise UsageError(f"{name}={getattr(self, name)} must be a number of seconds, at most a year")
        if not 0 <= self.recovered_min <= 1:
            raise UsageError(f"recovered_min={self.recovered_min} must be from 0 to 1, such as 0.9")
        if not 0 <= self.errors_max < 1:
            raise UsageError(f"errors_max={self.errors_max} must be from 0 up to 1, such as 0.5")
        if not 0 <= self.again_s <= self.window_s / 2:  # else what came in between could leave the window untold
            raise UsageError(f"again_s={self.again_s} must be at most half of window_s={self.window_s}")

    @property
    def longest_s(self) -> float:
        """Return how far back the findings look."""
        return self.window_s * FALSE_WINDOWS


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The part of a journal event that an alert needs, or what stands. It never has a payload, a result or an argument.

    A condition that stands is not in the journal: its `seq` is negative, the same for as long as it stands, and `at` is
    when it began.
    """

    seq: int
    at: float
    kind: str
    job_id: str
    fence: int
    task: str
    queue: str | None = None
    death: str = ""  # what it shares with the jobs that were lost together with it, and with no other
    worker_id: str = ""
    worker: str = ""  # its name
    host: str = ""
    reason: str = ""
    crashes: int = 0  # of the job, this one included
    decision: str = ""  # of a zombie
    silent_s: float | None = None  # of a zombie: from the last sign of life until it was found
    schedule: str | None = None  # of a schedule that is late: its key,
    instants: int = 0  # and how many of its instants came and were not fired
    amount: int = 0  # of a queue or an unknown task: due jobs that were looked at; of an error rate: failed attempts
    out_of: int = 0  # all attempts of the task, as far as they are known


@dataclass(frozen=True, slots=True)
class Symptom:
    """A condition that holds now, and the lines that show it, oldest first."""

    lines: Sequence[Line]
    text: Callable[[Sequence[Line], int], str]  # of the lines that are new, and of how many jobs there are
    numbers: dict[str, Any]


# ---------------------------------------------------------------------------------------------- findings


def find(
    lines: Sequence[Line], now: float, on: Collection[AlertKind], limits: Thresholds, known: Collection[Key] = ()
) -> dict[Key, Symptom]:
    """Find what is worth an alert in these lines, oldest first. `known`: incidents that are open already."""
    recent = [line for line in lines if now - limits.window_s < line.at <= now]
    found: dict[Key, Symptom] = {}
    for kind in ("held", "dead"):
        if kind in on:
            kinds = ("held", "asked") if kind == "held" else (kind,)
            found |= _by_task(kind, [line for line in recent if line.kind in kinds])
    if "crashes" in on:
        # A last crash is reported as dead or held, if the alert has that condition.
        ended = {(line.job_id, line.fence) for line in recent if line.kind in on}
        crashed = [line for line in recent if line.kind == "zombie" and line.crashes >= limits.crashes]
        found |= _by_task("crashes", [line for line in crashed if (line.job_id, line.fence) not in ended])
    if "zombie_rate" in on:
        found |= _zombie_rate([line for line in recent if line.kind == "zombie"], limits, known)
    if "false_positives" in on:
        found |= _false_positives([line for line in lines if now - limits.longest_s < line.at <= now], limits)
    if "late_schedules" in on:
        # A schedule has a line for as long as it is late.
        found |= _by_task("late_schedules", [line for line in lines if line.kind == "late" and line.at <= now])
    if "recovery_rate" in on:
        found |= _recovery_rate([line for line in lines if now - limits.longest_s < line.at <= now], limits)
    if "slow_detection" in on:
        found |= _slow_detection([line for line in recent if line.kind == "zombie"], limits)
    for kind, rule in _STANDING.items():
        if kind in on:
            found |= rule([line for line in lines if line.kind == kind], now, limits, known)
    return found


def _by_task(kind: AlertKind, lines: Sequence[Line]) -> dict[Key, Symptom]:
    tasks: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        tasks[line.task].append(line)
    return {(kind, task): Symptom(found, partial(_TEXTS[kind], found), _late(found)) for task, found in tasks.items()}


def _late(found: Sequence[Line]) -> dict[str, Any]:
    """Return how many instants each late schedule has missed."""
    schedules = {line.schedule: line.instants for line in found if line.schedule is not None}
    return {"late": len(schedules), "schedules": dict(list(schedules.items())[-JOBS_MAX:])} if schedules else {}


def _late_text(_found: Sequence[Line], lines: Sequence[Line], _jobs: int) -> str:
    last = lines[-1]
    what = f"schedule {last.schedule} ({last.task}) is late: {last.reason}"
    return what if len(lines) == 1 else f"{len(lines)} schedules of {last.task} are late; {what}"


def _held_text(found: Sequence[Line], lines: Sequence[Line], jobs: int) -> str:
    last = lines[-1]
    if jobs == 1 and last.kind == "asked":
        return f"workflow {last.job_id} ({last.task}) asks a person: {last.reason}"
    if jobs == 1:
        return f"job {last.job_id} ({last.task}) is held, and a person must decide: {last.reason}"
    # Those from before the window may have asked something.
    asked = jobs > _jobs(found) or any(line.kind == "asked" for line in found)
    wait = "wait for a person's answer" if asked else "are held, and a person must decide"
    return f"{jobs} jobs of {last.task} {wait}; the last one: {last.reason}"


def _dead_text(_found: Sequence[Line], lines: Sequence[Line], jobs: int) -> str:
    last = lines[-1]
    if jobs == 1:
        return f"job {last.job_id} ({last.task}) is dead: {last.reason}"
    return f"{jobs} jobs of {last.task} are dead; the last one: {last.reason}"


def _crashed_text(_found: Sequence[Line], lines: Sequence[Line], jobs: int) -> str:
    worst = max(lines, key=lambda line: line.crashes)
    what = f"job {worst.job_id} ({worst.task}) has crashed {counted(worst.crashes, 'time')}"
    if jobs > 1:
        what = f"{jobs} jobs of {worst.task} crash again and again; {what}"
    return f"{what}, and is perhaps what kills its workers: {worst.reason}"


_TEXTS = {"held": _held_text, "dead": _dead_text, "crashes": _crashed_text, "late_schedules": _late_text}


def _zombie_rate(zombies: Sequence[Line], limits: Thresholds, known: Collection[Key]) -> dict[Key, Symptom]:
    key: Key = ("zombie_rate", "")
    most = limits.zombies_max // 2 if key in known else limits.zombies_max  # over only when it is clearly over
    if len(zombies) <= most:
        return {}
    concerns, cause = concern(zombies)
    numbers: dict[str, Any] = {
        "zombies": len(zombies),
        "zombies_max": limits.zombies_max,
        "window_s": limits.window_s,
        "jobs": _jobs(zombies),
        "tasks": len({line.task for line in zombies}),
        "workers": len({line.worker_id for line in zombies}),
        "hosts": len({line.host for line in zombies}),
        "concerns": concerns,
    }
    spread = ", ".join(counted(numbers[f"{noun}s"], noun) for noun in ("job", "task", "worker", "host"))
    lost = f"{counted(len(zombies), 'attempt')} lost their worker in {span(limits.window_s)} ({spread})"
    return {key: Symptom(zombies, lambda *_: f"{lost}: {cause}", numbers)}


def concern(zombies: Sequence[Line]) -> tuple[Literal["job", "task", "worker", "fleet"], str]:
    """Tell a single bad job, or a single worker, from a problem of the whole fleet."""
    deaths: dict[str, set[str]] = defaultdict(set)
    for line in zombies:
        deaths[line.death].add(line.job_id)
    there = set.intersection(*deaths.values())  # the jobs that were in every process that died
    if len(there) == 1:
        [job_id] = there
        task = next(line.task for line in zombies if line.job_id == job_id)
        return "job", f"job {job_id} ({task}) was there each time; a single bad job, not the fleet"
    if len(deaths) > 1 and len({line.task for line in zombies}) == 1:
        return "task", f"all of them of {zombies[0].task}; perhaps that task kills its workers"
    if len({line.worker_id for line in zombies}) == 1:
        return "worker", f"all of them of {zombies[0].worker}; a single worker, not the fleet"
    return "fleet", "no single job, task or worker is behind it; look at the hosts, a deploy, memory"


def _false_positives(lines: Sequence[Line], limits: Thresholds) -> dict[Key, Symptom]:
    """Find zombies whose attempts reported later, as `holdfast zombies` counts them."""
    late = {(line.job_id, line.fence): line for line in lines if line.kind == "stale_report"}
    zombies = [line for line in lines if line.kind == "zombie"]
    false = [line for line in zombies if (line.job_id, line.fence) in late]
    if not false or len(false) / len(zombies) <= limits.false_max:
        return {}
    rate = len(false) / len(zombies)
    numbers = {
        "false_positives": len(false),
        "zombies": len(zombies),
        "rate": round(rate, 4),
        "rate_max": limits.false_max,
        "window_s": limits.longest_s,
        "tasks": len({line.task for line in false}),
        "workers": len({line.worker_id for line in false}),
    }
    text = (
        f"{len(false)} of {counted(len(zombies), 'zombie')} ({rate:.0%}) in {span(limits.longest_s)} were false "
        "alarms: the worker reported later and was refused; leases are too short for the work, or hosts are overloaded"
    )
    return {
        ("false_positives", ""): Symptom([late[line.job_id, line.fence] for line in false], lambda *_: text, numbers)
    }


def _recovery_rate(lines: Sequence[Line], limits: Thresholds) -> dict[Key, Symptom]:
    """Find lost attempts whose jobs do not go on by themselves: held, dead, or found by nobody."""
    lost = [line for line in lines if line.kind in ("zombie", "overdue")]
    stuck = [line for line in lost if line.kind == "overdue" or line.decision in ("hold", "bury")]
    rate = 1 - len(stuck) / max(len(lost), 1)
    if len(lost) < LOST_LEAST or rate >= limits.recovered_min:
        return {}
    words = {"hold": "held", "bury": "dead", "": "with a lease that ran out and that nobody has settled"}
    number = Counter(words[line.decision] for line in stuck)
    numbers: dict[str, Any] = {
        "zombies": len(lost),
        "recovered": len(lost) - len(stuck),
        "rate": round(rate, 4),
        "rate_min": limits.recovered_min,
        "window_s": limits.longest_s,
    }
    rest = ", ".join(f"{jobs} {word}" for word, jobs in number.most_common())
    text = (
        f"only {rate:.0%} of {len(lost)} attempts that lost their worker in {span(limits.longest_s)} run again: {rest}"
    )
    return {("recovery_rate", ""): Symptom(stuck, lambda *_: text, numbers)}


def _slow_detection(zombies: Sequence[Line], limits: Thresholds) -> dict[Key, Symptom]:
    late = [line for line in zombies if line.silent_s is not None and line.silent_s > limits.detection_s]
    if not late:
        return {}
    worst = max(late, key=lambda line: line.silent_s or 0.0)
    numbers: dict[str, Any] = {
        "slow": len(late),
        "zombies": len(zombies),
        "worst_s": round(worst.silent_s or 0.0, 1),
        "detection_s": limits.detection_s,
        "window_s": limits.window_s,
    }
    share = f"{len(late)} of {counted(len(zombies), 'lost attempt')} in {span(limits.window_s)}"
    silent = f"had been silent for more than {duration(limits.detection_s)} when it was found"
    where = f"the worst for {duration(worst.silent_s or 0.0)} ({worst.task} on {worst.worker or 'an unknown worker'})"
    text = f"{share} {silent}, {where}; is a reaper alive, and are leases that long?"
    return {("slow_detection", ""): Symptom(late, lambda *_: text, numbers)}


# ----------------------------------------------------------------------------------------- what stands


def _stood(line: Line, now: float, limit_s: float, share: float, key: Key, known: Collection[Key]) -> bool:
    """Say whether it has stood for too long; an open incident is over only below a share of the limit, or when the line
    is no longer there."""
    if key in known:
        return share == 0 or now - line.at > limit_s * share
    return now - line.at > limit_s


def _backlog(lines: Sequence[Line], now: float, limits: Thresholds, known: Collection[Key]) -> dict[Key, Symptom]:
    found: dict[Key, Symptom] = {}
    for line in lines:
        key: Key = ("backlog", line.queue or "")
        if _stood(line, now, limits.backlog_s, 0.5, key, known):
            waits = f"its oldest job has been due for {duration(now - line.at)}"
            text = f"queue {line.queue} is behind: {waits}, and {counted(line.amount, 'job')} or more are due"
            numbers = {"waited_s": round(now - line.at, 1), "backlog_s": limits.backlog_s, "due": line.amount}
            found[key] = Symptom([line], partial(_said, text), numbers)
    return found


def _no_worker(lines: Sequence[Line], now: float, limits: Thresholds, known: Collection[Key]) -> dict[Key, Symptom]:
    found: dict[Key, Symptom] = {}
    for line in lines:
        key: Key = ("no_worker", line.queue or "")
        if _stood(line, now, limits.unserved_s, 0.0, key, known):
            text = f"no worker serves queue {line.queue}, and {counted(line.amount, 'job')} or more are due there"
            numbers = {"unserved_s": limits.unserved_s, "due": line.amount, "since": iso(line.at)}
            found[key] = Symptom([line], partial(_said, text), numbers)
    return found


def _unknown_task(lines: Sequence[Line], now: float, limits: Thresholds, known: Collection[Key]) -> dict[Key, Symptom]:
    tasks: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if _stood(line, now, limits.unserved_s, 0.0, ("unknown_task", line.task), known):
            tasks[line.task].append(line)
    found: dict[Key, Symptom] = {}
    for task, due in tasks.items():
        jobs, queues = sum(line.amount for line in due), [str(line.queue) for line in due]
        where = f"in {'queue' if len(queues) == 1 else 'queues'} {listed(queues, WORKERS_NAMED)}"
        text = f"no living worker has task {task}, and {counted(jobs, 'job')} or more of it are due {where}"
        numbers = {"unserved_s": limits.unserved_s, "due": jobs, "queues": queues[:JOBS_MAX]}
        found["unknown_task", task] = Symptom(due, partial(_said, text), numbers)
    return found


def _silent_worker(lines: Sequence[Line], now: float, limits: Thresholds, known: Collection[Key]) -> dict[Key, Symptom]:
    key: Key = ("silent_worker", "")
    stood = (line for line in lines if _stood(line, now, limits.silent_s, 0.0, key, known))
    silent = sorted(stood, key=lambda line: line.at)
    if not silent:
        return {}
    numbers = {"workers": len(silent), "names": [line.worker for line in silent[-JOBS_MAX:]]}

    def text(fresh: Sequence[Line], _jobs: int) -> str:
        last = fresh[-1]
        what = f"worker {last.worker} on {last.host} is silent: {last.reason}"
        if len(silent) == 1:
            return f"{what}; it hangs, was stopped or has died, and nobody has settled its jobs yet"
        names = listed([line.worker for line in silent], WORKERS_NAMED)
        return f"{len(silent)} workers are silent ({names}); {what}"

    return {key: Symptom(silent, text, numbers)}


def _error_rate(lines: Sequence[Line], now: float, limits: Thresholds, known: Collection[Key]) -> dict[Key, Symptom]:
    found: dict[Key, Symptom] = {}
    for line in lines:
        key: Key = ("error_rate", line.task)
        rate = line.amount / max(line.out_of, line.amount, 1)
        most = limits.errors_max / 2 if key in known else limits.errors_max
        if line.amount >= ERRORS_LEAST and rate > most:
            text = f"{rate:.0%} of the attempts of {line.task} failed: {line.reason}"
            numbers = {
                "failed": line.amount,
                "attempts": line.out_of,
                "rate": round(rate, 4),
                "rate_max": limits.errors_max,
            }
            found[key] = Symptom([line], partial(_said, text), numbers)
    return found


def _said(text: str, _lines: Sequence[Line], _jobs: int) -> str:
    return text


_STANDING: dict[AlertKind, Callable[[Sequence[Line], float, Thresholds, Collection[Key]], dict[Key, Symptom]]] = {
    "backlog": _backlog,
    "no_worker": _no_worker,
    "unknown_task": _unknown_task,
    "silent_worker": _silent_worker,
    "error_rate": _error_rate,
}


def _jobs(lines: Iterable[Line]) -> int:
    return len({line.job_id for line in lines if line.job_id})


# --------------------------------------------------------------------------------------------- incidents


class Rows(Protocol):
    """Reads the current rows of jobs."""

    def is_held(self, task: str) -> bool:
        """Say whether any job of this task waits for a person: it is held, or it asks something."""
        ...

    def held(self, task: str) -> int:
        """Return how many jobs of this task wait for a person."""
        ...

    def still(self, kind: Literal["held", "dead"], ids: Collection[str]) -> Collection[str]:
        """Return those of these jobs that wait for a person, or that are dead."""
        ...


class Incident(msgspec.Struct):
    """An incident that was reported and is not over."""

    since: float
    told_at: float
    reported: int  # lines so far


class Reported(msgspec.Struct):
    """The incidents that one alert has reported, as a notifier leaves them to the next one."""

    open: list[tuple[AlertKind, str, Incident]]
    lines: dict[AlertKind, list[int]]  # by their seq

    def of(self, kinds: Collection[AlertKind]) -> Reported:
        """Return the part that is about these kinds."""
        lines: dict[AlertKind, list[int]] = {kind: seqs for kind, seqs in self.lines.items() if kind in kinds}
        return Reported([each for each in self.open if each[0] in kinds], lines)

    @staticmethod
    def joined(one: Reported, other: Reported) -> Reported:
        return Reported([*one.open, *other.open], one.lines | other.lines)


class Incidents:
    """Remembers what one alert has reported: the start of each incident, its growth at intervals, and its end."""

    def __init__(self, on: Collection[AlertKind], limits: Thresholds) -> None:
        self._on = on
        self._limits = limits
        self._open: dict[Key, Incident] = {}
        self._reported: dict[AlertKind, set[int]] = {kind: set() for kind in KINDS}  # lines, by their seq

    def reported(self) -> Reported:
        """Return what was sent, for the next notifier to continue from."""
        lines: dict[AlertKind, list[int]] = {kind: sorted(seqs) for kind, seqs in self._reported.items() if seqs}
        return Reported([(*key, incident) for key, incident in self._open.items()], lines)

    def resume(self, reported: Reported) -> None:
        """Continue from what an earlier notifier has sent."""
        self._open = {(kind, task): incident for kind, task, incident in reported.open}
        self._reported |= {kind: set(seqs) for kind, seqs in reported.lines.items()}

    def resume_standing(self, reported: Reported) -> None:
        """Continue what stands from what an earlier program has sent, and nothing else."""
        self.resume(reported.of(STANDING))

    def skip(self, lines: Sequence[Line]) -> None:
        """Treat these lines as reported and every incident as closed: the next one of each kind is new."""
        for kind in KINDS_OF_JOURNAL:
            self._reported[kind] |= {line.seq for line in lines}

    def update(self, lines: Sequence[Line], now: float, rows: Rows) -> list[Message]:
        """Return the messages to send now. If `rows` raises, nothing was changed, and nothing counts as sent."""
        messages = []
        found = find(lines, now, self._on, self._limits, self._open)
        due = {key: self._due(key, fresh, found[key], rows) for key, fresh in self._fresh(found, now).items()}
        held = {task for kind, task in {*due, *self._open} if kind == "held" and rows.is_held(task)}
        for key, (fresh, jobs, past) in due.items():
            reported = self._reported[key[0]]
            reported |= {line.seq for line in [*fresh, *past]}
            if not fresh:
                continue
            status: Literal["new", "more"] = "more" if key in self._open else "new"
            incident = self._open.setdefault(key, Incident(since=fresh[0].at, told_at=now, reported=0))
            incident.told_at, incident.reported = now, incident.reported + len(fresh)
            text, numbers = found[key].text(fresh, jobs), found[key].numbers
            if key[0] in ("dead", "crashes", "zombie_rate") and jobs > 1 and self._is_cut(lines, now):
                text, numbers = f"at least {text}", {**numbers, "at_least": True}
            messages.append(_message(key, status, text, incident, now, fresh, jobs, numbers))
        for key, incident in list(self._open.items()):
            kind, task = key
            if task not in held if kind == "held" else key not in found:
                del self._open[key]
                self._reported[kind] -= {line.seq for line in lines if _subject(kind, line) == task}
                text = f"over: {self._relief(key)}"
                messages.append(_message(key, "over", text, incident, now, (), 0, {"told": incident.reported}))
        here = {line.seq for line in lines}
        for seqs in self._reported.values():
            seqs &= here
        return messages

    def _is_cut(self, lines: Sequence[Line], now: float) -> bool:
        """Say whether the window has more lines than are counted."""
        return len(lines) >= LINES_MAX and lines[0].at > now - self._limits.window_s

    def _fresh(self, found: dict[Key, Symptom], now: float) -> dict[Key, list[Line]]:
        """Return the lines that were not reported, of those whose turn it is."""
        again_at = {key: incident.told_at + self._limits.again_s for key, incident in self._open.items()}
        fresh = {
            key: [line for line in finding.lines if line.seq not in self._reported[key[0]]]
            for key, finding in found.items()
            if now >= again_at.get(key, now)
        }
        return {key: lines for key, lines in fresh.items() if lines}

    def _due(self, key: Key, fresh: list[Line], finding: Symptom, rows: Rows) -> tuple[list[Line], int, list[Line]]:
        """Return the lines to report, the number of jobs that they are about, and the lines whose turn will not come
        again."""
        kind, task = key
        if kind != "held" and kind != "dead":
            return fresh, _jobs(finding.lines), []
        ids = {line.job_id for line in (fresh if kind == "held" else finding.lines)}
        still = rows.still(kind, ids)
        so = [line for line in fresh if line.job_id in still]
        # A workflow that runs for a moment asks the same again, and that has no line of its own.
        past = [line for line in fresh if line.kind != "asked"]
        return so, max(rows.held(task), len(still)) if so and kind == "held" else len(still), past

    def _relief(self, key: Key) -> str:
        kind, task = key
        window = span(self._limits.window_s)
        return {
            "held": f"no job of {task} is held or asks a person any more",
            "dead": f"no job of {task} has died for {window}",
            "crashes": f"no job of {task} has crashed again for {window}",
            "zombie_rate": f"at most {self._limits.zombies_max // 2} attempts lost their worker in {window}",
            "false_positives": f"false positives are at most {self._limits.false_max:.0%} again",
            "late_schedules": f"no schedule of {task} is late any more",
            "backlog": f"no job of queue {task} waits for that long any more",
            "no_worker": f"a worker serves queue {task} again, or nothing is due there",
            "silent_worker": "no worker is silent any more",
            "unknown_task": f"a worker has {task} again, or none of it is due",
            "recovery_rate": f"at least {self._limits.recovered_min:.0%} of lost attempts run again",
            "slow_detection": f"no lost attempt was found late for {window}",
            "error_rate": f"at most {self._limits.errors_max / 2:.0%} of the attempts of {task} fail, or few do",
        }[kind]


def _subject(kind: AlertKind, line: Line) -> str | None:
    """Return what a line that stands is about, as in the key of its incident; None if the kind is of the journal."""
    if kind not in STANDING:
        return None
    return "" if kind == "silent_worker" else line.queue if kind in OF_QUEUES else line.task


def _message(
    key: Key,
    status: Literal["new", "more", "over"],
    text: str,
    incident: Incident,
    now: float,
    lines: Sequence[Line],
    jobs_concerned: int,
    numbers: dict[str, Any],
) -> Message:
    kind, subject = key
    latest = {line.job_id: line for line in lines if line.job_id}  # a job may have several lines
    jobs = [
        {"id": line.job_id, "task": line.task, "queue": line.queue, "reason": line.reason, "at": iso(line.at)}
        for line in list(reversed(latest.values()))[:JOBS_MAX]
    ]
    return Message(
        kind=kind,
        status=status,
        text=text,
        task=subject or None if kind not in OF_QUEUES else None,
        queue=subject if kind in OF_QUEUES else None,
        since=iso(incident.since),
        at=iso(now),
        jobs_concerned=jobs_concerned,
        jobs=jobs,
        numbers=numbers,
    )
