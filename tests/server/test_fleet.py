"""Queues, schedules, workflows, chores and the stream of events over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.app import App
from holdfast.core.access import User
from holdfast.core.batches import Batch
from holdfast.core.machine import State
from holdfast.core.records import Schedule
from holdfast.core.schedule import every
from holdfast.core.verdict import Failed, Succeeded
from holdfast.core.worker_exit import WorkerExit
from holdfast.testing import FakeClock
from holdfast.workflow.flow import Flow
from tests.factory import add, enrol, job_in, make_job, row, settle, start
from tests.server.client import PEER, Client, add_token, code
from tests.server.listener import Listener, connected

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
    assert code(client("PATCH", "/v1/limits", {"queue": "mail", "group_rate": "5/s"}), 422) == "invalid"
    assert code(client.post("/v1/queues/pause", {"queue": "mail", "until": "2030-01-01T00:00:00"}), 422) == "invalid"


def test_workers_of_a_name_are_drained_stopped_and_resumed(app: App, client: Client) -> None:
    worker = enrol(app.store, name="box", queues=["mail"])
    for act in ("drain", "stop"):
        answer = client.post(f"/v1/workers/{act}", {"name": "box", "note": "deploy"})
        assert answer.json() == {"name": "box", "order": act, "workers": [worker]}
        assert [(order.name, order.act) for order in app.store.orders()] == [("box", act)]
    assert client.post("/v1/workers/resume", {"name": "box"}).json() == {"names": ["box"]}
    assert app.store.orders() == []
    assert code(client.post("/v1/workers/drain", {"name": "nobody"}), 404) == "not_found"


def test_limits_and_dead_workers_are_in_the_audit(app: App, client: Client) -> None:
    client("PATCH", "/v1/limits", {"queue": "mail", "limit": 3, "note": "the relay is slow"})
    worker = enrol(app.store, name="box", queues=["mail"])
    assert client.post(f"/v1/workers/{worker}/gone", {}).json() == {"id": worker, "retired": True}
    items = client.get("/v1/audit").json()["items"]
    told = [(each["act"], each["about"], each["name"], each["note"]) for each in items]
    assert told == [("forget", "worker", "box", None), ("limit", "queue", "mail", "the relay is slow")]


def test_batches_are_listed_and_shown(app: App, client: Client) -> None:
    app.store.batches.open(Batch(id="b1"))
    app.store.batches.add("b1", [make_job(id="a"), make_job(id="b")])
    shown = client.get("/v1/batches/b1").json()
    assert (shown["id"], shown["state"]) == ("b1", "open")
    assert client.get("/v1/batches").json() == {"items": [shown]}
    assert code(client.get("/v1/batches/none"), 404) == "not_found"


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


@pytest.fixture
def live() -> Iterator[Client]:
    """A server whose clock runs."""
    app = App("memory://")
    client = Client(app)
    yield client
    client.close()
    app.close()


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


def test_a_logout_ends_the_cookie_and_its_streams(app: App, serve: Serve, clock: FakeClock) -> None:
    client = serve(needs_token=True)
    secret = add_token(app, "ann", "viewer")

    def login() -> dict[str, str]:
        answer = client.post("/v1/login", {"token": secret})
        client.http.cookies.clear()
        clock.advance(1)  # the next cookie is another one
        return {"cookie": answer.headers["set-cookie"].partition(";")[0], "origin": "http://localhost"}

    here, elsewhere, bearer = login(), login(), {"authorization": f"Bearer {secret}"}
    streams = [Listener(client, here), Listener(client, elsewhere), Listener(client, bearer)]
    for each in streams:
        each.until(connected)
    assert client.post("/v1/logout", headers=here).status_code == 200
    client.http.cookies.clear()
    assert client.get("/v1/me", headers=here).status_code == 401
    clock.advance(3)
    streams[0].until(lambda each: each.ended)
    assert client.get("/v1/me", headers=elsewhere).json()["name"] == "ann"
    clock.advance(12 * 3600)
    streams[1].until(lambda each: each.ended)
    assert not streams[2].ended, "a program has not logged in"
    streams[2].leave()


def test_a_stream_ends_when_its_token_gets_another_role(app: App, client: Client, clock: FakeClock) -> None:
    secret = add_token(app, "ann", "viewer")
    listener = Listener(client, {"authorization": f"Bearer {secret}"})
    listener.until(connected)
    app.store.tokens.revoke("ann")
    add_token(app, "ann", "worker")
    clock.advance(3)
    listener.until(lambda each: each.ended)


def test_a_stream_ends_when_the_host_application_no_longer_knows_its_user(
    app: App, serve: Serve, clock: FakeClock
) -> None:
    known = [User("carol", "viewer")]
    client = serve(user=lambda _: known[0] if known else None)
    listener = Listener(client, {})
    listener.until(connected)
    known.clear()
    clock.advance(3)
    listener.until(lambda each: each.ended)


def test_the_request_that_shows_life_ends_with_its_token(live: Client) -> None:
    worker, secret = enrol(live.app.store), add_token(live.app, "edge", "worker")
    listener = Listener(live, {"authorization": f"Bearer {secret}"}, path=f"/v1/workers/{worker}/alive", peer=PEER)
    listener.until(lambda each: each.status == 200)
    began = time.monotonic()
    live.app.store.tokens.revoke("edge")
    listener.until(lambda each: each.ended)
    assert time.monotonic() - began < 20


def test_a_waiting_claim_gets_nothing_once_its_token_is_revoked(app: App, client: Client, clock: FakeClock) -> None:
    worker, secret = enrol(app.store), add_token(app, "edge", "worker")
    body = {"worker": worker, "queues": ["default"], "tasks": ["t"], "wait_s": 30}
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    waiting = Listener(client, headers, path="/v1/claim", method="POST", body=json.dumps(body).encode())
    deadline = time.monotonic() + 30
    while not client.server.polls.waiting:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    app.store.tokens.revoke("edge")
    clock.advance(3)
    job = add(app.store)
    app.store.wake()
    waiting.until(lambda each: each.ended)
    assert waiting.status == 401
    assert row(app.store, job.id) == job


def test_workflows_are_listed_by_pages_and_errors_by_their_fingerprint(app: App, client: Client) -> None:
    flows = [add(app.store, workflow=True).id for _ in range(3)]
    add(app.store)
    page = client.get("/v1/workflows?limit=2")
    assert [each["id"] for each in page.json()["items"]] == flows[:0:-1]
    link = page.headers["link"].partition(">")[0].removeprefix("<")
    assert [each["id"] for each in client.get(link).json()["items"]] == flows[:1]
    for number in (1, 2):
        job = start(app.store, task="fails")
        settle(app.store, job, Failed(f"ValueError: no order {number}"))
    [group] = client.get("/v1/errors").json()["items"]
    assert (group["task"], group["attempts"]) == ("fails", 2)
    assert client.get("/v1/errors?task=other").json()["items"] == []


def test_series_show_what_ended_in_the_queues_that_the_user_sees(app: App, client: Client) -> None:
    settle(app.store, start(app.store, queue="mail"), Succeeded())
    settle(app.store, start(app.store, queue="media"), Succeeded())
    view = client.get("/v1/series?window=day&queue=mail").json()
    assert (view["total"]["done"], view["points"][-1]["done"], len(view["points"])) == (1, 1, 96)
    assert sorted(view["queues"]) == ["mail", "media"]
    assert client.get("/v1/series?window=month").status_code == 422
