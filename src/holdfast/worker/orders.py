"""The orders of people for this worker, as the store tells them with each beat: drain, stop, or none any more."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from holdfast.core.records import Order
from holdfast.core.text import escaped

log = logging.getLogger("holdfast.worker")


class Orders:
    """Obeys the order in force. `stop` ends the worker, `drain` says whether it claims.

    A worker that starts while a stop stands claims nothing and stays: if it left, it would only be started again.
    """

    def __init__(self, stop: Callable[[], None], drain: Callable[[bool], None]) -> None:
        self._stop, self._drain = stop, drain
        self._lock = threading.Lock()  # beats and enrolments come from different threads
        self._obeyed: Order | None = None
        self._found: Order | None = None  # at the first enrolment
        self.drained = False  # it claims nothing

    def find(self, order: Order | None) -> None:
        """Take the order that stood when the worker started."""
        self._found = order
        self.obey(order)

    def obey(self, order: Order | None) -> None:
        """Do what the order says. The same order again changes nothing."""
        with self._lock:
            if order == self._obeyed:
                return
            self._obeyed = order
            if order is None:
                self._found = None
                log.info("this worker was asked to resume: it claims jobs again")
            else:
                log.info("this worker was asked to %s%s", order.act, _by(order))
            was, self.drained = self.drained, order is not None
            if was != self.drained:
                self._drain(self.drained)
            if order is not None and order.act == "stop" and order != self._found:
                self._stop()
            elif order is not None:
                log.info("it claims nothing until: holdfast workers resume %s", escaped(order.name))


def _by(order: Order) -> str:
    by = f" by {escaped(order.actor)}" if order.actor else ""
    return by + (f": {escaped(order.note)}" if order.note else "")
