"""The end of a worker, as its row keeps it, so that every reaper settles its jobs in the same way."""

from __future__ import annotations

import signal
from typing import Any

import msgspec

from holdfast.core.records import Detector, ExitKind, Worker


class WorkerExit(msgspec.Struct, frozen=True):
    """The detector, exit code and blame of a worker's end.

    `kind`: who found it; "released" when it was asked to stop, so that its jobs are given back.
    `code`: the exit code of its process, or the negative number of the signal that killed it; None: nobody saw it.
    `excused`: nobody is to blame.
    """

    kind: ExitKind = "vanished"
    code: int | None = None
    excused: bool = False

    @property
    def detector(self) -> Detector | None:
        """Return who found it; None when it was asked to stop: then it is not lost."""
        return None if self.kind == "released" else self.kind


def gone(cause: str, how: WorkerExit | None) -> dict[str, Any]:
    """Return what the row of a worker says of its end."""
    kind, code, excused = (None, None, False) if how is None else (how.kind, how.code, how.excused)
    return {"gone_cause": cause, "exit_kind": kind, "exit_code": code, "exit_excused": excused}


def exit_of(worker: Worker) -> WorkerExit:
    """Return how a worker that is gone has ended, by its row."""
    return WorkerExit(worker.exit_kind or "vanished", worker.exit_code, worker.exit_excused)


def exit_facts(code: int | None) -> dict[str, Any]:
    """Return what the parent of a process saw of its end, for the autopsy."""
    if code is None:
        return {}
    return {"exit_code": code} if code >= 0 else {"signal": _signal_name(-code)}


def how_it_ended(code: int) -> str:
    """Say how a process ended, from its exit code or, negative, the number of the signal."""
    return f"exited with code {code}" if code >= 0 else f"was killed by {_signal_name(-code)}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
