"""The threads that a worker needs. If one dies, the worker stops: see `Runner`."""

from __future__ import annotations

import _thread
import os
import sys
import threading
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import NoReturn

from holdfast.errors import UsageError

BROKEN_S = 1.0  # how long it may take to say so, and to save what has ended

Died = Callable[[str, BaseException | None], None]  # the thread's name; what it died of, None: it just ended


class VitalThread(threading.Thread):
    """Runs `serve`, and tells `died` when that ends although `is_over` does not say that it was to."""

    def __init__(self, name: str, serve: Callable[[], None], is_over: Callable[[], bool]) -> None:
        super().__init__(name=name, daemon=True)
        self._serve = serve
        self._is_over = is_over
        self._died: Died | None = None

    def begin(self, died: Died) -> None:
        """Start it."""
        self._died = died
        self.start()

    def finish(self, timeout_s: float) -> None:
        """Wait for its end. A thread that was never started has ended already."""
        if self.ident is not None:
            self.join(timeout_s)

    def run(self) -> None:
        error: BaseException | None = None
        try:
            self._serve()
        except BaseException as raised:
            error = raised
        if not self._is_over() and self._died is not None:
            self._died(self.name, error)


def end_process(code: int, report: Callable[[], None], within_s: float = 0.2) -> NoReturn:
    """Call `report`, then end this process; end it after `within_s` if the report is held up, as a log may be by the
    very handler that did not stop. Where the system has no thread left to watch over that, end it without a report."""
    try:
        threading.Timer(within_s, os._exit, (code,)).start()
        report()
    finally:
        os._exit(code)


def refuse_patched_threads() -> None:
    """Raise `UsageError` where gevent or eventlet has replaced threads: no handler could be interrupted there, and one
    that waits would hold up the heartbeat."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    replaced = not isinstance(_thread.start_new_thread, BuiltinFunctionType)
    for name in ("thread", "time", "socket"):
        replaced |= gevent is not None and gevent.is_module_patched("threading" if name == "thread" else name)
        replaced |= eventlet is not None and eventlet.is_monkey_patched(name)
    if replaced:
        raise UsageError(
            "gevent or eventlet has replaced Python's threads in this process, and a worker needs real ones; do not "
            "call monkey.patch_all() or monkey_patch() in what the worker imports (enqueueing works with it)"
        )
