"""The page of alerts and the duties of the overview: what is in force, what was sent, and who does which chore."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.alerts import declare
from holdfast.alerts.notifier import LOOK_S, TTL_S, Notifier
from holdfast.app import App
from holdfast.core.machine import State
from holdfast.testing import FakeClock
from tests.factory import job_in
from tests.pages.test_pages import read
from tests.pages.world import leave_note
from tests.server.client import PEER, Client, add_token


@pytest.fixture
def client(app: App) -> Iterator[Client]:
    client = Client(app)
    yield client
    client.close()


def notifier(app: App, clock: FakeClock) -> Notifier:
    return Notifier(app.store, clock, [declare(log=True, on=["dead", "backlog"])], name="box")


def test_a_store_without_alerts_says_how_to_declare_one(client: Client) -> None:
    page = read(client, "/alerts")
    assert "Nobody sends alerts for this store." in page
    assert "app.alert(log=True)" in page


def test_rules_stand_while_their_program_runs_and_messages_stay(client: Client, app: App, clock: FakeClock) -> None:
    first = notifier(app, clock)
    first.look()
    clock.advance(LOOK_S)
    first.look()
    page = read(client, "/alerts")
    assert "Nothing is wrong by these rules." in page
    assert "backlog_s=600" in page
    assert "No message was sent yet." in page
    job_in(app.store, State.DEAD, task="media.encode")
    first.look()
    clock.advance(LOOK_S)
    first.look()
    page = read(client, "/alerts")
    assert page.count("media.encode) is dead: ") == 1
    assert 'href="/jobs?state=dead&amp;task=media.encode"' in page
    assert "Nothing is wrong" not in page
    clock.advance(TTL_S)
    page = read(client, "/alerts")
    assert "No program that runs now has alerts." in page
    assert page.count("media.encode) is dead: ") == 1


def test_what_stands_is_open_without_a_notifier_and_what_only_happened_is_not(
    client: Client, app: App, clock: FakeClock
) -> None:
    leave_note(app.store, "mail", held_s=10.0)
    shown = client.get("/v1/alerts").json()
    assert [each["kind"] for each in shown["open"]] == ["held", "zombie_rate"]
    assert [each["kind"] for each in shown["messages"]] == ["zombie_rate", "backlog", "held"]
    [rule] = shown["rules"]
    assert (rule["sender"], rule["channels"]) == ("mail", ["log", "mail"])
    assert rule["on"][1] == {"kind": "backlog", "limits": {"backlog_s": 600.0}}
    clock.advance(11)
    shown = client.get("/v1/alerts").json()
    assert (shown["open"], shown["rules"], len(shown["messages"])) == ([], [], 3)


def test_the_overview_says_who_does_which_chore(client: Client, app: App, clock: FakeClock) -> None:
    store = app.store
    for name, holder in (("reaper", "box-1:x"), ("scheduler", "box-2:y"), ("alerts:a", "box-1:z"), ("alerts:b", "w:v")):
        assert store.acquire(name, holder, 5.0 if name == "scheduler" else 60.0)
    clock.advance(6)
    page = " ".join(read(client, "/").split())
    for line in ("box-1, w", "recovers lost jobs: <span", 'fires schedules: <span class="faint">nobody now'):
        assert line in page
    found: list[dict[str, Any]] = client.get("/v1/duties").json()["items"]
    assert [(each["duty"], each["holder"]) for each in found] == [
        ("alerts:a", "box-1"),
        ("alerts:b", "w"),
        ("reaper", "box-1"),
        ("scheduler", None),
    ]
    assert found[2]["left_s"] == 54.0


def test_alerts_and_duties_are_for_users_of_the_whole_store(app: App) -> None:
    client, token = Client(app, peer=PEER), add_token(app, "some", "operator", ("mail",))
    try:
        for path in ("/alerts", "/v1/alerts", "/v1/duties"):
            assert client.get(path, token=token).status_code == 404
    finally:
        client.close()
