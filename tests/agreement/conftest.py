"""What the runs of the machine have in common."""

import math
from collections.abc import Iterator

import pytest

from holdfast.stores.postgres import claim_cursor


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The reapers have much to say."""
    with caplog.at_level("CRITICAL", logger="holdfast"):
        yield


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine a claim on PostgreSQL may begin behind a job that came back: late, never lost. Not here."""
    monkeypatch.setattr(claim_cursor, "SURE", math.inf)
