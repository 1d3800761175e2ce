"""clock.py: what a handler does to the time of its process does not reach the worker."""

import ctypes
import errno
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, clock
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


class Definition(ctypes.Structure):
    """PyMethodDef of CPython."""

    _fields_ = (("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


class Traveller:
    """Does what time-machine does: changes functions of `time` inside the interpreter, wherever they are kept, for
    the clock that tells wall time."""

    def __init__(self) -> None:
        self._changed: list[tuple[Definition, int]] = []
        self._code = CODE(self._moved)  # it must outlive the calls

    def travel(self) -> None:
        for function in (time.time, time.clock_gettime):
            head = ctypes.sizeof(ctypes.c_ssize_t) + ctypes.sizeof(ctypes.c_void_p)  # of every object
            definition = ctypes.POINTER(Definition).from_address(id(function) + head).contents
            self._changed.append((definition, definition.code))
            definition.code = ctypes.cast(self._code, ctypes.c_void_p).value

    def come_back(self) -> None:
        while self._changed:
            definition, code = self._changed.pop()
            definition.code = code

    def _moved(self, _: Any, argument: int | None) -> float:
        """`argument`: the address of what the function was given, which older versions put into a tuple."""
        clock = ctypes.cast(argument, ctypes.py_object).value if argument else time.CLOCK_REALTIME
        clock = clock[0] if isinstance(clock, tuple) else clock
        return time.clock_gettime_ns(clock) / 1e9 + (CENTURY_S if clock == time.CLOCK_REALTIME else 0)


CODE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)


@pytest.fixture
def traveller() -> Iterator[Traveller]:
    traveller = Traveller()
    yield traveller
    traveller.come_back()


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Freezer(monkeypatch)


def test_the_clock_goes_on_when_the_functions_of_time_are_replaced(freezer: Freezer) -> None:
    ours = SystemClock()
    wall, lease = ours.wall(), ours.lease()
    freezer.freeze()
    pause(0.01)
    assert 0.01 <= ours.lease() - lease < 3600
    assert abs(ours.wall() - wall) < 3600
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


def test_the_clock_is_that_of_the_system_where_there_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> float:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(time, "clock_gettime", refuse)
    assert clock._atomic_clock() is None
    monkeypatch.undo()
    monkeypatch.setattr(clock, "_TAI_CLOCK", None)
    assert abs(SystemClock().wall() - time.time()) < 3600


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such clocks")
def test_the_clock_goes_on_when_time_travels_inside_the_interpreter(traveller: Traveller) -> None:
    ours = SystemClock()
    wall, lease = ours.wall(), ours.lease()
    assert abs(wall - time.time()) < 1.0
    traveller.travel()
    try:
        seen, read = time.time(), time.clock_gettime(time.CLOCK_REALTIME)
        moved_wall, moved_lease = ours.wall(), ours.lease()
    finally:
        traveller.come_back()
    assert min(seen, read) > wall + CENTURY_S - 1, "code of the user does travel"
    assert 0 <= moved_wall - wall < 3600
    assert 0 <= moved_lease - lease < 3600


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such clocks")
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_handler_that_travels_in_time_starts_no_delayed_job_early(
    kind: str, traveller: Traveller, tmp_path: Path
) -> None:
    with App("memory://" if kind == "memory" else f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task
        def travel() -> None:
            traveller.travel()

        @app.task
        def later() -> None: ...

        delayed = later.using(run_after=3600).enqueue()
        for _ in range(2):
            moved = travel.enqueue()
            app.tick(30)
            assert app.get(moved.id).state == "done"
        assert app.get(delayed.id).state == "ready"
