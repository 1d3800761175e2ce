"""Small worlds, walked completely: every interleaving, with a death, a pause and a lost answer anywhere."""

import pytest

from holdfast.testing.book import Violation
from holdfast.testing.walk import walk
from tests.simulation.worlds import WORLDS, job, world

# How large each world was when it was written down. A change of the core may change it; a world that has become small
# is not walked any more.
STATES = {
    "pauses only": 2_400,
    "answers are lost": 5_600,
    "pauses only, three claims": 10_700,
    "the handler fails": 1_600,
    "the last crash": 1_800,
    "a death": 6_500,
    "a death among two": 34_000,
    "two reapers": 7_600,
    "two jobs": 18_000,
    "declared dead while it lives": 1_000,
    "cancelled": 18_000,
    "hold, approved": 7_900,
    "hold, approved twice, held by hand": 2_000,
    "a step that must not be repeated": 15_600,
    "such a step, and who was late": 6_500,
    "on_crash=fail": 1_400,
}


@pytest.mark.slow  # tens of thousands of states
@pytest.mark.parametrize("name", WORLDS)
def test_every_promise_holds_on_every_way(name: str) -> None:
    walked = walk(WORLDS[name])
    print(f"{name}: {walked.states} states, {walked.transitions} transitions, {walked.ends} of the states are ends")
    assert walked.states >= STATES[name] * 0.8
    assert 0 < walked.ends < walked.states < walked.transitions


def test_a_walk_is_the_same_each_time() -> None:
    small = world(workers=1, claims=2)
    assert walk(small) == walk(small)


def test_a_world_that_is_too_large_is_refused() -> None:
    with pytest.raises(OverflowError, match="smaller"):
        walk(world(), states_max=100)


def test_a_violation_tells_the_shortest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.rows.owns", lambda job, lease: True)
    with pytest.raises(Violation) as caught:
        walk(world(job(), workers=1))
    assert caught.value.way[:2] == ["w0: asks", "w0: its claim arrives"]
    assert len(caught.value.way) <= 8
    assert "\n  w0: asks\n  w0: its claim arrives\n" in str(caught.value)


def test_a_job_that_nobody_can_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.hands.ReaperHand.steps", lambda self, walk: iter(()))
    monkeypatch.setattr("holdfast.testing.hands.SupervisorHand.steps", lambda self, walk: iter(()))
    with pytest.raises(Violation, match="no job can come to its end") as caught:
        walk(world(workers=1, deaths=1))
    assert caught.value.promise == "P10"
    assert caught.value.way[-1] == "w0: dies"
