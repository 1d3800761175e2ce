"""Named points at which a test can stop, kill or pause a real process. Without a test they cost one comparison.

Armed by the environment: `HOLDFAST_POINT=settle.before=kill` or `claim.after=kill:3` (at the third passing).
Actions: `kill` (SIGKILL to this process), `stop` (SIGSTOP to this process), `exit` (leave without cleaning up).
"""

from __future__ import annotations

import os
import signal
import threading

POINTS = (
    "add.before",
    "add.after",
    "key.middle",
    "claim.before",
    "claim.after",
    "handler.before",
    "handler.after",
    "settle.before",
    "settle.after",
    "record.before",
    "record.after",
    "step.before",
    "step.after",
    "undo.before",
    "undo.after",
    "beat.before",
    "end_batch.before",
    "end_batch.after",
    "reap.retired",
    "reap.middle",
    "prune.before",
    "fire.before",
    "fire.after",
    "migrate.middle",
)

_armed: dict[str, list[str]] = {}
for _order in filter(None, os.environ.get("HOLDFAST_POINT", "").split(",")):
    _name, _, _action = _order.partition("=")
    if _name not in POINTS:
        raise ValueError(f"HOLDFAST_POINT: {_name!r} is not one of {', '.join(POINTS)}")
    _armed[_name] = [*_action.split(":"), "1"][:2]


def point(name: str) -> None:
    """Do what a test asked for at this point; nothing otherwise."""
    if _armed and name in _armed:
        _fire(name)


def _fire(name: str) -> None:
    action, left = _armed[name][0], int(_armed[name][1]) - 1
    _armed[name][1] = str(left)
    if left != 0:
        return
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        signal.pthread_kill(
            threading.get_ident(), signal.SIGSTOP
        )  # this thread gets no further; all others stop with it
    elif action == "exit":
        os._exit(70)
    else:
        raise ValueError(f"HOLDFAST_POINT: {action!r} is not one of kill, stop, exit")
