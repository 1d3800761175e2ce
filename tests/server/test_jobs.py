"""Jobs over HTTP: enqueue by name, lists, acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.app import App
from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.machine import State
from holdfast.enqueueing.by_name import publish
from holdfast.testing import FakeClock
from tests.factory import add, enrol, job_in, park, row, start, start_flow
from tests.server.client import Client, add_token, code

Serve = Callable[..., Client]


@pytest.fixture(autouse=True)
def published(app: App, clock: FakeClock) -> None:
    """Another program, whose worker has published its tasks into the same store."""
    other = App("memory://", clock=clock)

    @other.task(name="charge", queue="money", on_crash="hold", lease_s=60)
    def charge(order: int, cents: int = 5) -> None: ...

    publish(app.store, other.tasks)


def test_an_enqueue_takes_policy_and_checks_from_the_published_task(app: App, client: Client) -> None:
    made = client.post("/v1/jobs", {"task": "charge", "kwargs": {"order": 7}, "priority": 3, "group": "acme"})
    assert made.status_code == 201
    view = made.json()
    assert (view["queue"], view["on_crash"], view["state"], view["existed"]) == ("money", "hold", "ready", False)
    assert made.headers["location"] == f"/v1/jobs/{view['id']}"
    stored = row(app.store, view["id"])
    assert (stored.lease_s, stored.priority, stored.group, stored.payload) == (60, 3, "acme", '{"order":7}')
    assert client.post("/v1/jobs", {"task": "charge", "args": [8, 9]}).status_code == 201


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({"task": "unheard"}, "unknown_task"),
        ({"task": "charge", "kwargs": {"order": "x"}}, "invalid"),
        ({"task": "charge", "kwargs": {}}, "invalid"),
        ({"task": "charge", "args": [1], "kwargs": {}}, "invalid"),
        ({"task": "charge", "args": [1], "strange": 1}, "invalid"),
        ({"task": "charge", "args": [1], "on_crash": "explode"}, "invalid"),
        ({"task": "charge", "args": [1], "run_at": "2030-01-01T00:00:00"}, "invalid"),
        ({"task": "charge", "args": [1], "delay_s": -1}, "invalid"),
        ({"task": "charge", "args": [1], "id": "a b"}, "invalid"),
        ({"task": "charge", "args": [1], "key": "\0"}, "invalid"),
        ({"task": "charge", "args": [1], "priority": 2**70}, "invalid"),
        ({}, "invalid"),
        ([], "invalid"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_stored(app: App, client: Client, body: Any, problem: str) -> None:
    assert code(client.post("/v1/jobs", body), 422) == problem
    assert app.store.counts() == {}


def test_a_task_that_no_worker_has_published_needs_its_policy(app: App, client: Client) -> None:
    made = client.post("/v1/jobs", {"task": "unheard", "kwargs": {"n": 1}, "on_crash": "fail", "queue": "q"})
    assert made.status_code == 201
    assert row(app.store, made.json()["id"]).on_crash == "fail"


def test_an_enqueue_may_be_repeated_by_id_key_and_header(app: App, client: Client) -> None:
    body = {"task": "charge", "args": [1], "id": "order-1"}
    assert [client.post("/v1/jobs", body).status_code for _ in range(2)] == [201, 200]
    assert code(client.post("/v1/jobs", {**body, "args": [2]}), 422) == "id_reused"
    keyed = {"task": "charge", "args": [3], "key": "k"}
    first, second = client.post("/v1/jobs", keyed), client.post("/v1/jobs", {**keyed, "args": [4]})
    assert (first.status_code, second.status_code, second.json()["id"]) == (201, 200, first.json()["id"])
    plain = {"task": "charge", "args": [5]}
    answers = [client.post("/v1/jobs", plain, headers={"idempotency-key": "abc"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert code(client.post("/v1/jobs", {**plain, "args": [6]}, headers={"idempotency-key": "abc"}), 422) == "id_reused"
    assert code(client.post("/v1/jobs", {**plain, "id": "x"}, headers={"idempotency-key": "y"}), 422) == "invalid"
    assert app.counts()["ready"] == 3


def test_the_header_of_one_user_is_not_that_of_another(app: App, client: Client) -> None:
    body, headers = {"task": "charge", "args": [1]}, {"idempotency-key": "abc"}
    for name in ("ann", "bob"):
        assert client.post("/v1/jobs", body, headers=headers, token=add_token(app, name)).status_code == 201


def test_the_span_of_the_caller_travels_with_the_job(app: App, client: Client) -> None:
    span = f"00-{'a' * 32}-{'b' * 16}-01"
    body = {"task": "t", "on_crash": "retry", "meta": {"tenant": "acme"}}
    for given, kept in ((span, {"tenant": "acme", "traceparent": span}), ("nonsense", {"tenant": "acme"})):
        made = client.post("/v1/jobs", body, headers={"traceparent": given}).json()
        assert made["meta"] == kept
        assert app.get(made["id"]).meta == kept


def test_many_are_stored_all_or_none(app: App, client: Client) -> None:
    good = {"task": "charge", "args": [1]}
    refused = client.post("/v1/jobs/bulk", {"jobs": [good, {"task": "charge", "args": ["x"]}]})
    assert code(refused, 422) == "invalid"
    assert refused.json()["errors"][0]["pointer"] == "/jobs/1"
    assert app.store.counts() == {}
    made = client.post("/v1/jobs/bulk", {"jobs": [{**good, "id": f"n{at}"} for at in range(1000)]})
    assert [item["id"] for item in made.json()["items"]] == [f"n{at}" for at in range(1000)]
    again = client.post("/v1/jobs/bulk", {"jobs": [{**good, "id": "n7"}, {**good, "id": "new"}]})
    assert [item["existed"] for item in again.json()["items"]] == [True, False]
    assert code(client.post("/v1/jobs/bulk", {"jobs": [good] * 1001}), 422) == "invalid"
    assert code(client.post("/v1/jobs/bulk", {"jobs": []}), 422) == "invalid"


def test_integers_are_exact_and_may_be_text(app: App, client: Client) -> None:
    number = 2**80 + 1
    content = f'{{"task": "charge", "args": [{number}, {2**53}]}}'
    made = client.post("/v1/jobs", content=content, headers={"content-type": "application/json"})
    path = f"/v1/jobs/{made.json()['id']}"
    assert f'"order":{number}' in client.get(path).text
    shown = client.get(path, params={"integers": "string"}).json()
    assert shown["arguments"] == {"order": str(number), "cents": 2**53}
    assert str(number) in row(app.store, made.json()["id"]).payload


def test_a_job_is_shown_with_its_history_and_an_unknown_one_is_not_found(app: App, client: Client) -> None:
    job = job_in(app.store, State.HELD)
    shown = client.get(f"/v1/jobs/{job.id}").json()
    assert (shown["state"], shown["events"][0]["kind"], shown["arguments"]) == ("held", "zombie", {})
    events = client.get(f"/v1/jobs/{job.id}/journal").json()["items"]
    assert [event["kind"] for event in events] == [event["kind"] for event in shown["events"]]
    for unknown in ("nothing", "%00", "a%20b", "%F0%9F%A6%80"):
        assert code(client.get(f"/v1/jobs/{unknown}"), 404) == "not_found"


def test_a_list_goes_on_by_a_cursor_although_jobs_are_added_and_deleted(app: App, client: Client) -> None:
    ids = [add(app.store, queue="a").id for _ in range(25)]
    first = client.get("/v1/jobs", params={"limit": 10, "queue": "a"})
    found = [item["id"] for item in first.json()["items"]]
    assert first.json()["count"] == {"value": 25, "exact": True}
    assert 'rel="next"' in first.headers["link"]
    add(app.store, queue="a")
    app.cancel(found[-1])
    app.store.delete([row(app.store, found[-1]).seen])
    cursor = first.json()["next"]
    while cursor:
        page = client.get("/v1/jobs", params={"limit": 10, "queue": "a", "cursor": cursor}).json()
        found += [item["id"] for item in page["items"]]
        cursor = page["next"]
    assert found == [*reversed(ids)]
    other = client.get("/v1/jobs", params={"queue": "b", "cursor": first.json()["next"]})
    assert code(other, 422) == "invalid"
    for wrong in ("x", "!!!", "e30"):
        assert code(client.get("/v1/jobs", params={"cursor": wrong}), 422) == "invalid"


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=501", "limit=x", "state=happy", "strange=1", "queue=a&queue=b", "workflow=maybe"]
)
def test_a_list_refuses_what_it_does_not_know(client: Client, query: str) -> None:
    assert code(client.get(f"/v1/jobs?{query}"), 422) == "invalid"


def test_a_list_is_narrowed_as_on_the_command_line(app: App, client: Client, clock: FakeClock) -> None:
    held, ready = job_in(app.store, State.HELD, queue="a"), add(app.store, queue="b", key="k", task="x")
    later = add(app.store, queue="c", run_at=clock.wall() + 60)

    def ids(**params: Any) -> set[str]:
        return {item["id"] for item in client.get("/v1/jobs", params=params).json()["items"]}

    assert ids(state="held") == {held.id}
    assert ids(state="held,scheduled") == {held.id, later.id}
    assert ids(key="k") == ids(task="x") == ids(queue="b") == {ready.id}
    assert ids() == {held.id, ready.id, later.id}


def test_a_token_with_two_queues_pages_over_both(app: App, client: Client) -> None:
    secret = add_token(app, "two", "viewer", ("a", "c"))
    wanted = [add(app.store, queue=queue).id for queue in "abcabcabc" if queue != "b" or not add(app.store, queue="b")]
    found, cursor = [], None
    while True:
        params = {"limit": 2, **({"cursor": cursor} if cursor else {})}
        page = client.get("/v1/jobs", params=params, token=secret).json()
        found += [item["id"] for item in page["items"]]
        assert page["count"] == {"value": 6, "exact": True}
        if (cursor := page["next"]) is None:
            break
    assert found == [*reversed(wanted)]


# ----------------------------------------------------------------------------------------------- acts


def test_an_act_counts_only_for_the_job_that_the_person_saw(app: App, client: Client) -> None:
    job = job_in(app.store, State.HELD)
    secret = add_token(app, "ann", "operator")
    seen = {"state": "held", "fence": job.fence}
    for stale in ({"state": "dead"}, {"fence": job.fence + 1}):
        refused = client.post(f"/v1/jobs/{job.id}/retry", stale, token=secret)
        assert code(refused, 409) == "state_changed"
        assert refused.json()["job"]["state"] == "held"
    done = client.post(f"/v1/jobs/{job.id}/retry", {**seen, "note": "card works again"}, token=secret)
    assert done.json()["state"] == "ready"
    [event] = app.store.journal(job.id, kinds=("revived",))
    assert (event.actor, event.detail["note"]) == ("ann", "card works again")
    assert code(client.post(f"/v1/jobs/{job.id}/retry", seen, token=secret), 409) == "state_changed"
    assert len(app.store.journal(job.id, kinds=("revived",))) == 1


def test_every_act_does_what_the_command_line_does(app: App, client: Client, clock: FakeClock) -> None:
    store = app.store

    def act(job: Any, name: str, body: Any = None) -> Any:
        return client.post(f"/v1/jobs/{job.id}/{name}", body, headers={"content-type": "application/json"}).json()

    assert act(add(store), "cancel")["state"] == "cancelled"
    assert act(add(store), "hold", {"note": "wait"})["state"] == "held"
    assert act(job_in(store, State.DEAD), "revive")["state"] == "ready"
    held = job_in(store, State.HELD)
    assert act(held, "resolve", {"answer": "done", "result": {"ok": 1}})["state"] == "done"
    assert row(store, held.id).result == '{"ok":1}'
    moved = act(add(store), "move", {"priority": 9, "run_at": "2050-01-01T00:00:00Z"})
    assert (moved["priority"], moved["state"]) == (9, "scheduled")
    running = start(store, enrol(store))
    assert act(running, "cancel")["state"] == "running"
    assert row(store, running.id).cancel_requested
    assert act(running, "hold")["code"] == "state_changed"
    assert act(add(store), "move", {})["code"] == "invalid"


def test_only_an_ended_job_is_deleted(app: App, client: Client) -> None:
    done, live = job_in(app.store, State.DONE), add(app.store)
    assert client("DELETE", f"/v1/jobs/{done.id}").json() == {"id": done.id, "deleted": True}
    assert code(client("DELETE", f"/v1/jobs/{done.id}"), 404) == "not_found"
    assert code(client("DELETE", f"/v1/jobs/{live.id}"), 409) == "state_changed"


def test_an_act_on_many_counts_first_and_needs_the_number(app: App, client: Client) -> None:
    dead = [job_in(app.store, State.DEAD, queue="a").id for _ in range(3)]
    job_in(app.store, State.DEAD, queue="b")
    body: dict[str, Any] = {"act": "retry", "filter": {"state": ["dead"], "queue": "a"}}
    counted = client.post("/v1/jobs/act", body).json()
    assert (counted["count"], counted["newest_and_oldest"]) == ({"value": 3, "exact": True}, [dead[2], dead[0]])
    assert app.counts()["dead"] == 4
    for wrong in (None, 2, 4):
        refused = client.post("/v1/jobs/act", {**body, "dry_run": False, "expect_count": wrong})
        assert code(refused, 409) == "state_changed"
    done = client.post("/v1/jobs/act", {**body, "dry_run": False, "expect_count": 3}).json()
    assert (sorted(done["acted"]), done["refused"], done["next"]) == (sorted(dead), {}, None)
    assert app.counts() | {"dead": 1, "ready": 3} == app.counts()


def test_an_act_on_many_goes_on_by_slices(app: App, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.server import jobs

    monkeypatch.setattr(jobs, "SLICE", 2)
    running = [start(app.store, enrol(app.store)).id for _ in range(5)]  # they stay running, and still match
    body: dict[str, Any] = {"act": "cancel", "filter": {"state": ["running"]}, "dry_run": False, "expect_count": 5}
    acted: list[str] = []
    while True:
        answer = client.post("/v1/jobs/act", body).json()
        acted += answer["acted"]
        if answer["next"] is None:
            break
        body = {**body, "cursor": answer["next"]}
    assert sorted(acted) == sorted(running)


def test_to_delete_many_needs_an_admin(app: App, client: Client) -> None:
    job_in(app.store, State.DONE)
    body = {"act": "delete", "filter": {"state": ["done"]}, "dry_run": False, "expect_count": 1}
    assert code(client.post("/v1/jobs/act", body, token=add_token(app, "op", "operator")), 403) == "forbidden"
    assert len(client.post("/v1/jobs/act", body).json()["acted"]) == 1
    assert app.counts()["done"] == 0


def test_a_held_job_that_a_workflow_waits_for_is_not_deleted(app: App, client: Client) -> None:
    parent = start_flow(app.store)
    child = add(app.store, parent=parent.id)
    park(app.store, parent, f"job:{child.id}")
    app.store.move([Move(child.seen, acts.hold(child, actor="ann"))])
    body = {"act": "delete", "filter": {"state": ["held"]}, "dry_run": False, "expect_count": 1}
    answer = client.post("/v1/jobs/act", body).json()
    assert answer["acted"] == []
    assert "would wait for ever" in answer["refused"][child.id]
    assert row(app.store, child.id).state is State.HELD


def test_many_jobs_ask_the_store_once_for_each_task(app: App, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    published = app.store.published

    def counted(names: Any = None) -> Any:
        asked.append(names)
        return published(names)

    monkeypatch.setattr(app.store, "published", counted)
    jobs = [{"task": name, "on_crash": how} for name in ("a", "b") for how in ("hold", "retry") for _ in range(50)]
    made = client.post("/v1/jobs/bulk", {"jobs": jobs}).json()["items"]
    assert sorted(map(str, asked)) == ["['a']", "['a']", "['b']", "['b']"]
    assert [row(app.store, each["id"]).policy.on_crash for each in made] == [each["on_crash"] for each in jobs]
