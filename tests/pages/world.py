"""A store with jobs in every state, and with markup and script in every text that somebody may have chosen."""

from __future__ import annotations

import json
from urllib.parse import urlencode

from holdfast.acts.store import pause_schedule
from holdfast.acts.workers import order_workers
from holdfast.alerts.notes import AlertNote, MessageNote, RuleNote, encode
from holdfast.alerts.rules import Incident
from holdfast.app import App
from holdfast.core.durations import iso
from holdfast.core.machine import State
from holdfast.core.verdict import Failed
from holdfast.server.pages.page import Page
from holdfast.server.routes import Route
from holdfast.stores.protocol import Store
from tests.factory import a_step, a_worker, add, enrol, job_in, record, settle, start, start_flow

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>'\"&{{7*7}}"
BIG = 9007199254740993123  # JavaScript would round it
# What a page wants to be asked for.
QUERIES = {"/queues/one": {"queue": EVIL}, "/workers/one": {"name": EVIL}, "/schedules/one": {"key": EVIL}}


class World:
    """Jobs in every state; `evil` is the id of one with markup in every field."""

    def __init__(self, app: App) -> None:
        store = app.store
        self.jobs = {
            state: job_in(store, state, queue="mail", payload=f'{{"to": "ann@example.org", "order": {BIG}}}')
            for state in State
        }
        worker = a_worker(name=EVIL, queues=[EVIL], host=EVIL, release=EVIL)
        store.enroll(worker)
        chosen = dict.fromkeys(("task", "queue", "key", "group"), EVIL)
        job = start(store, worker.id, id="evil", payload=json.dumps({EVIL: [EVIL]}), **chosen)
        settle(store, job, Failed(EVIL))
        self.evil = job.id
        now = store.now().wall
        flow = start_flow(store, worker.id, id="flow", queue="flows", task=EVIL, lease_s=600.0)
        times = {"started_at": now - 60, "ended_at": now - 50, "fence": flow.fence}
        steps = (
            a_step(1, name=EVIL, result=json.dumps([EVIL, BIG]), has_undo=True, **times),
            a_step(2, name="charge", error=EVIL, error_kind="ValueError", **times),
            a_step(3, "started", name="ship", repeatable=False, **times | {"ended_at": None}),
        )
        record(store, flow, *steps)
        self.flow = flow.id
        self.error = next(group.fingerprint for group in store.errors(0.0) if group.task == EVIL)
        enrol(store, name="idle", queues=["mail"])
        for number in range(12):
            add(store, queue=f"queue-{number % 3}", task=f"reports.build_{number}")
        report = app.task(name="reports.nightly")(lambda: None)
        for key, spec in ((EVIL, "0 3 * * *"), ("hourly", "@hourly"), ("often", "@every 30s")):
            app.schedule(key, spec, report)
        pause_schedule(store, "hourly", True, EVIL, EVIL)
        order_workers(store, "idle", "drain", "ann", EVIL)
        leave_note(store, EVIL)


def leave_note(store: Store, text: str, *, held_s: float = 600.0) -> None:
    """Leave what a notifier leaves, with this text wherever somebody may have chosen one."""
    now, holder = store.now().wall, f"{text}:1"
    rule = RuleNote(("held", "backlog", "zombie_rate"), {"backlog_s": 600.0, "again_s": 300.0}, ("log", text))
    sent = [
        MessageNote(iso(now - 60), "held", "new", text, task=text, jobs=1),
        MessageNote(iso(now - 50), "backlog", "more", text, queue=text),
        MessageNote(iso(now - 40), "zombie_rate", "over", text),
    ]
    standing = [("held", text, Incident(now - 60, now - 60, 1)), ("zombie_rate", "", Incident(now - 50, now - 9, 1))]
    note = encode([AlertNote(standing, {}, rule, tuple(sent))])
    assert store.acquire("alerts:abc", holder, held_s)
    assert store.acquire("alerts:abc", holder, held_s, note)


def path_of(page: Page | Route, world: World) -> str:
    """Return the path of a page or a form with something to show."""
    query = {"task": EVIL, "error": world.error} if page.path == "/errors/one" else QUERIES.get(page.path)
    shown = world.flow if page.path.startswith("/workflows/") else world.evil
    return page.path.replace("{id}", shown) + (f"?{urlencode(query)}" if query else "")
