"""What the program tells the user's own code: `app.on("zombie", hook)`.

One hook that raises or is slow to fail never stops the others, nor the recovery that it is told about.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from holdfast.errors import UsageError

HookKind = Literal["zombie", "held", "dead", "duty_acquired", "duty_lost", "error"]
Hook = Callable[[Mapping[str, Any]], object]

log = logging.getLogger("holdfast.hooks")


class Hooks:
    """The hooks of one app, by kind."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {}
        self._lock = threading.Lock()

    def on(self, kind: HookKind, hook: Hook) -> Hook:
        """Call `hook` with the event's details whenever one of this kind happens in this process."""
        if kind not in get_args(HookKind):
            known = ", ".join(get_args(HookKind))
            raise UsageError(f"there is no event {kind!r}; known: {known}")
        with self._lock:
            self._hooks.setdefault(kind, []).append(hook)
        return hook

    def emit(self, kind: HookKind, detail: Mapping[str, Any]) -> None:
        """Tell every hook of this kind; never raises."""
        for hook in tuple(self._hooks.get(kind, ())):
            try:
                hook({"kind": kind, **detail})
            except Exception:
                log.exception("a hook for %r raised; the others and the recovery go on", kind)
