"""Delay interrupts while a thread holds locks of the store or of `logging`.

A handler in a thread is stopped by an exception that is raised in it at any bytecode. If that bytecode lies between
taking a lock and giving it back, the lock is lost, and with it the whole process. So the store shields these stretches:
an interrupt that comes meanwhile waits, and is raised when the stretch ends or at a place that the store says is safe.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
from typing import Any


class _Thread:
    """The interrupts of one thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # the interrupting thread and the thread that enters a shield agree under it
        self.depth = 0
        self.waiting: type[BaseException] | None = None
        self.was_raised = False  # an interrupt was raised in the thread; it may not have hit yet


class _Flushed(BaseException):
    """Takes the place of an interrupt that is taken back."""


_threads: dict[int, _Thread] = {}


def interrupt(thread: int, signal: type[BaseException]) -> None:
    """Raise `signal` in the thread: at its next bytecode, or at the end of its shield."""
    state = _of(thread)
    with state.lock:
        if state.depth:
            state.waiting = signal
        else:
            state.was_raised = True
            _raise_in(thread, signal)


def clear_interrupt() -> None:
    """Take back an interrupt that has not hit this thread yet. Costs nothing when there was none.

    Asking CPython to forget a pending exception (`PyThreadState_SetAsyncExc` with NULL) leaves its "something is
    pending" flag set for the rest of the process: every call gets slower, and tracing on Python 3.11 never gets past
    it. So the interrupt is replaced by an exception that is raised and caught right here, which clears the flag.
    """
    state = _of(threading.get_ident())
    with state.lock:
        state.waiting = None
        if not state.was_raised:
            return
        state.was_raised = False
        try:
            _raise_in(threading.get_ident(), _Flushed)
            while True:
                _let_it_hit()
        except _Flushed:
            return


class Shield:
    """Holds interrupts off until the end of the block. Every call of the store has one, and a generator costs more."""

    __slots__ = ("_depth",)

    def __enter__(self) -> None:
        self._depth = depth = _of(threading.get_ident()).depth
        try:
            _set_depth(depth + 1)
            _let_it_hit()  # one that was raised before the shield was up
        except BaseException:
            _set_depth(depth)
            raise

    def __exit__(self, *_: object) -> None:
        _set_depth(self._depth)


def shielded() -> Shield:
    """Hold interrupts off until the end of the block. May be nested."""
    return Shield()


def shield_logging() -> None:
    """Hold interrupts off while a thread has a lock of `logging`, whose handlers take theirs by a call: an interrupt
    that comes right after it would leave the handler locked for ever. Newer versions of Python use `with`, which is
    safe by itself."""
    global _shields_logging
    with _patching:
        if _shields_logging:
            return
        _shields_logging = True
        _shield_lock(logging.Handler, "acquire", "release")
        if hasattr(logging, "_acquireLock"):  # up to Python 3.12
            _shield_lock(logging, "_acquireLock", "_releaseLock")


def _shield_lock(owner: object, acquire: str, release: str) -> None:
    take, give_back = getattr(owner, acquire), getattr(owner, release)

    @functools.wraps(take)
    def shielded_take(*args: Any) -> None:
        depth = _of(threading.get_ident()).depth
        try:
            _set_depth(depth + 1)
            _let_it_hit()
            take(*args)
        except BaseException:
            _set_depth(depth)
            raise

    @functools.wraps(give_back)
    def shielded_give_back(*args: Any) -> None:
        try:
            give_back(*args)
        finally:
            _set_depth(max(0, _of(threading.get_ident()).depth - 1))  # it may have been taken before it was shielded

    setattr(owner, acquire, shielded_take)
    setattr(owner, release, shielded_give_back)


_patching = threading.Lock()
_shields_logging = False


def _set_depth(depth: int) -> None:
    """Say in how many shields this thread is. Outside of all of them, raise the interrupt that waited."""
    state = _of(threading.get_ident())
    with state.lock:
        state.depth = depth
        waiting = None if depth else state.waiting
        if waiting is not None:
            state.waiting = None
    if waiting is not None:
        raise waiting


def raise_pending() -> None:
    """Raise an interrupt that waits; for places inside a shield that hold nothing."""
    state = _of(threading.get_ident())
    with state.lock:
        waiting, state.waiting = state.waiting, None
    if waiting is not None:
        raise waiting


def _of(thread: int) -> _Thread:
    return _threads.get(thread) or _threads.setdefault(thread, _Thread())


def _let_it_hit() -> None:
    """Do nothing: the interpreter raises what is pending when a function is entered."""


def _raise_in(thread: int, signal: type[BaseException]) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(signal))
