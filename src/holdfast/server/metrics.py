"""`/metrics` of the server: facts of the store from one snapshot, and what this process has counted itself.

A scrape reads the store at most every few seconds, however many ask. While the store fails, the last facts stay, with
their age, and `holdfast_store_up` is 0.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast import insight
from holdfast.core.access import OPERATORS
from holdfast.core.autopsy import silence_of
from holdfast.core.machine import State
from holdfast.core.records import Event, Filter
from holdfast.errors import HoldfastError
from holdfast.runtime.metrics import CONTENT_TYPE, FOLDED, Registry, Series, render
from holdfast.server.call import Call
from holdfast.server.routes import Answer, Route
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.stores.protocol import Store

log = logging.getLogger("holdfast.server")

KEPT_S = 5.0  # how long a snapshot is good for
OVERDUE_MAX = 100
HELD_MAX = 100
EVENTS_MAX = 1_000
KNOWN_MAX = 10_000  # zombies that are remembered, to know their late reports
LATE_S = 60.0  # a transaction may commit an event so long after its instant
_SLOTS = ("busy", "free")


def metrics(call: Call) -> Answer:
    """Answer in Prometheus' text format."""
    server = call.server
    own = server.registry.read()
    own["holdfast_http_streams"] = {(): float(server.feed.streams)}
    own["holdfast_build_info"] = {(__version__, server.app.url.partition(":")[0]): 1.0}
    series, folded = server.facts.read()
    text = render({**own, **series, FOLDED: {(): float(folded + server.registry.folded)}})
    return Answer(content=text.encode(), media_type=CONTENT_TYPE)


