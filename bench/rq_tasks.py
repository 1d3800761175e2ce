"""What the worker of RQ imports."""

from __future__ import annotations

from peerproc import started


def noop() -> None:
    pass


def stamp(sent: float) -> None:
    started(sent)
