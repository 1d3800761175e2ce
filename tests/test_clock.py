"""clock.py: what a handler does to the time of its process does not reach the worker."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.clock import SystemClock, pause

CENTURY_S = 36_500 * 86_400.0


class Freezer:
    """Does what freezegun does: replaces functions of `time`, under every name that a module has for them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.calls: list[str] = []

    def freeze(self) -> None:
        for name in ("time", "monotonic", "perf_counter", "clock_gettime", "sleep"):
            self._replace(name, getattr(time, name))

    def _replace(self, name: str, real: Any) -> None:
        def fake(*_: Any) -> float:
            self.calls.append(name)
            return CENTURY_S

        for module in [time, *(each for key, each in list(sys.modules.items()) if key.startswith("holdfast"))]:
            for attribute, value in list(vars(module).items()):
                if value is real:
                    self._monkeypatch.setattr(module, attribute, fake)


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Freezer(monkeypatch)


def test_the_clock_goes_on_when_the_functions_of_time_are_replaced(freezer: Freezer) -> None:
    clock = SystemClock()
    wall, lease = clock.wall(), clock.lease()
    freezer.freeze()
    pause(0.01)
    assert 0.01 <= clock.lease() - lease < 3600
    assert abs(clock.wall() - wall) < 3600
    assert freezer.calls == []


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_handler_that_replaces_the_time_starts_no_delayed_job_early(
    kind: str, freezer: Freezer, tmp_path: Path
) -> None:
    with App("memory://" if kind == "memory" else f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task
        def freeze() -> None:
            freezer.freeze()

        @app.task
        def later() -> None: ...

        delayed = later.using(run_after=3600).enqueue()
        for _ in range(2):
            frozen = freeze.enqueue()
            app.tick(30)
            assert app.get(frozen.id).state == "done"
        assert app.get(delayed.id).state == "ready"
