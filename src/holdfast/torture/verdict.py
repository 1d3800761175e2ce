"""Judges a task by the effects of its jobs: which were repeated, which were lost, and what to declare."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from holdfast.core.machine import State
from holdfast.core.policy import OnCrash

Safety = Literal["safe", "unsafe", "unknown"]

STARTS = "start"  # counted for a task that marks no effects


class Ran(NamedTuple):
    """One job of one round: its effects by name and key, and how often its handler began."""

    id: str
    input: int
    state: State
    disturbance: str
    effects: Counter[tuple[str, str | None]]
    starts: int
    lost_attempts: int = 0


class Finding(NamedTuple):
    """An effect that happened too often, or not at all, and where the worker was disturbed then."""

    name: str
    disturbance: str
    jobs: int
    example: str


class TaskReport(NamedTuple):
    """The result for one task."""

    task: str
    on_crash: OnCrash
    jobs: int
    lost_attempts: int
    held: int
    dead: int
    repeated: list[Finding]
    lost: list[Finding]
    safety: Safety
    advice: str

    def plain(self) -> dict[str, Any]:
        """Return it for JSON."""
        said = self._asdict()
        said["repeated"] = [each._asdict() for each in self.repeated]
        said["lost"] = [each._asdict() for each in self.lost]
        return said


def report(
    task: str, on_crash: OnCrash, calm: Sequence[Ran], ran: Sequence[Ran], checked: Mapping[str, int] | None = None
) -> TaskReport:
    """Compare disturbed jobs with undisturbed ones of the same input. `checked`: the counts of `--check`, by job."""
    expected = {each.input: _by_name(each) for each in calm if each.state is State.DONE}
    marks = checked is not None or any(expected.values())
    repeated: dict[tuple[str, str], list[str]] = {}
    lost: dict[tuple[str, str], list[str]] = {}
    for each in ran:
        if checked is not None:
            found, wanted = Counter({"effect": checked.get(each.id, 0)}), Counter({"effect": 1})
        elif marks:
            found, wanted = _by_name(each), expected.get(each.input, Counter())
        else:
            found, wanted = Counter({STARTS: each.starts}), Counter({STARTS: 1})
        for name in found.keys() | wanted.keys():
            if found[name] > wanted[name]:
                repeated.setdefault((name, each.disturbance), []).append(each.id)
            elif found[name] < wanted[name] and each.state is State.DONE and marks:
                lost.setdefault((name, each.disturbance), []).append(each.id)
    ended = Counter(each.state for each in ran)
    repeats = [Finding(*where, len(ids), ids[0]) for where, ids in repeated.items()]
    losses = [Finding(*where, len(ids), ids[0]) for where, ids in lost.items()]
    attempts = sum(each.lost_attempts for each in ran)
    safety = _safety(marks, bool(repeats or losses), attempts)
    words = _advice(on_crash, safety, marks, repeats, losses, ended)
    return TaskReport(
        task, on_crash, len(ran), attempts, ended[State.HELD], ended[State.DEAD], repeats, losses, safety, words
    )


def _by_name(ran: Ran) -> Counter[str]:
    counts: Counter[str] = Counter()
    for (name, _), times in ran.effects.items():
        counts[name] += times
    return counts


def _safety(marks: bool, found: bool, attempts: int) -> Safety:
    if not marks or not attempts:
        return "unknown"
    return "unsafe" if found else "safe"


def _advice(
    on_crash: OnCrash,
    safety: Safety,
    marks: bool,
    repeated: Sequence[Finding],
    lost: Sequence[Finding],
    ended: Mapping[State, int],
) -> str:
    if not marks:
        often = "starts repeated" if repeated else "no start was repeated"
        return f"{often}; mark its effects with holdfast.testing.effect, or count them with --check"
    if safety == "unknown":
        return "no attempt was lost: give it more minutes, or more inputs"
    if lost:
        return (
            f"{_names(lost)} missing although the job is done: do the effect before noting that it is done; no "
            "on_crash helps"
        )
    if repeated and on_crash in ("retry", "rollback"):
        return (
            f'{_names(repeated)} repeated: declare on_crash="hold" (in a workflow a step with repeatable=False), or '
            "make the effect safe to repeat with ctx.job.id"
        )
    if repeated:
        return f'{_names(repeated)} repeated although on_crash="{on_crash}": an attempt that was given up went on'
    if on_crash == "retry":
        return 'keep on_crash="retry": every effect happened once'
    if ended.get(State.HELD, 0):
        return f'keep on_crash="{on_crash}": {ended[State.HELD]} jobs were held, and no effect was repeated'
    return f'keep on_crash="{on_crash}": no effect was repeated'


def _names(findings: Sequence[Finding]) -> str:
    return ", ".join(sorted({repr(each.name) for each in findings}))
