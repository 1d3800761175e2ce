"""A verdict on its way to the row: which line of the journal says that an attempt has reported its own end."""

from __future__ import annotations

import pytest

from holdfast.core.settlement import own_event
from holdfast.core.verdict import Failed, Lost, Outcome, Stalled, TimedOut, judge
from tests.factory import a_job


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Failed("boom"), "failed"),
        (Stalled("still"), "stalled"),
        (TimedOut("too long"), "timed_out"),
        (Lost("exit", "killed"), None),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Outcome) else str(each),
)
@pytest.mark.parametrize("budget", [1, 9], ids=["the last attempt", "one of many"])
def test_only_an_attempt_itself_reports_its_end(outcome: Outcome, kind: str | None, budget: int) -> None:
    """What a reaper says of it is no report, also where that ends the job."""
    job = a_job(attempts_max=budget, crashes_max=budget)
    ending = own_event(judge(outcome, job, 0.0, chance=0.5))
    assert (ending.kind if ending else None) == kind
