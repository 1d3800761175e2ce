"""Jobs of the same call, and which of their crashes count against it."""

from __future__ import annotations

import pytest

from holdfast.core.calls import call_of, has_fallen, is_guilty
from holdfast.core.machine import State
from tests.factory import a_job


def test_the_same_task_with_the_same_arguments_is_the_same_call() -> None:
    first = a_job(task="send", payload='{"to":"ann"}')
    assert call_of(first) == call_of(a_job(task="send", payload='{"to":"ann"}', queue="other", priority=3))
    assert call_of(first) != call_of(a_job(task="send", payload='{"to":"bob"}'))
    assert call_of(first) != call_of(a_job(task="call", payload='{"to":"ann"}'))
    assert "ann" not in str(call_of(first))


@pytest.mark.parametrize(
    ("state", "crashes", "suspects", "guilty", "fallen"),
    [
        (State.DEAD, 1, 0, True, True),
        (State.HELD, 1, 0, True, True),
        (State.DEAD, 1, 5, True, True),
        (State.DEAD, 0, 0, False, False),
        (State.HELD, 0, 0, False, False),
        (State.READY, 1, 1, True, False),
        (State.READY, 2, 0, True, False),
        (State.CANCELLED, 2, 0, True, False),
        (State.READY, 1, 0, False, False),
        (State.READY, 2, 5, False, False),
        (State.READY, 0, 1, False, False),
        (State.DONE, 2, 1, False, False),
        (State.DONE, 2, 0, False, False),
    ],
)
def test_which_crashes_count(state: State, crashes: int, suspects: int, guilty: bool, fallen: bool) -> None:
    job = a_job(state, crashes=crashes, suspects=suspects)
    assert (is_guilty(job), has_fallen(job)) == (guilty, fallen)
