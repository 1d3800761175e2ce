"""The worker protocol: a worker in any language, under the fence."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.app import App
from holdfast.core.machine import State
from holdfast.core.verdict import Released
from holdfast.stores.protocol import Reply
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import reap
from tests import factory
from tests.factory import EXPIRED, add, row
from tests.server.client import Client, add_token, code

Serve = Callable[..., Client]


def enrol(client: Client, **given: Any) -> str:
    answer = client.post("/v1/workers", {"name": "edge", "queues": ["default"], "tasks": ["t"], **given})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def claim(client: Client, worker: str, **given: Any) -> Any:
    body = {"worker": worker, "queues": ["default"], "tasks": ["t"], "wait_s": 0, **given}
    answer = client.post("/v1/claim", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def lease(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job[name] for name in ("id", "fence", "claim_id")}


def settle(client: Client, *outcomes: dict[str, Any]) -> list[str]:
    answer = client.post("/v1/settle", {"outcomes": list(outcomes)})
    assert answer.status_code == 200, answer.text
    answers: list[str] = answer.json()["answers"]
    return answers


def test_a_job_is_claimed_beaten_and_settled_once(app: App, client: Client, clock: FakeClock) -> None:
    made, worker = add(app.store, payload='{"a": [1, 2]}'), enrol(client)
    given = claim(client, worker, claim_id="c1")
    [job] = given["jobs"]
    assert (job["id"], job["arguments"], job["attempt"], job["fence"]) == (made.id, {"a": [1, 2]}, 1, 1)
    assert claim(client, worker, claim_id="c1") == given, "a repeated claim gives the same job"
    clock.advance(20)
    beat = client.post("/v1/beat", {"worker": worker, "leases": [{**lease(job), "progress": 0.5, "note": "half"}]})
    assert beat.json() == {"lost": [], "skipped": [], "cancelled": []}
    clock.advance(20)
    assert reap(app.store, clock).zombies == []
    assert (row(app.store, made.id).progress, row(app.store, made.id).note) == (0.5, "half")
    done = {"outcome": "succeeded", "lease": lease(job), "result": {"ok": 2**70}}
    assert settle(client, done) == ["accepted"]
    assert settle(client, done) == ["already"]
    ended = row(app.store, made.id)
    assert (ended.state, ended.result) == (State.DONE, f'{{"ok":{2**70}}}')


@pytest.mark.parametrize(
    ("outcome", "state", "failures"),
    [
        ({"outcome": "failed", "error": "no luck"}, "retrying", 1),
        ({"outcome": "failed", "error": "no luck", "final": True}, "dead", 1),
        ({"outcome": "snoozed", "delay_s": 5}, "scheduled", 0),
        ({"outcome": "released"}, "ready", 0),
    ],
)
def test_the_server_judges_what_a_worker_reports(
    app: App, client: Client, clock: FakeClock, outcome: dict[str, Any], state: str, failures: int
) -> None:
    add(app.store)
    [job] = claim(client, enrol(client))["jobs"]
    assert settle(client, {**outcome, "lease": lease(job)}) == ["accepted"]
    ended = row(app.store, job["id"])
    assert (ended.shown_state(clock.wall()), ended.failures) == (state, failures)
    assert settle(client, {**outcome, "lease": lease(job)})[0] in ("already", "refused")
    assert row(app.store, job["id"]).failures == failures


def test_a_released_hold_job_that_had_begun_is_held(app: App, client: Client) -> None:
    add(app.store, on_crash="hold")
    [job] = claim(client, enrol(client))["jobs"]
    assert settle(client, {"outcome": "released", "lease": lease(job)}) == ["accepted"]
    assert row(app.store, job["id"]).state is State.HELD


def test_a_worker_that_lost_its_lease_is_refused_and_the_report_is_noted(app: App, client: Client) -> None:
    add(app.store)
    worker = enrol(client)
    [old] = claim(client, worker)["jobs"]
    assert factory.settle(app.store, row(app.store, old["id"]), EXPIRED) is Reply.ACCEPTED  # as a reaper does
    [new] = claim(client, enrol(client))["jobs"]
    assert new["fence"] > old["fence"]
    assert client.post("/v1/beat", {"worker": worker, "leases": [lease(old)]}).json()["lost"] == [old["id"]]
    assert settle(client, {"outcome": "succeeded", "lease": lease(old), "result": "old"}) == ["refused"]
    forged = {**lease(new), "claim_id": "guess"}
    assert settle(client, {"outcome": "succeeded", "lease": forged}) == ["refused"]
    assert row(app.store, old["id"]).state is State.RUNNING
    assert settle(client, {"outcome": "succeeded", "lease": lease(new), "result": "new"}) == ["accepted"]
    assert row(app.store, old["id"]).result == '"new"'
    assert any(event.fence == old["fence"] for event in app.store.journal(old["id"], kinds=("stale_report",)))


def test_a_cancelled_job_reaches_its_worker_with_the_beat(app: App, client: Client) -> None:
    add(app.store)
    worker = enrol(client)
    [job] = claim(client, worker)["jobs"]
    app.cancel(job["id"])
    beat = client.post("/v1/beat", {"worker": worker, "leases": [lease(job)]}).json()
    assert beat["cancelled"] == [job["id"]]
    assert settle(client, {"outcome": "cancelled", "lease": lease(job)}) == ["accepted"]
    assert row(app.store, job["id"]).state is State.CANCELLED


def test_a_worker_that_leaves_gives_its_jobs_back_at_no_cost(app: App, client: Client, clock: FakeClock) -> None:
    add(app.store)
    worker = enrol(client)
    [job] = claim(client, worker)["jobs"]
    assert client("DELETE", f"/v1/workers/{worker}").json() == {"id": worker, "retired": True}
    assert client("DELETE", f"/v1/workers/{worker}").json()["retired"] is False
    gone = client.post("/v1/claim", {"worker": worker, "queues": ["default"], "tasks": ["t"]})
    assert code(gone, 409) == "worker_gone"
    assert code(client.post("/v1/beat", {"worker": worker}), 409) == "worker_gone"
    reap(app.store, clock)
    back = row(app.store, job["id"])
    assert (back.state, back.crashes) == (State.READY, 0)


def test_one_job_may_not_come_twice_in_a_batch(app: App, client: Client) -> None:
    add(app.store)
    [job] = claim(client, enrol(client))["jobs"]
    done = {"outcome": "succeeded", "lease": lease(job)}
    assert code(client.post("/v1/settle", {"outcomes": [done, done]}), 422) == "invalid"
    assert settle(client, done, {"outcome": "succeeded", "lease": {**lease(job), "id": "unknown"}}) == [
        "accepted",
        "refused",
    ]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("workers", {"name": "edge", "pid": 2**63}),
        ("workers", {"name": "edge", "queues": ["a\0b"]}),
        ("claim", {"worker": "w", "queues": ["\0"], "tasks": ["t"]}),
        ("claim", {"worker": "w", "queues": ["q"], "tasks": ["\0"]}),
        ("beat", {"worker": "w", "leases": [{"id": "j", "fence": 2**63, "claim_id": "c"}]}),
        ("store/errors", {"since": 0, "limit": 2**63}),
        ("settle", {"outcomes": [{"outcome": "cancelled", "lease": {"id": "j", "fence": 2**63, "claim_id": "c"}}]}),
    ],
)
def test_what_no_store_can_hold_is_refused_and_the_store_is_not_blamed(client: Client, path: str, body: Any) -> None:
    assert code(client.post(f"/v1/{path}", body), 422) == "invalid"


def test_the_acts_of_a_name_that_no_store_can_hold_are_refused(client: Client) -> None:
    assert code(client.get("/v1/audit?by=%00"), 422) == "invalid"


def test_a_token_claims_only_from_its_queues(app: App, serve: Serve) -> None:
    client, secret = serve(needs_token=True), add_token(app, "edge", "worker", ("mail",))
    body = {"name": "w", "queues": ["mail", "other"], "tasks": ["t"]}
    assert code(client.post("/v1/workers", body, token=secret), 404) == "not_found"
    worker = client.post("/v1/workers", {**body, "queues": ["mail"]}, token=secret).json()["id"]
    asked = {"worker": worker, "queues": ["other"], "tasks": ["t"], "wait_s": 0}
    assert code(client.post("/v1/claim", asked, token=secret), 404) == "not_found"


def test_recorded_steps_are_there_for_the_next_attempt_and_never_change(app: App, client: Client) -> None:
    def lease_of(job: Any) -> Any:
        return {"id": job.id, "fence": job.fence, "claim_id": job.claim_id}

    first = factory.start(app.store, factory.enrol(app.store), queue="mail")
    said = {"lease": lease_of(first), "steps": [{"name": "reserve", "result": {"room": 7}}, {"name": "mail"}]}
    reserved = {"name": "reserve", "attempt": 1, "result": {"room": 7}}
    mailed = {"name": "mail", "attempt": 1, "result": None}
    for _ in range(2):
        answer = client.post("/v1/record", said).json()
        assert answer == {"answer": "accepted", "steps": [reserved, mailed]}
    changed = {**said, "steps": [{"name": "reserve", "result": 8}, {"name": "pay", "result": 1}]}
    steps = client.post("/v1/record", changed).json()["steps"]
    assert steps == [reserved, mailed, {"name": "pay", "attempt": 1, "result": 1}]
    assert [step["name"] for step in client.get(f"/v1/jobs/{first.id}").json()["steps"]] == ["reserve", "mail", "pay"]

    factory.settle(app.store, first, Released(True, "gives it back"))
    [second] = app.store.claim(factory.enrol(app.store, queues=["mail"]), "again", ["mail"], [first.task], 1)
    assert client.post("/v1/record", {"lease": lease_of(second)}).json() == {"answer": "accepted", "steps": steps}
    late = client.post("/v1/record", {**said, "steps": [{"name": "late"}]}).json()
    assert late == {"answer": "refused", "steps": []}
    assert len(client.post("/v1/record", {"lease": lease_of(second)}).json()["steps"]) == 3
    assert [event.kind for event in app.store.journal(first.id)].count("stale_report") == 1


# -------------------------------------------------------------------------------------- long polling


@pytest.fixture
def live() -> Iterator[Client]:
    """A server whose clock runs: what waits needs one."""
    app = App("memory://")
    client = Client(app)
    yield client
    client.close()
    app.close()


def test_a_claim_waits_for_a_job_and_gets_it_at_once(live: Client) -> None:
    worker = enrol(live)
    body = {"worker": worker, "queues": ["default"], "tasks": ["t"], "wait_s": 30}
    polling = [live.submit(live.http.post("/v1/claim", json={**body, "claim_id": f"c{at}"})) for at in range(5)]
    deadline = time.monotonic() + 20
    while live.server.polls.waiting < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    for number in range(5):
        add(live.app.store, task="t", id=f"job-{number}")
    got = [poll.result(30).json()["jobs"] for poll in polling]
    assert sorted(job["id"] for [job] in got) == [f"job-{number}" for number in range(5)]


def test_a_claim_that_gets_nothing_ends_with_its_time_or_with_the_server(live: Client) -> None:
    worker = enrol(live)
    began = time.monotonic()
    assert claim(live, worker, wait_s=0.2)["jobs"] == []
    assert time.monotonic() - began >= 0.19
    body = {"worker": worker, "queues": ["default"], "tasks": ["t"], "wait_s": 30}
    poll = live.submit(live.http.post("/v1/claim", json=body))
    while live.server.polls.waiting < 1:
        time.sleep(0.01)
    began = time.monotonic()
    ended = threading.Event()
    poll.add_done_callback(lambda _: ended.set())
    live.wait(live.server.close())
    assert ended.wait(20)
    assert time.monotonic() - began < 20


def test_a_job_that_becomes_due_later_ends_the_wait(live: Client) -> None:
    worker = enrol(live)
    add(live.app.store, task="t", delay_s=0.3)
    [job] = claim(live, worker, wait_s=30)["jobs"]
    assert job["task"] == "t"


@pytest.mark.parametrize("path", ["/v1/claim", "/v1/store/wait"])
@pytest.mark.parametrize("wrong", [{"tasks": ["a\0b"]}, {"queues": ["\0"]}, {"tasks": ["\ud800"]}])
def test_a_name_that_no_store_can_be_asked_for_does_not_stop_the_long_polls_of_others(
    client: Client, path: str, wrong: dict[str, Any]
) -> None:
    body = {"queues": ["default"], "tasks": ["t"], "wait_s": 5, **wrong}
    if path == "/v1/claim":
        body["worker"] = enrol(client)
    content = json.dumps(body).encode()
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert client.server.polls.waiting == 0
