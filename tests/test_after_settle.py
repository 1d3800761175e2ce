"""The thread that looks at what settlements have ended: one error does not end it."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from holdfast.clock import SystemClock
from holdfast.stores.protocol import Store
from holdfast.upkeep.after_settle import AfterSettle

WAIT_S = 60.0


class Fails(AfterSettle):
    """Fails at the first look, as nobody expects."""

    def __init__(self) -> None:
        super().__init__(cast(Store, None), SystemClock())
        self.first, self.second = threading.Event(), threading.Event()

    def look(self, ids: set[str]) -> None:
        if not self.first.is_set():
            self.first.set()
            raise KeyError(*ids)
        self.second.set()


def test_an_unexpected_error_does_not_end_the_thread(caplog: pytest.LogCaptureFixture) -> None:
    looks: Any = Fails()
    looks.note(["a"])
    assert looks.first.wait(WAIT_S)
    looks.note(["b"])
    assert looks.second.wait(WAIT_S)
    looks.close(WAIT_S)
    assert "could not look at 1 ids; a reaper does it" in caplog.text