class Traffic:
    """Counts the requests of a server."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def count(self, route: Route | None, method: str, status: int, took_s: float) -> None:
        """Count an answered request. Unknown paths and methods are one route."""
        path = "unknown" if route is None else route.path
        method = "other" if route is None else method
        self._registry.inc("holdfast_http_requests_total", path, method, f"{status // 100}xx")
        self._registry.observe("holdfast_http_request_duration_seconds", path, method, value=took_s)
        if route is not None and not route.is_safe and route.roles == OPERATORS:
            result = "ok" if status < 400 else "refused" if status < 500 else "failed"
            self._registry.inc("holdfast_operator_acts_total", route.operation, result)

    def count_refused_token(self) -> None:
        """Count a token that was unknown, revoked or expired."""
        self._registry.inc("holdfast_login_failures_total")


class StoreFacts:
    """The last snapshot of a store."""

    def __init__(self, store: Callable[[], Store], clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._series: Series = {}
        self._folded = 0
        self._at: float | None = None
        self._is_up = False
        self._journal = JournalCounts()

    def read(self) -> tuple[Series, int]:
        """Return facts that are a few seconds old at most, if the store answers; and how many were folded."""
        with self._lock:  # the others wait for the one that reads
            if self._at is None or self._clock() - self._at >= KEPT_S or not self._is_up:
                self._look()
            age_s = 0.0 if self._at is None else max(0.0, self._clock() - self._at)
            more: Series = {"holdfast_store_up": {(): float(self._is_up)}}
            if self._at is not None:
                more["holdfast_snapshot_age_seconds"] = {(): age_s}
            return {**self._series, **self._journal.registry.read(), **more}, self._folded

    def _look(self) -> None:
        began = self._clock()
        found = Registry()
        try:
            store = self._store()
            _look_at_queues(store, found)
            _look_at_workers(store, found)
            _look_at_jobs(store, found)
            _look_at_counters(store, found)
            self._journal.follow(store)
        except HoldfastError as error:
            if self._is_up:
                log.warning("the facts for /metrics could not be read (%s); the last ones stay", error)
            self._is_up = False
            return
        self._series, self._folded, self._at, self._is_up = found.read(), found.folded, began, True


def _look_at_queues(store: Store, found: Registry) -> None:
    wall = store.now().wall
    serving = Counter(queue for worker in store.workers() if worker.is_alive(wall) for queue in worker.queues)
    for view in insight.queue_views(store):
        queue = view["queue"]
        for state in State:
            found.inc("holdfast_jobs", queue, state.value, by=view[state.value])
        found.peak("holdfast_queue_oldest_due_seconds", queue, value=view["oldest_due_s"] or 0.0)
        found.peak("holdfast_queue_paused", queue, value=float(view["paused"]))
        found.inc("holdfast_queue_workers", queue, by=serving[queue])
        if view["limit"] is not None:
            found.inc("holdfast_limit_running", queue, by=view["running"])
            found.inc("holdfast_limit_max", queue, by=view["limit"])
    for schedule in insight.schedule_views(store):
        found.peak("holdfast_schedule_overdue_seconds", schedule["key"], value=schedule["late_s"] or 0.0)


def _look_at_workers(store: Store, found: Registry) -> None:
    for state in ("alive", "stopping", "silent", "vanished", "draining", "drained"):
        found.inc("holdfast_workers", state, by=0)
    for state in _SLOTS:
        found.inc("holdfast_worker_slots", state, by=0)
    for view in insight.worker_views(store):
        found.inc("holdfast_workers", view["state"])
        if view["state"] in ("alive", "stopping", "draining", "drained"):
            found.inc("holdfast_worker_slots", "busy", by=view["running"])
            found.inc("holdfast_worker_slots", "free", by=max(0, view["slots"] - view["running"]))


def _look_at_jobs(store: Store, found: Registry) -> None:
    now = store.now()
    found.put("holdfast_leases_overdue", value=float(len(store.overdue(limit=OVERDUE_MAX))))
    deadline = store.deadline()
    if deadline is not None:
        found.put("holdfast_lease_headroom_min_seconds", value=deadline - now.lease)
    held = store.find(Filter(states=(State.HELD,), limit=HELD_MAX))
    waiting = [now.wall - (job.erred_at or job.claimed_at or job.created_at) for job in held]
    found.put("holdfast_held_oldest_seconds", value=max(0.0, *waiting, 0.0))


def _look_at_counters(store: Store, found: Registry) -> None:
    counters = store.figures.counters()
    for queue, states in counters.ended.items():
        for state, jobs in states.items():
            found.inc("holdfast_jobs_ended_total", queue, state.value, by=jobs)
    for detector, decisions in counters.zombies.items():
        for decision, attempts in decisions.items():
            found.inc("holdfast_zombies_total", detector or "unknown", decision or "unknown", by=attempts)
    found.inc("holdfast_stale_reports_total", by=counters.stale_reports)


class JournalCounts:
    """Counters of the journal's lines as they come, from the start of this server: the store has only the lines."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.registry.inc("holdfast_false_zombies_total", by=0)
        self._since: float | None = None
        self._known: OrderedDict[int, None] = OrderedDict()  # events
        self._lost: OrderedDict[tuple[str, int], None] = OrderedDict()  # attempts

    def follow(self, store: Store) -> None:
        """Count the events since the last call."""
        wall = store.now().wall
        if self._since is None:  # what was there before the start is not news
            self._since = wall
        before: int | None = None
        fresh: list[Event] = []
        while page := store.journal(None, ("zombie", "stale_report"), EVENTS_MAX, since=self._since, before=before):
            fresh += [event for event in page if event.seq not in self._known]
            before = page[0].seq
            if len(page) < EVENTS_MAX or len(fresh) >= KNOWN_MAX:
                break
        for event in sorted(fresh, key=lambda event: (event.kind != "zombie", event.seq)):
            self._known[event.seq] = None
            self._count(event)
        self._since = max(self._since, wall - LATE_S)
        for known in (self._known, self._lost):
            while len(known) > KNOWN_MAX:
                known.popitem(last=False)

    def _count(self, event: Event) -> None:
        attempt = (event.job_id, event.fence)
        if event.kind == "stale_report":
            if self._lost.pop(attempt, 0) is None:
                self.registry.inc("holdfast_false_zombies_total")
            return
        self._lost[attempt] = None
        silent_s = silence_of(event.at, event.detail)
        if silent_s is not None:
            detector = str(event.detail.get("detector", "unknown"))
            self.registry.observe("holdfast_zombie_detection_seconds", detector, value=silent_s)
