"""Queues, schedules, workflows, chores and the stream of events over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.app import App
from holdfast.core.machine import State
from holdfast.core.records import Schedule
from holdfast.core.schedule import every
from holdfast.core.worker_exit import WorkerExit
from holdfast.testing import FakeClock
from holdfast.workflow.flow import Flow
from tests.factory import add, enrol, job_in, make_job, row, start
from tests.server.client import Client, add_token, code

Serve = Callable[..., Client]


def test_a_queue_is_paused_resumed_and_limited(app: App, client: Client) -> None:
    add(app.store, queue="mail")
    assert client.post("/v1/queues/pause", {"queue": "mail"}).json()["paused"] is True
    [view] = client.get("/v1/queues").json()["items"]
    assert (view["queue"], view["paused"], view["ready"]) == ("mail", True, 1)
    client.post("/v1/queues/resume", {"queue": "mail"})
    assert app.store.paused() == []
    set_to = client("PATCH", "/v1/limits", {"queue": "mail", "limit": 3, "rate": "5/60s"}).json()
    assert (set_to["limit"], set_to["rate"]) == (3, "5/60s")
    kept = client("PATCH", "/v1/limits", {"queue": "mail", "rate": None}).json()
    assert (kept["limit"], kept["rate"]) == (3, None)
    [limits] = client.get("/v1/limits").json()["items"]
    assert (limits["queue"], limits["running"], limits["limit"]) == ("mail", 0, 3)
    assert code(client("PATCH", "/v1/limits", {"queue": "mail", "rate": "often"}), 422) == "invalid"
    assert code(client.post("/v1/queues/pause", {"queue": "mail", "until": "2030-01-01T00:00:00"}), 422) == "invalid"


def test_a_schedule_is_paused_resumed_and_fired(app: App, client: Client) -> None:
    app.store.declare([Schedule(key="s/1", spec=every(60), tz="UTC", job=make_job(id="", key="one"))])
    assert client.post("/v1/schedules/pause", {"key": "s/1"}).json() == {"key": "s/1", "paused": True}
    assert app.store.schedules()[0].paused
    client.post("/v1/schedules/resume", {"key": "s/1"})
    assert client.get("/v1/schedules").json()["items"][0]["paused"] is False
    first, second = (client.post("/v1/schedules/fire", {"key": "s/1"}) for _ in range(2))
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["id"] == second.json()["id"]
    assert code(client.post("/v1/schedules/fire", {"key": "none"}), 404) == "not_found"


def test_a_workflow_is_shown_signalled_and_rolled_back(app: App, client: Client) -> None:
    waiting = job_in(app.store, State.WAITING, workflow=True)
    sent = [client.post(f"/v1/jobs/{waiting.id}/signals", {"name": "go", "value": 1, "id": "s1"}) for _ in range(2)]
    assert [answer.json()["answer"] for answer in sent] == ["accepted", "already"]
    shown = client.get(f"/v1/workflows/{waiting.id}").json()
    assert (shown["id"], shown["steps"]) == (waiting.id, [])
    plain = add(app.store)
    assert code(client.get(f"/v1/workflows/{plain.id}"), 404) == "not_found"
    assert code(client.post(f"/v1/jobs/{plain.id}/signals", {"name": "go"}), 409) == "state_changed"
    dead = job_in(app.store, State.DEAD, workflow=True)
    undone = client.post(f"/v1/workflows/{dead.id}/rollback", {"fence": dead.fence})
    assert undone.status_code == 200
    assert row(app.store, dead.id).rolling_back


def test_a_reap_finds_lost_jobs_and_a_dry_run_changes_nothing(app: App, client: Client) -> None:
    worker = enrol(app.store)
    job = start(app.store, worker, on_crash="hold")
    app.store.retire(worker, "killed", how=WorkerExit("exit"))
    dry = client.post("/v1/reap", {"dry_run": True}).json()
    assert (dry["zombies_found"], dry["zombies_recovered"], dry["held"]) == (1, 0, 1)
    assert row(app.store, job.id).state is State.RUNNING
    done = client.post("/v1/reap", headers={"content-type": "application/json"}).json()
    assert (done["zombies_recovered"], done["held"]) == (1, 1)
    assert row(app.store, job.id).state is State.HELD
    assert client.get("/v1/zombies").json()["zombies"] == 1
    [event] = client.get("/v1/journal", params={"kinds": "zombie"}).json()["items"]
    assert event["job"] == job.id


def test_stats_have_a_path_for_autoscalers(app: App, client: Client) -> None:
    add(app.store, queue="mail")
    stats = client.get("/v1/stats").json()
    assert stats["queues"]["mail"]["ready"] == 1
    assert stats["slots"] == 0


def test_the_journal_goes_back_by_number(app: App, client: Client) -> None:
    job = add(app.store)
    for at in range(5):
        app.store.pause("q", at % 2 == 0, actor="ann")
    app.cancel(job.id)
    newest = client.get("/v1/journal", params={"limit": 2}).json()
    older = client.get("/v1/journal", params={"limit": 2, "before": newest["before"]}).json()
    numbers = [each["seq"] for each in older["items"] + newest["items"]]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 4
    assert newest["items"][-1]["kind"] == "cancelled"


def test_a_tick_needs_an_app_and_runs_what_is_due(clock: FakeClock) -> None:
    app = App("memory://")
    ran: list[int] = []

    @app.task(name="note")
    def note(n: int) -> None:
        ran.append(n)

    without, client = Client(app, has_app=False), Client(app)
    try:
        assert code(without.post("/v1/tick", {"budget_s": 5}), 409) == "no_app"
        assert client.post("/v1/jobs", {"task": "note", "args": [7]}).status_code == 201
        report = client.post("/v1/tick", {"budget_s": 20}).json()
        assert (ran, report["settled"], report["finished"]) == ([7], 1, True)
        assert code(client.post("/v1/tick", {"budget_s": 51}), 422) == "invalid"
    finally:
        client.close()
        without.close()
        app.close()


def test_a_server_with_an_app_publishes_its_tasks(app: App, serve: Serve) -> None:
    @app.workflow(name="checkout", queue="shop")
    def checkout(flow: Flow, order: int) -> None: ...

    assert serve().get("/v1/tasks").json()["items"][0]["task"] == "checkout"


# ---------------------------------------------------------------------------------------------- events


class Listener:
    """Reads a stream of events from the application itself: httpx would wait for its end."""

    def __init__(self, client: Client, headers: dict[str, str], query: str = "") -> None:
        self.text = ""
        self.status: int | None = None
        self.ended = False
        self._leave = asyncio.Event()
        self._client = client
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/v1/events",
            "query_string": query.encode(),
            "scheme": "http",
            "client": ("127.0.0.1", 1),
            "headers": [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()],
        }
        self._work = client.submit(self._run(scope))

    async def _run(self, scope: dict[str, Any]) -> None:
        async def receive() -> dict[str, Any]:
            await self._leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
            self.text += message.get("body", b"").decode()

        await self._client.server(scope, receive, send)
        self.ended = True

    def until(self, condition: Callable[[Listener], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition(self):
            assert time.monotonic() < deadline, self.text
            time.sleep(0.01)

    def leave(self) -> None:
        self._client._loop.call_soon_threadsafe(self._leave.set)
        self._work.result(30)


@pytest.fixture
def live() -> Iterator[Client]:
    """A server whose clock runs."""
    app = App("memory://")
    client = Client(app)
    yield client
    client.close()
    app.close()


def connected(listener: Listener) -> bool:
    return ": connected" in listener.text and listener._client.server.feed.has_begun


def test_events_arrive_and_are_resumed_by_their_number(live: Client) -> None:
    store, app = live.app.store, live.app
    jobs = [add(store).id for _ in range(4)]
    app.cancel(jobs[0])  # before the stream: not news
    first = Listener(live, {})
    first.until(connected)
    app.cancel(jobs[1])
    first.until(lambda each: jobs[1] in each.text)
    assert jobs[0] not in first.text
    assert "event: cancelled" in first.text
    first.leave()
    [number] = [line.removeprefix("id: ") for line in first.text.splitlines() if line.startswith("id: ")]
    app.cancel(jobs[2])
    second = Listener(live, {"last-event-id": number})
    second.until(lambda each: jobs[2] in each.text and connected(each))
    app.cancel(jobs[3])
    second.until(lambda each: jobs[3] in each.text)
    assert jobs[1] not in second.text
    assert second.text.count(jobs[2]) == 1
    second.leave()
    deadline = time.monotonic() + 20
    while live.server.feed.streams and time.monotonic() < deadline:
        time.sleep(0.01)
    assert live.server.feed.streams == 0


def test_a_stream_obeys_scope_and_kinds_and_ends_with_its_token(live: Client) -> None:
    app, store = live.app, live.app.store
    mine, other, held = add(store, queue="mail").id, add(store, queue="other").id, add(store, queue="mail").id
    secret = add_token(app, "ann", "viewer", ("mail",))
    listener = Listener(live, {"authorization": f"Bearer {secret}"}, "kinds=cancelled")
    listener.until(connected)
    live.post(f"/v1/jobs/{held}/hold", {})
    app.cancel(other)
    app.cancel(mine)
    listener.until(lambda each: mine in each.text)
    assert other not in listener.text
    assert held not in listener.text
    began = time.monotonic()
    store.tokens.revoke("ann")
    listener.until(lambda each: each.ended)
    assert time.monotonic() - began < 20


def test_a_stream_ends_with_the_server(live: Client) -> None:
    listener = Listener(live, {})
    listener.until(connected)
    live.wait(live.server.close())
    listener.until(lambda each: each.ended)
