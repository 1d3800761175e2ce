"""What a row must not look like: the rules that every schema checks, as the memory store checks them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.machine import State
from holdfast.core.transitions import violations
from tests.factory import a_job, awaiting

BROKEN: dict[str, tuple[State, dict[str, Any], str]] = {
    "runs without a lease": (State.RUNNING, {"lease_until": None}, "lease end None"),
    "runs without a worker": (State.RUNNING, {"worker": None}, "worker None"),
    "has a lease and does not run": (State.READY, {"lease_until": 5.0}, "lease end 5.0"),
    "has a worker and does not run": (State.READY, {"worker": "w"}, "worker w"),
    "runs without a claim_id": (State.RUNNING, {"claim_id": None}, "without a claim_id"),
    "ended at no time": (State.DONE, {"ended_at": None}, "ended at None"),
    "ended and is ready": (State.READY, {"ended_at": 5.0}, "ended at 5.0"),
    "waits until a time and is ready": (State.READY, {"wake_at": 5.0}, "waits until 5.0"),
    "waits for something and is ready": (State.READY, {"awaits": awaiting("job:1")}, "for job:1"),
    "asks and is ready": (State.READY, {"question": "really?"}, "waits until None"),
    "was started more often than it was fenced": (State.READY, {"attempt": 9}, "started 9 times"),
}


@pytest.mark.parametrize(("state", "changes", "words"), BROKEN.values(), ids=BROKEN.keys())
def test_a_row_that_breaks_a_rule_of_the_schema_is_named(state: State, changes: dict[str, Any], words: str) -> None:
    [violation] = violations(a_job(state, **changes))
    assert words in violation


@pytest.mark.parametrize("state", list(State))
def test_a_row_as_a_store_makes_it_breaks_no_rule(state: State) -> None:
    assert list(violations(a_job(state))) == []
