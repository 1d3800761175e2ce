"""The pages of workers, schedules and acts of people: what they show, and what their buttons do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.app import App
from holdfast.enqueueing.by_name import publish
from holdfast.testing import FakeClock
from tests.factory import a_worker, add, enrol
from tests.pages.test_pages import HTML, read
from tests.server.client import PEER, Client, add_token


@pytest.fixture
def client(app: App) -> Iterator[Client]:
    client = Client(app)
    yield client
    client.close()


def act(client: Client, path: str, **fields: str) -> str:
    """Send a form, and return the page that it leads to."""
    answer = client.post(path, headers=HTML, data=fields or {"x": "1"})
    assert answer.status_code == 303, answer.text
    return read(client, answer.headers["location"])


def test_a_worker_is_drained_and_resumed_and_the_audit_says_by_whom_and_why(client: Client, app: App) -> None:
    enrol(app.store, name="box/1", queues=["mail"])
    assert "box/1" in read(client, "/workers")
    page = read(client, "/workers/one?name=box%2F1")
    assert "/workers/drain" in page
    assert "/workers/resume" not in page
    page = act(client, "/workers/drain", name="box/1", note="a new kernel")
    assert "claim nothing more within two beats" in page
    assert "/workers/resume" in page
    [order] = app.store.orders()
    assert (order.name, order.act, order.note) == ("box/1", "drain", "a new kernel")
    assert "a new kernel" in read(client, "/audit")
    act(client, "/workers/resume", name="box/1")
    assert app.store.orders() == []


def test_a_worker_in_trouble_stands_first_and_a_gone_one_is_shown_when_asked_for(
    client: Client, app: App, clock: FakeClock
) -> None:
    enrol(app.store, name="aaa-silent", queues=["mail"])
    left = enrol(app.store, name="left", queues=["mail"])
    app.store.retire(left, "stopped")
    clock.advance(600)
    app.store.enroll(a_worker(name="aaa-alive", queues=["mail"]))
    page = read(client, "/workers")
    assert page.index("aaa-silent") < page.index("aaa-alive")
    assert ">left<" not in page
    assert ">left<" in read(client, "/workers?gone=true")


def test_an_unknown_worker_and_schedule_are_pages_that_say_so(client: Client) -> None:
    for path in ("/workers/one?name=nobody", "/schedules/one?key=none"):
        answer = client.get(path, headers=HTML)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    for path in ("/workers/drain", "/schedules/fire"):
        assert client.post(path, headers=HTML, data={"name": "nobody", "key": "none"}).status_code == 404


def test_a_schedule_is_paused_resumed_and_fired(client: Client, app: App) -> None:
    app.schedule("nightly", "0 3 * * *", app.task(name="report", queue="reports")(lambda: None))
    assert "03:00" in read(client, "/schedules")
    assert "is paused" in act(client, "/schedules/pause", key="nightly", note="the disk is full")
    assert app.store.schedules()[0].paused
    assert "/schedules/resume" in read(client, "/schedules/one?key=nightly")
    act(client, "/schedules/resume", key="nightly")
    assert not app.store.schedules()[0].paused
    page = act(client, "/schedules/fire", key="nightly")
    assert "Its job is enqueued" in page
    [job] = app.find(task="report")
    assert f"/jobs/{job.id}" in page
    audit = read(client, "/audit")
    assert audit.index(">fire<") < audit.index(">resume<") < audit.index(">pause<")


def test_a_search_among_schedules_finds_keys_and_tasks(client: Client, app: App) -> None:
    for key in ("tenant-1", "tenant-2"):
        app.schedule(key, "@hourly", app.task(name=f"bill_{key}")(lambda: None))
    page = read(client, "/schedules?find=BILL_TENANT-2")
    assert ("tenant-1" in page, "tenant-2" in page) == (False, True)
    assert "No schedule has this" in read(client, "/schedules?find=nothing")


def test_the_audit_is_paged_and_filtered_by_person(client: Client, app: App) -> None:
    for number in range(60):
        app.store.pause(f"queue-{number}", True, actor="ann" if number % 2 else "bob")
    page = read(client, "/audit")
    assert page.count("<tr data-row") == 50
    older = page.partition("before=")[2].partition('"')[0]
    assert read(client, f"/audit?before={older}").count("<tr data-row") == 10
    assert read(client, "/audit?by=ann").count("<tr data-row") == 30


def test_a_token_of_some_queues_sees_their_workers_schedules_and_acts_and_may_order_nobody(app: App) -> None:
    for queue in ("mail", "secret"):
        enrol(app.store, name=f"box-{queue}", queues=[queue])
        app.schedule(f"at-{queue}", "@hourly", app.task(name=f"t_{queue}", queue=queue)(lambda: None))
        app.cancel(add(app.store, queue=queue).id, by=f"ann-{queue}")
    token = add_token(app, "some", "operator", ("mail",))
    client = Client(app, peer=PEER)
    try:
        for path, word in (("/workers", "box"), ("/schedules", "at"), ("/audit", "ann")):
            page = client.get(path, token=token, headers=HTML).text
            assert (f"{word}-mail" in page, f"{word}-secret" in page) == (True, False), path
        for path, fields in (("/workers/drain", {"name": "box-mail"}), ("/schedules/fire", {"key": "at-secret"})):
            assert client.post(path, token=token, headers=HTML, data=fields).status_code == 404
        assert client.post("/schedules/fire", token=token, headers=HTML, data={"key": "at-mail"}).status_code == 303
    finally:
        client.close()


def test_the_settings_show_tasks_to_all_readers_and_tokens_to_administrators(app: App) -> None:
    app.task(name="charge", on_crash="hold")(lambda: None)
    publish(app.store, app.tasks)
    tokens = {role: add_token(app, f"the-{role}", role) for role in ("viewer", "admin")}
    client = Client(app, peer=PEER)
    try:
        pages = {role: client.get("/settings", token=token, headers=HTML).text for role, token in tokens.items()}
    finally:
        client.close()
    assert all("charge" in page and ">hold<" in page for page in pages.values())
    assert {role: "the-admin" in page.partition("<main")[2] for role, page in pages.items()} == {
        "viewer": False,
        "admin": True,
    }
    assert not any(token in page for page in pages.values() for token in tokens.values())
