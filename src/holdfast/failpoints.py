"""Named points at which a test can stop, kill or pause a real process. Without a test they cost one comparison.

Armed by the environment: `HOLDFAST_POINT=settle.before=kill` or `claim.after=kill:3` (at the third passing).
Actions: `kill` (SIGKILL to this process), `stop` (SIGSTOP to this process), `exit` (leave without cleaning up).
`watch` calls a function at every point of this process.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

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
    "dependents.before",
    "reap.retired",
    "reap.middle",
    "prune.before",
    "fire.before",
    "fire.after",
    "migrate.middle",
    "copy.page",
    "copy.passed",
    "copy.settled",
    "effect.after",
    "rescue.middle",
)

_armed: dict[str, list[str]] = {}
for _order in filter(None, os.environ.get("HOLDFAST_POINT", "").split(",")):
    _name, _, _action = _order.partition("=")
    if _name not in POINTS:
        raise ValueError(f"HOLDFAST_POINT: {_name!r} is not one of {', '.join(POINTS)}")
    _armed[_name] = [*_action.split(":"), "1"][:2]


_watchers: list[Callable[[str, str], None]] = []


def point(name: str, about: str = "") -> None:
    """Do what a test asked for at this point; nothing otherwise.

    `about`: the step, or the note of `ctx.progress()`, whose point only watchers see.
    """
    if _watchers:
        for watcher in tuple(_watchers):
            watcher(name, about)
    if _armed and name in _armed:
        _fire(name)


def watch(watcher: Callable[[str, str], None]) -> Callable[[], None]:
    """Call this with the name of each point, and with what it is about, until the function that is returned is called.

    It may raise, to end the attempt that passes.
    """
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)


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
