"""SQLite does what memory does, call by call. HOLDFAST_EXAMPLES=2000 draws so many new runs, not the fixed ones."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.agreement.machine import Stores

EXAMPLES = int(os.environ.get("HOLDFAST_EXAMPLES", "0"))

TestAgreement = Stores.TestCase
TestAgreement.settings = settings(
    max_examples=EXAMPLES or 250,
    stateful_step_count=40,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level("CRITICAL", logger="holdfast"):
        yield
