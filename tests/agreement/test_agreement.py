"""SQLite does what memory does, call by call. HOLDFAST_EXAMPLES=2000 draws so many new runs, not the fixed ones."""

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.agreement.machine import Stores

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "0"))


@pytest.mark.slow  # a hundred runs of sixty steps
def test_memory_and_sqlite_agree() -> None:
    chosen = settings(
        max_examples=EXAMPLES or 120,
        stateful_step_count=60,
        derandomize=not EXAMPLES,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Stores, settings=chosen)
