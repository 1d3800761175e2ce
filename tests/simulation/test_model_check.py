"""Small worlds, explored completely: every interleaving, with a death, a pause and a lost answer anywhere."""

import pytest

from tests.simulation.checker import Violation
from tests.simulation.model_check import explore
from tests.simulation.worlds import WORLDS, job, world

# How large each world was when it was written down. A change of the core may change it; a world that has become small
# is not explored any more.
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
    explored = explore(WORLDS[name])
    print(
        f"{name}: {explored.states} states, {explored.transitions} transitions, {explored.ends} of the states are ends"
    )
    assert explored.states >= STATES[name] * 0.8
    assert 0 < explored.ends < explored.states < explored.transitions


def test_a_search_is_the_same_each_time() -> None:
    small = world(workers=1, claims=2)
    assert explore(small) == explore(small)


def test_a_world_that_is_too_large_is_refused() -> None:
    with pytest.raises(OverflowError, match="smaller"):
        explore(world(), states_max=100)


def test_a_violation_tells_the_shortest_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.core.transitions.owns", lambda job, lease: True)
    with pytest.raises(Violation) as caught:
        explore(world(job(), workers=1))
    assert caught.value.steps_taken[:2] == ["w0: asks", "w0: its claim arrives"]
    assert len(caught.value.steps_taken) <= 8
    assert "\n  w0: asks\n  w0: its claim arrives\n" in str(caught.value)


def test_a_job_that_nobody_can_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.model_actors.ReaperActor.steps", lambda self, model: iter(()))
    monkeypatch.setattr("tests.simulation.model_actors.SupervisorActor.steps", lambda self, model: iter(()))
    with pytest.raises(Violation, match="no job can come to its end") as caught:
        explore(world(workers=1, deaths=1))
    assert caught.value.promise == "P10"
    assert caught.value.steps_taken[-1] == "w0: dies"
