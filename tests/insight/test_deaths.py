"""Who died where: by the autopsy, by the records, and in every order in which two deaths can come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count, product
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import insight
from holdfast.core.records import Event, Step


def a_death(at: float, fence: int = 1, **detail: Any) -> Event:
    return Event(1, "j", at, "zombie", fence, "w", None, {"cause": "SIGKILL", **detail})


def seen(path: str, started: float | None, ended: float | None, fence: int = 1, **given: Any) -> Step:
    state = "recorded" if ended is not None else "started"
    known: dict[str, Any] = {"kind": "step", "name": f"step {path}", "state": state, "attempt": 1, "fence": fence}
    known |= {"position": int(path.rpartition(".")[2])}
    return Step(path=path, started_at=started, ended_at=ended, **known | given)


DEATHS: dict[str, tuple[list[Step], Event, str | None, bool]] = {
    "in one that is open": ([seen("1", 1, 2), seen("2", 3, None)], a_death(5), "2", True),
    "in one that somebody answered for": ([seen("1", 1, 2), seen("2", 3, 9)], a_death(5), "2", True),
    "in one that is named, and was undone since": (
        [seen("1", 1, 2), seen("2", 3, None, fence=4, state="undone"), seen("3", 8, 9, fence=3)],
        a_death(5, open_step="step 2"),
        "2",
        True,
    ),
    "in one that is named, and was run again since": (
        [seen("1", 1, 2), seen("2", 7, 8, fence=3), seen("3", 8, 9, fence=3)],
        a_death(5, open_step="step 2", in_steps=["1 step 1"]),
        "2",
        True,
    ),
    "in a plain one, recorded later": ([seen("1", 1, 2), seen("2", 6, 7, fence=3)], a_death(5), "2", False),
    "in a plain one that was told": (
        [seen("1", 1, 2), seen("2", 6, 7, fence=3)],
        a_death(5, step="step 2", in_steps=["2 step 2"]),
        "2",
        True,
    ),
    "not in one that was told, and was recorded before": (
        [seen("1", 1, 4), seen("2", 6, 7, fence=3, name="step 1")],
        a_death(5, step="step 1", in_steps=["1 step 1"]),
        "2",
        False,
    ),
    "between two tries of one": (
        [seen("1", 1, 2), seen("2", 3, None, tries=1, retry_at=6.0)],
        a_death(5),
        "2",
        False,
    ),
    "before one that an earlier attempt had begun": (
        [seen("1", 1, 2), seen("2", 3, None), seen("3", 9, 10, fence=5)],
        a_death(5, fence=3),
        "2",
        False,
    ),
    "before one of a branch that an earlier attempt had begun": (
        [seen("2.1.1", 3, None), seen("2.2.2", 9, 10, fence=5)],
        a_death(5, fence=3),
        "2.1.1",
        False,
    ),
    "before one in a branch that waits only later": (
        [seen("2.1.1", 6, None, fence=3, kind="wait"), seen("2.2.2", 6, 7, fence=3)],
        a_death(5),
        "2.1.1",
        False,
    ),
    "not at one that begins to wait at that very time": (
        [seen("2.1.1", 5, None, kind="wait"), seen("2.2.2", 6, 7, fence=3)],
        a_death(5),
        "2.2.2",
        False,
    ),
    "not at one that waits in another branch": (
        [seen("2.1.1", 1, None, kind="wait"), seen("2.2.2", 6, 7, fence=3)],
        a_death(5),
        "2.2.2",
        False,
    ),
    "not at one that waits in a task beside": (
        [seen("~1.1", 1, None, kind="approve"), seen("2", 6, 7, fence=3)],
        a_death(5),
        "2",
        False,
    ),
    "not behind one that waited": (
        [seen("1", 1, 7, fence=3, kind="wait"), seen("2", 7, 8, fence=3)],
        a_death(5),
        "1",
        False,
    ),
    "not behind one that waited in a branch": (
        [seen("2.1.1", 1, 7, fence=3, kind="wait"), seen("3", 7, 8, fence=3)],
        a_death(5),
        "2.1.1",
        False,
    ),
    "not behind one that waited in a branch of a call that failed later": (
        [seen("2.1.1", 1, None, kind="wait"), seen("2", 6, 7, fence=3, kind="gather", position=3)],
        a_death(5),
        "2.1.1",
        False,
    ),
    "before what it waited for came": ([seen("1", 1, None, kind="wait")], a_death(5), "1", False),
    "not behind one that waited on the line of a task beside": (
        [seen("~1.1", 1, 7, fence=3, kind="wait", position=1), seen("~1.2", 7, 8, fence=3, position=2)],
        a_death(5),
        "~1.1",
        False,
    ),
    "behind all": ([seen("1", 1, 2), seen("2", 3, 4)], a_death(5), None, False),
    "at the very end of one": ([seen("1", 1, 5), seen("2", 5, 6, fence=3)], a_death(5), "2", False),
}


@pytest.mark.parametrize(("steps", "event", "path", "inside"), DEATHS.values(), ids=DEATHS.keys())
def test_a_death_is_shown_at_its_step(steps: list[Step], event: Event, path: str | None, inside: bool) -> None:
    [death] = insight.deaths(steps, [event])
    assert (death.step.path if death.step else None, death.inside, death.undoing) == (path, inside, False)
    assert death.path == path


def test_a_death_among_branches_is_shown_in_each_that_was_open() -> None:
    steps = [seen("1", 1, None), seen("2", 1, None)]
    assert [death.step for death in insight.deaths(steps, [a_death(5)])] == steps


def cut_off(path: str, fence: int, **given: Any) -> Step:
    """One that a death at 5, fence 1, cut off; with a later fence it was begun anew and recorded since."""
    times = (1, None) if fence == 1 else (7, 8)
    return seen(path, *times, fence, **{"has_undo": True} | given)


@pytest.mark.parametrize("fences", list(product((1, 3), repeat=3)))
@pytest.mark.parametrize(
    "paths", [("2.1.1", "2.2.1", "2.3.1"), ("~1.1", "~2.1", "~3.1"), ("~1.2.1.1", "~1.2.2.1", "~2.1")]
)
def test_a_death_among_branches_stays_with_each_restarted_step(paths: tuple[str, ...], fences: tuple[int, ...]) -> None:
    each = zip(paths, fences, strict=True)
    steps = [cut_off(path, fence, position=place) for place, (path, fence) in enumerate(each, 1)]
    found = insight.deaths(steps, [a_death(5)])
    assert {death.path: death.inside for death in found} == {
        path: fence == 1 for path, fence in zip(paths, fences, strict=True)
    }


def test_a_death_among_branches_is_not_told_where_it_cannot_have_been() -> None:
    steps = [
        cut_off("2.1.1", 1, position=1),
        seen("2.2.1", 1, 2, position=2, has_undo=True),  # was over
        cut_off("2.2.2", 3, position=3),
        cut_off("2.2.3", 3, position=4),  # behind the other
        cut_off("2.3.1", 3, position=5, has_undo=False),  # plain: nobody wrote down that it had begun
        cut_off("3", 3, position=6),  # behind all
        cut_off("~1.1", 3, position=7),  # began later, for all that is known
    ]
    told = [(death.path, death.place) for death in insight.deaths(steps, [a_death(5)])]
    assert told == [("2.1.1", "in step 2.1.1 (2.1.1)"), ("2.2.2", "in or before step 2.2.2 (2.2.2)")]
    beside = [cut_off("~1.1", 3, position=1), cut_off("2", 1, position=2)]
    assert {death.path for death in insight.deaths(beside, [a_death(5)])} == {"~1.1", "2"}


def test_a_death_among_branches_stays_with_a_step_that_must_not_be_repeated() -> None:
    steps = [cut_off("2.1.1", 1), cut_off("2.2.2", 3, has_undo=False, repeatable=False)]
    assert {death.path: death.inside for death in insight.deaths(steps, [a_death(5)])} == {
        "2.1.1": True,
        "2.2.2": False,
    }


def test_a_death_is_not_told_at_a_step_of_a_branch_that_only_an_earlier_attempt_had_begun() -> None:
    steps = [seen("2.1.1", 4, None, fence=3), cut_off("2.2.2", 1)]
    assert [death.path for death in insight.deaths(steps, [a_death(5, fence=3)])] == ["2.1.1"]


def test_a_death_is_not_told_at_a_step_of_a_branch_that_paused_between_two_tries() -> None:
    steps = [cut_off("2.1.1", 1), cut_off("2.2.2", 1, tries=1, retry_at=9.0)]
    assert [death.path for death in insight.deaths(steps, [a_death(5)])] == ["2.1.1"]


def test_a_death_in_a_step_that_was_told_and_never_recorded_is_told_there_alone() -> None:
    steps = [seen("1", 1, 2), seen("3", 8, 9, fence=3)]
    assert [death.path for death in insight.deaths(steps, [a_death(5, in_steps=["2 mail"])])] == ["2"]


def test_a_death_in_a_plain_step_that_was_never_recorded_is_known_by_what_it_told() -> None:
    [first, second] = insight.deaths([seen("1", 1, 2)], [a_death(5, in_steps=["2.1.1 mail", "2.2.1 print it"])])
    assert (first.step, first.place, first.inside) == (None, "in mail (2.1.1)", True)
    assert (second.step, second.place) == (None, "in print it (2.2.1)")


def test_a_death_while_undoing_is_shown_at_the_step_that_was_to_be_undone() -> None:
    first, second = (replace(seen(path, 1, 2), has_undo=True) for path in "12")
    undone = replace(seen("3", 1, 2), has_undo=True, state="undone", undone_at=4.0)
    failed = replace(seen("4", 1, 2), has_undo=True, error="ValueError")  # it may have happened: undone as well
    plain = seen("5", 1, 2)
    steps = [first, second, undone, replace(failed, state="undone", undone_at=3.0), plain]
    [death] = insight.deaths(steps, [a_death(5, rolling_back=True)])
    assert (death.step, death.undoing, death.inside, death.place) == (second, True, False, "undoing step 2 (2)")
    assert insight.deaths([first, failed, plain], [a_death(5, rolling_back=True)])[0].step == failed
    since = replace(second, state="undone", undone_at=6.0, fence=3)  # by its successor
    assert insight.deaths([first, since, undone], [a_death(5, rolling_back=True)])[0].step == since
    [death] = insight.deaths(steps, [a_death(5, rolling_back=True, in_steps=["1 step 1"])])
    assert (death.step, death.inside) == (first, True)
    [death] = insight.deaths([undone], [a_death(5, rolling_back=True)])
    assert (death.step, death.place) == (None, "behind everything that is recorded")


# ---------------------------------------------------------------------------------------------- every order


@dataclass
class Engine:
    """Writes records as the engine does, and keeps a book of where each attempt died."""

    kinds: tuple[str, ...]  # of the steps of the main line: `plain`, or `undo`, which is written down before
    now: Iterator[int] = field(default_factory=lambda: count(1))
    live: dict[str, Step] = field(default_factory=dict)
    aside: list[Step] = field(default_factory=list)
    fence: int = 0
    book: list[tuple[Event, str, bool]] = field(default_factory=list)  # a death, its step, whether it was inside

    def attempt(self, end: str, inside: bool, told: str | None) -> None:
        """Run until it dies at the step of that path: in it, or before it. `told`: what its last beat said."""
        self.fence += 1
        for path, kind in enumerate(self.kinds, 1):
            known = self.live.get(str(path))
            if known is not None and known.state == "recorded":
                end = str(path + 1) if end == str(path) else end  # it comes at least to what is not recorded
                continue
            if str(path) == end and not inside:
                return self._dies(end, False, None)
            began = float(next(self.now))
            if kind == "undo":
                self._write(str(path), began, None)
            if str(path) == end:
                return self._dies(end, True, told)
            self._write(str(path), began, float(next(self.now)))
        return self._dies(end, False, None)

    def _write(self, path: str, began: float, ended: float | None) -> None:
        position = self.live[path].position if path in self.live else len(self.live) + 1
        self.live[path] = replace(seen(path, began, ended, self.fence), position=position)

    def _dies(self, path: str, inside: bool, told: str | None) -> None:
        stale = [f"{step.path} {step.name}" for step in self.live.values() if step.state == "recorded"][-1:]
        says = {"fresh": [f"{path} step {path}"], "stale": stale}.get(told or "", [])
        detail = {"in_steps": says, "step": says[0].partition(" ")[2]} if says else {}
        self.book.append((a_death(float(next(self.now)), self.fence, **detail), path, inside))
        self.fence += 1

    def retry_from(self, path: str) -> bool:
        """A person sets aside that step and all behind it."""
        first = self.live.get(path)
        if first is None:
            return False
        later = [step for step in self.live.values() if step.position >= first.position]
        self.aside += [replace(step, aside=self.fence) for step in later]
        self.live = {step.path: step for step in self.live.values() if step not in later}
        self.fence += 1
        return True


DIES = [(path, inside) for path in "123" for inside in (False, True)]
TOLD = (None, "fresh", "stale")


@pytest.mark.parametrize("kinds", list(product(("plain", "undo"), repeat=3)), ids="-".join)
def test_two_deaths_in_every_order_are_never_shown_where_they_were_not(kinds: tuple[str, ...]) -> None:
    for first, second, told, again, back, last in product(DIES, DIES, TOLD, TOLD, (None, "1", "2", "3"), "134"):
        engine = Engine(kinds)
        engine.attempt(*first, told)
        was_set_back = back is not None and engine.retry_from(back)
        engine.attempt(*second, again)
        engine.attempt(last, False, None)  # "4": to the end
        steps = [*engine.live.values(), *engine.aside]
        for number, (event, path, inside) in enumerate(engine.book[:2]):
            [death] = insight.deaths(steps, [event])
            story = (kinds, first, second, told, again, back, last, number, death)
            assert death.path in (None, path), story
            assert inside or not death.inside, story
            if event.detail.get("in_steps") == [f"{path} step {path}"]:
                assert (death.path, death.inside) == (path, True), story
            of_its_time = [step for step in steps if step.aside or not (was_set_back and number == 0)]
            if any(step.path == path and (step.aside == 0) == (death.aside == 0) for step in of_its_time):
                assert death.step is not None, story
                assert death.step.aside == death.aside, story
