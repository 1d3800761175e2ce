"""A process that a handler forks is never a worker: it has no lease, and none of the worker's threads.

A process that is forked while another thread imports a module can never import it: its lock stays taken. So
our own modules that are loaded at their first use are loaded under `importing`, and a fork waits until that is done.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.errors import LeaseLost

log = logging.getLogger("holdfast.worker")

EXIT_FORKED = 1

importing = threading.RLock()
os.register_at_fork(before=importing.acquire, after_in_parent=importing.release, after_in_child=importing.release)


class Inherited(Protocol):
    """The resources that a forked process must not share with its parent."""

    def after_fork_in_child(self) -> None: ...


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()


def renew_in_child(what: Inherited) -> None:
    """Have `after_fork_in_child` called in each process that is forked while the object lives."""
    _inherited.add(what)


def _after_fork_in_child() -> None:
    for what in _inherited:
        try:
            what.after_fork_in_child()
        except Exception:
            log.exception("a forked process could not replace what it inherited: %r", what)


os.register_at_fork(after_in_child=_after_fork_in_child)


class ForkGuard:
    """A worker's own handle of its store: every verb passes here, and only in the process that made it.

    An app's handle is another matter: a forked process may well enqueue.
    """

    __slots__ = ("_opened", "_pid")

    def __init__(self, opened: Callable[[], object]) -> None:
        self._opened = opened
        self._pid = os.getpid()

    def __getattr__(self, verb: str) -> Any:
        refuse_if_forked(self._pid)
        return getattr(self._opened(), verb)


def refuse_if_forked(pid: int) -> None:
    """Raise unless this process is `pid`."""
    if os.getpid() != pid:
        raise LeaseLost(f"process {os.getpid()} was forked by a handler: it holds no lease")


def end_if_forked(pid: int) -> None:
    """End this process unless it is `pid`: a handler has forked, and its child came back from it too.

    From here on the child would do the worker's work: report the attempt, and run other jobs.
    """
    if os.getpid() == pid:
        return
    try:
        log.error("a handler forked, and the child (pid %d) returned from it: the child ends here", os.getpid())
    finally:
        os._exit(EXIT_FORKED)
