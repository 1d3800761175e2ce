"""Call the user's hooks: `app.on("zombie", hook)`.

Hooks run one after the other on a thread of their own. A hook that raises or is slow does not stop other hooks or the
work of the program. When too many events wait for a slow hook, the newest are dropped and logged.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

from holdfast.core.labels import meta_of
from holdfast.core.records import Job
from holdfast.core.verdict import Verdict
from holdfast.errors import UsageError
from holdfast.runtime.tracebacks import FRAMES_MAX, describe, logged, user_frames

HookKind = Literal["zombie", "held", "dead", "duty_acquired", "duty_lost", "error"]
Hook = Callable[[Mapping[str, Any]], object]

log = logging.getLogger("holdfast.hooks")

WAITING_MAX = 10_000  # events that wait for slow hooks


class Hooks:
    """The hooks of one app, by kind."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {}
        self._lock = threading.Lock()
        self._events: queue.Queue[Mapping[str, Any]] = queue.Queue(WAITING_MAX)
        self._thread: threading.Thread | None = None

    def on(self, kind: HookKind, hook: Hook) -> Hook:
        """Call `hook` with the event's details, soon, whenever one of this kind happens in this process."""
        if kind not in get_args(HookKind):
            known = ", ".join(get_args(HookKind))
            raise UsageError(f"there is no event {kind!r}; known: {known}")
        with self._lock:
            self._hooks.setdefault(kind, []).append(hook)
        return hook

    def emit(self, kind: HookKind, detail: Mapping[str, Any]) -> None:
        """Tell every hook of this kind, soon; never raises and never waits."""
        if kind not in self._hooks:
            return
        try:
            self._events.put_nowait({"kind": kind, **detail})
        except queue.Full:
            log.error("dropped a %r event, because %d events wait for slow hooks: %s", kind, WAITING_MAX, detail)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # it does not survive a fork
                self._thread = threading.Thread(target=self._serve, name="holdfast-hooks", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError as error:  # the system gives no more threads
                    log.error("hooks are not called for now (%s); the next event tries again", error)

    def tell(self, job: Job, verdict: Verdict) -> None:
        """Emit what a settled verdict says of a job: that it was a zombie, that it is held or dead."""
        for event in verdict.events:
            if event.kind in ("zombie", "held", "dead"):
                about = {"id": job.id, "task": job.task, "queue": job.queue, "state": verdict.state.value}
                meta = {} if job.meta is None else {"meta": meta_of(job.meta)}
                self.emit(event.kind, {**about, **meta, **event.detail})

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until every hook was called; False when the time was up first."""
        with self._events.all_tasks_done:
            return self._events.all_tasks_done.wait_for(lambda: self._events.unfinished_tasks == 0, timeout_s)

    def _serve(self) -> None:
        while True:
            event = self._events.get()
            for hook in tuple(self._hooks.get(event["kind"], ())):
                try:
                    hook(event)
                except BaseException as error:  # sys.exit in a hook ends nothing but the hook
                    what = "a hook for %r raised; the others continue: %s"
                    log.error(what, event["kind"], logged(describe(error), user_frames(error, FRAMES_MAX)))
            self._events.task_done()
