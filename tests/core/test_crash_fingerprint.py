"""Jobs of the same call, and which of their crashes count against it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.acts import revive
from holdfast.core.crash_fingerprint import (
    Fingerprint,
    call_of,
    calls_held_back,
    crashes_of,
    death_of,
    has_fallen,
    held_back,
    is_guilty,
    is_new,
)
from holdfast.core.machine import State
from holdfast.core.records import Event
from holdfast.core.transitions import apply_verdict
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


def event(job_id: str, worker: str | None, **detail: Any) -> Event:
    return Event(1, job_id, 0.0, "zombie", 1, worker, None, detail)


def test_jobs_that_were_lost_with_one_worker_died_one_death() -> None:
    assert death_of(event("a", "w1")) == death_of(event("b", "w1"))
    assert death_of(event("a", "w1")) != death_of(event("a", "w2"))
    assert death_of(event("a", "w1", isolated=True)) != death_of(event("b", "w1", isolated=True))
    assert death_of(event("a", None)) != death_of(event("b", None))


def test_what_holds_a_call_back_are_deaths_and_the_jobs_are_named() -> None:
    call = Fingerprint("send", "0123456789ab")
    assert held_back(call, {}, 1) is None
    assert held_back(call, {"a": "w1", "b": "w2"}, 3) is None
    assert held_back(call, {"a": "w1", "b": "w2", "c": "w2"}, 3) is None
    assert held_back(call, {"a": "w1", "b": "w2", "c": "w2", "d": "w3"}, 3) == (
        "held back: 4 jobs of send with the same arguments (#0123456789ab) have crashed within a day and were given "
        "up or held, the last of them d"
    )


def test_a_job_that_failed_was_held_or_was_revived_is_not_new() -> None:
    assert is_new(a_job())
    for state in (State.HELD, State.DEAD, State.CANCELLED):
        job = a_job(state)
        assert not is_new(apply_verdict(job, revive(job, 0.0, actor="ann"), 0.0)), state


def entry(seq: int, job_id: str, kind: str = "zombie", decision: str = "bury", *, fence: int = 1) -> Event:
    return Event(seq, job_id, 0.0, kind, fence, f"w{seq}", None, {"decision": decision} if kind == "zombie" else {})  # type: ignore[arg-type]


def test_a_crash_counts_if_the_job_is_not_run_again() -> None:
    lost = [entry(1, "a", decision="bury"), entry(2, "b", decision="hold"), entry(3, "c", decision="retry")]
    assert crashes_of(lost) == {("a", 1): lost[0], ("b", 2): lost[1]}


def test_an_attempt_that_reports_late_had_not_crashed() -> None:
    first = entry(1, "a", fence=4)
    assert crashes_of([first, entry(2, "a", "stale_report", fence=4)]) == {}
    assert crashes_of([first, entry(2, "a", "stale_report", fence=3)]) == {("a", 2): first}
    assert crashes_of([entry(1, "a", "stale_report")]) == {}


def test_a_crash_is_known_by_the_newest_decision_on_its_job_and_the_last_comes_last() -> None:
    first, other, again = entry(1, "a"), entry(2, "b"), entry(4, "a")
    found = crashes_of([first, other, entry(3, "a", "revived"), again])
    assert list(found.items()) == [(("b", 2), other), (("a", 4), again)]
    assert crashes_of([first, entry(2, "a", "resolved")]) == {("a", 2): first}


def test_calls_are_held_back_by_the_limit_of_their_task() -> None:
    send, call = Fingerprint("send", "1"), Fingerprint("call", "2")
    crashes = {(name, seq): entry(seq, name) for seq, name in enumerate("abcd")}
    calls = {("a", 0): send, ("b", 1): send, ("c", 2): call, ("d", 3): None}
    found = calls_held_back(crashes, calls, {"send": 2, "call": 2})
    assert list(found) == [send]
    assert found[send].endswith("the last of them b")
    assert set(calls_held_back(crashes, calls, {"send": 2, "call": 1})) == {send, call}
