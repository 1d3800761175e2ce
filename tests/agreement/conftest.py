"""What the runs of the machine have in common."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """The reapers have much to say."""
    with caplog.at_level("CRITICAL", logger="holdfast"):
        yield
