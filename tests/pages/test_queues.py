"""The pages of queues and limits: what they show, and what their buttons do."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from holdfast.app import App
from holdfast.core.limits import Setting
from tests.factory import add, enrol, start
from tests.pages.test_fleet import act
from tests.pages.test_pages import HTML, read
from tests.server.client import PEER, Client, add_token


@pytest.fixture
def client(app: App) -> Iterator[Client]:
    client = Client(app)
    yield client
    client.close()


def test_a_queue_is_paused_and_resumed_with_a_note(client: Client, app: App) -> None:
    add(app.store, queue="mail/a b")
    page = read(client, "/queues")
    assert "/queues/one?queue=mail%2Fa+b" in page
    page = act(client, "/queues/pause", queue="mail/a b", note="the bank is down")
    assert "The queue is paused." in page
    assert "the bank is down" in page
    assert "/queues/resume" in page
    assert app.admin.queues()[0].paused_note == "the bank is down"
    assert "the bank is down" in read(client, "/queues")
    page = act(client, "/queues/resume", queue="mail/a b")
    assert not app.admin.queues()[0].paused
    assert "/queues/pause" in page


def test_limits_are_set_shown_and_given_back_to_the_app(client: Client, app: App) -> None:
    app.store.limit("mail", Setting(limit=3), declared=True)
    enrol(app.store, queues=["mail"])
    start(app.store, queue="mail")
    fields = {"limit": "20", "group_limit": "", "rate": "100/60s", "burst": "5", "note": "a sale begins"}
    page = act(client, "/queues/limit", queue="mail", **fields)
    [mail] = app.admin.queues()
    assert (mail.limit, mail.group_limit, mail.rate, mail.burst) == (20, None, "100/60s", 5)
    assert re.search(r'<meter min="0" max="20" value="1"', page)
    assert "100/60s" in read(client, "/limits")
    assert "a sale begins" in read(client, "/audit")
    act(client, "/queues/limit", queue="mail", clear="true")
    [mail] = app.admin.queues()
    assert (mail.limit, mail.rate) == (3, None)


@pytest.mark.parametrize("fields", [{"limit": "many"}, {"limit": "-1"}, {"rate": "fast"}, {"burst": "1e3"}])
def test_a_limit_that_can_never_be_in_force_is_refused(client: Client, app: App, fields: dict[str, str]) -> None:
    add(app.store, queue="mail")
    answer = client.post("/queues/limit", headers=HTML, data={"queue": "mail", **fields})
    assert answer.status_code in (400, 422), answer.text
    assert app.admin.queues()[0].limit is None


def test_a_queue_that_nobody_serves_stands_first(client: Client, app: App) -> None:
    add(app.store, queue="served")
    add(app.store, queue="unserved")
    enrol(app.store, queues=["served"])
    page = read(client, "/queues")
    assert page.index(">unserved<") < page.index(">served<")
    assert "no worker" in page
    assert ">served<" not in read(client, "/queues?find=UNSERVED")


def test_a_token_of_some_queues_sees_them_and_acts_on_no_other(app: App) -> None:
    for queue in ("mail", "secret"):
        add(app.store, queue=queue)
        app.admin.limit(queue, limit=2, by="ann")
    client, token = Client(app, peer=PEER), add_token(app, "some", "operator", ("mail",))
    try:
        for path in ("/queues", "/limits"):
            page = client.get(path, token=token, headers=HTML).text
            assert (">mail<" in page, "secret" in page) == (True, False), path
        assert client.get("/queues/one?queue=secret", token=token, headers=HTML).status_code == 404
        for path in ("/queues/pause", "/queues/resume", "/queues/limit"):
            assert client.post(path, token=token, headers=HTML, data={"queue": "secret"}).status_code == 404
    finally:
        client.close()


def test_the_navigation_marks_the_section_that_is_open_and_no_other(client: Client, app: App) -> None:
    add(app.store, queue="mail")
    for path, section in (("/", "Overview"), ("/queues", "Queues"), ("/queues/one?queue=mail", "Queues")):
        assert re.findall(r'aria-current="page"[^>]*>([A-Z]\w+)', read(client, path)) == [section]
