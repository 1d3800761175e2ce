"""The pages of errors: groups, their course over time, and the dead jobs of a group revived."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape

import pytest

from holdfast.app import App
from holdfast.core.machine import State
from holdfast.core.verdict import Failed
from holdfast.server.pages import errors
from holdfast.testing import FakeClock
from tests.factory import row, settle, start
from tests.pages.test_fleet import act
from tests.pages.test_pages import HTML, read
from tests.server.client import PEER, Client, add_token


@pytest.fixture
def client(app: App) -> Iterator[Client]:
    client = Client(app)
    yield client
    client.close()


def fail(app: App, text: str, task: str = "mail.send", **given: int) -> str:
    job = start(app.store, task=task, attempts_max=given.get("attempts_max", 1))
    settle(app.store, job, Failed(text))
    return job.id


def heights(page: str) -> list[bool]:
    """Which parts of the picture have errors."""
    bars = page.partition('class="bars"')[2].partition("</svg>")[0]
    return ["none" not in each for each in re.findall(r"<rect [^>]*>", bars)]


def test_errors_of_a_kind_are_one_group_whatever_ids_they_name(client: Client, app: App) -> None:
    for number in range(3):
        fail(app, f"ValueError: no order {number}")
    fail(app, "ConnectionError: refused", task="mail.fetch")
    page = read(client, "/errors")
    assert page.count("<tr data-row") == 2
    assert page.index("no order") < page.index("refused")
    assert read(client, "/errors?find=CONNECTION").count("<tr data-row") == 1
    assert "No error has this" in read(client, "/errors?find=nothing")
    assert "b-errors" in page


def test_the_picture_shows_when_the_errors_were(client: Client, app: App, clock: FakeClock) -> None:
    fail(app, "ValueError: no")
    clock.advance(6.5 * 3_600)
    fail(app, "ValueError: no")
    assert heights(read(client, "/errors?window=day")) == [False] * 8 + [True] + [False] * 2 + [True]
    assert heights(read(client, "/errors?window=hour")) == [False] * 11 + [True]
    clock.advance(2 * 86_400)
    assert "No attempt has failed" in read(client, "/errors?window=day")
    assert read(client, "/errors?window=week").count("<tr data-row") == 1


def test_the_dead_jobs_of_a_group_are_revived_with_a_note(client: Client, app: App) -> None:
    dead = [fail(app, f"ValueError: no order {number}") for number in range(3)]
    other = fail(app, "ConnectionError: refused")
    link = unescape(re.findall(r'href="(/errors/one[^"]*no[^"]*|/errors/one[^"]*)"', read(client, "/errors"))[0])
    page = read(client, link)
    assert "Revive all 3" in page
    error = re.findall(r'name="error" value="([^"]*)"', page)[0]
    fields = {"task": "mail.send", "error": error, "note": "the orders are back"}
    refused = client.post("/errors/revive", headers=HTML, data={**fields, "expect": "2"})
    assert refused.status_code == 409
    assert "3 jobs match by now, and you saw 2" in unescape(refused.text)
    assert row(app.store, dead[0]).state is State.DEAD
    page = act(client, "/errors/revive", **fields, expect="3")
    assert "run again" in page
    assert "/errors/revive" not in page
    assert [row(app.store, each).state for each in (*dead, other)] == [State.READY] * 3 + [State.DEAD]
    [event] = [each for each in app.admin.journal(dead[0]) if each.kind == "revived"]
    assert (event.actor, event.detail["note"]) == ("anonymous", "the orders are back")


def test_a_group_is_revived_at_a_rate(client: Client, app: App, clock: FakeClock) -> None:
    dead = [fail(app, "ValueError: no") for _ in range(5)]
    [group] = client.get("/v1/errors").json()["items"]
    fields = {"task": "mail.send", "error": group["fingerprint"], "expect": "5"}
    for per_s, words in (("0", "from 0.01 to 10000"), ("nan", "from 0.01"), ("0.00001", "from 0.01")):
        refused = client.post("/errors/revive", headers=HTML, data={**fields, "per_s": per_s})
        assert (refused.status_code, words in unescape(refused.text)) == (422, True)
    assert 'name="per_s" value="10"' in read(client, f"/errors/one?task=mail.send&error={group['fingerprint']}")
    act(client, "/errors/revive", **fields, per_s="2")
    due = sorted(row(app.store, each).run_at - clock.wall() for each in dead)
    assert due == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_a_rate_that_would_take_weeks_is_refused(client: Client, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "SPREAD_MAX_S", 1.0)
    dead = [fail(app, "ValueError: no") for _ in range(3)]
    [group] = client.get("/v1/errors").json()["items"]
    fields = {"task": "mail.send", "error": group["fingerprint"], "expect": "3", "per_s": "2"}
    assert "choose a higher rate" in client.post("/errors/revive", headers=HTML, data=fields).text
    assert row(app.store, dead[0]).state is State.DEAD


def test_a_token_of_some_queues_is_led_to_its_dead_jobs(app: App) -> None:
    fail(app, "ValueError: secret")
    client, token = Client(app, peer=PEER), add_token(app, "some", "operator", ("mail",))
    try:
        for path in ("/errors", "/errors/one?task=mail.send&error=x"):
            answer = client.get(path, token=token, headers=HTML)
            assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=dead")
        data = {"task": "mail.send", "error": "x", "expect": "1"}
        assert client.post("/errors/revive", token=token, headers=HTML, data=data).status_code == 404
    finally:
        client.close()


def test_an_unknown_group_is_a_page_that_says_so(client: Client) -> None:
    assert client.get("/errors/one?task=t&error=none", headers=HTML).status_code == 404
