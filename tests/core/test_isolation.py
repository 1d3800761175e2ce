"""Which attempts get a process of their own."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.isolation import ended_itself, isolates, may_isolate
from tests.factory import a_job


@pytest.mark.parametrize(
    ("declared", "crashes", "suspects", "isolated"),
    [
        (False, 0, 0, False),
        (True, 0, 0, True),
        (False, 1, 0, False),  # it has died alone, and nothing says by whose doing: not if no other can be there
        (False, 2, 0, True),
        (False, 1, 1, True),  # it has died alone, by its own doing
        (False, 0, 1, True),  # a person has revived it since
        (False, 1, 2, True),
        (False, 0, 2, False),  # the crash was taken back
    ],
)
def test_one_function_decides(declared: bool, crashes: int, suspects: int, isolated: bool) -> None:
    job = a_job(crashes=crashes, suspects=suspects)
    assert isolates(job, declared=declared, shared=False) is isolated
    assert isolates(job, declared=declared, shared=True) is (isolated or crashes > 0)
    assert may_isolate(job, declared=declared) is (declared or crashes > 0 or suspects > 0)


@pytest.mark.parametrize(
    ("facts", "itself"),
    [
        ({"exit_code": 0}, True),
        ({"exit_code": 3}, True),
        ({"signal": "SIGSEGV"}, True),
        ({"signal": "SIGKILL"}, False),  # or somebody sent it
        ({}, False),
    ],
)
def test_a_process_that_faults_or_exits_has_ended_itself(facts: dict[str, Any], itself: bool) -> None:
    assert ended_itself(facts) is itself
