"""The exit codes of a worker process, and what its supervisor does about each. No other module decides this."""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from holdfast.core.worker_exit import how_it_ended

EXIT_UNUSABLE = 2  # it could not load the app
EXIT_STUCK = 75  # a handler would not stop at the end; it was given back
EXIT_FENCED = 76  # a handler would not stop before its lease ended
EXIT_TOO_OLD = 77  # for the schema of the store; nothing was left behind
EXIT_BROKEN = 78  # it has lost a thread that it cannot do without; an isolated process as well
EXIT_UNSUPPORTED = 79  # no worker can use the store as it is set up; nothing was left behind
EXIT_LOCKED = 80  # a handler left a transaction of its own open, and no process could write
EXIT_REPLACED = 81  # the store's file, or its -wal or -shm file, was replaced: only a new process can use it

YOUNG_S = 10.0  # a child that dies before this age is restarted more slowly
RESTART_S = 0.1  # after a long life; twice as much after each death of a young child
RESTART_MAX_S = 30.0
LOOP_LEAST = 3  # young deaths in a row that are called a crash loop

_WORDS = {
    EXIT_STUCK: ": handlers did not stop, or results could not be saved",
    EXIT_TOO_OLD: ": it is too old for the schema of the store",
    EXIT_FENCED: ": no beat had reached the store in time",
    EXIT_BROKEN: ": a required thread had died",
    EXIT_LOCKED: ": a handler had left a transaction of its own open",
    EXIT_REPLACED: ": the file of the store, or its -wal or -shm file, was replaced",
    EXIT_UNSUPPORTED: ": no worker can use the store as it is set up",
}


class Next(Enum):
    """The supervisor's next act, once the jobs of a child are settled."""

    RESTART = auto()
    CHECK_SCHEMA = auto()  # if it is too new for this program, leave; otherwise restart
    LEAVE = auto()  # another child would find the same store


class Restart(NamedTuple):
    """The start of the next child. `young`: how many in a row died soon after their start."""

    young: int
    pause_s: float

    @property
    def is_crash_loop(self) -> bool:
        return self.young >= LOOP_LEAST


def is_given_back(code: int | None, *, stopping: bool) -> bool:
    """Say whether a child left in good order, so that its jobs are released and none counts as crashed."""
    return code in (EXIT_STUCK, EXIT_TOO_OLD) or (stopping and code == 0)


def is_excused(code: int | None) -> bool:
    """Say whether no job of a child is to blame for its end: the store did not take its heartbeats in time."""
    return code == EXIT_FENCED


def next_act(code: int | None, *, enrolled: bool) -> Next:
    """Return what the supervisor does next. One that had enrolled could use the store, which may have changed since."""
    if code == EXIT_TOO_OLD:
        return Next.CHECK_SCHEMA
    return Next.LEAVE if code == EXIT_UNSUPPORTED and not enrolled else Next.RESTART


def restart_after(young: int, lived_s: float) -> Restart:
    """Return when to start the next child, after `young` early deaths in a row and a child that lived this long."""
    young = 0 if lived_s > YOUNG_S else young + 1
    return Restart(young, min(RESTART_S * 2.0 ** min(young, 64), RESTART_MAX_S))


def how_a_child_ended(code: int | None, *, silent: bool, enrolled: bool) -> str:
    """Say how a child ended. Its own codes get words: people meet them in the journal, in alerts and in the log."""
    if code is None:
        return "ended, and its exit code is not known"
    if code == EXIT_UNUSABLE and not enrolled:
        return "could not load the app; it has logged the reason"
    if silent:
        return f"{how_it_ended(code)}: it was alive but did not beat, so its supervisor ended it"
    return how_it_ended(code) + _WORDS.get(code, "")
