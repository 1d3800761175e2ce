"""The page of zombies: leases, detections, false alarms; and a scan that shows first and then recovers."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from holdfast.app import App
from holdfast.core.machine import State
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Lost, Succeeded, judge
from holdfast.core.worker_exit import WorkerExit
from holdfast.server.pages.zombies import BOUNDS, histogram
from tests.factory import again, enrol, row, settle, start
from tests.pages.test_fleet import act
from tests.pages.test_pages import HTML, read
from tests.server.client import PEER, Client, add_token


@pytest.fixture
def client(app: App) -> Iterator[Client]:
    client = Client(app)
    yield client
    client.close()


def test_a_store_where_nothing_was_lost_says_how_to_see_it(client: Client) -> None:
    page = read(client, "/zombies")
    assert "No worker was lost" in page
    assert "No job runs." in page


def test_leases_stand_by_the_time_that_is_left(client: Client, app: App) -> None:
    start(app.store, task="slow.one", lease_s=60)
    start(app.store, task="urgent.one", lease_s=5)
    page = read(client, "/zombies")
    assert page.index("urgent.one") < page.index("slow.one")
    assert page.count('data-left="') == 2


def test_deaths_are_counted_by_detector_and_by_the_time_that_it_took(client: Client, app: App) -> None:
    job = start(app.store, task="media.encode", crashes_max=9)
    settle(app.store, job, Lost("exit", "killed", autopsy={"seconds_since_beat": 0.2}))
    late = settlement(job, judge(Succeeded(), job, 0.0, chance=0.5))
    app.store.settle([late])
    job = again(app.store, row(app.store, job.id))
    settle(app.store, job, Lost("expired", "no beat", autopsy={"seconds_since_beat": 31.0}))
    page = read(client, "/zombies?window=hour")
    assert "lease expired" in page
    assert "came back" in page
    assert re.findall(r'value="(\d+)" aria-label="Time to detect"', page) == [*"010000010"]
    assert "median 31 s, worst 31 s" in page
    assert "50%" in page
    assert "Jobs that lose their worker again and again" in page
    assert client.get("/zombies?window=month", headers=HTML).status_code == 422


def test_the_histogram_has_each_death_once() -> None:
    found = histogram([0.0, 0.1, 0.2, 0.9, 5.0, 61.0])
    assert [each["number"] for each in found] == [2, 1, 1, 0, 1, 0, 0, 0, 1]
    assert [each["bound"] for each in found] == [*BOUNDS, None]
    assert [each["bound"] for each in found if each["is_promised"]] == [0.25, 1.0, 3.0, 5.0]


def test_a_scan_shows_what_is_lost_and_its_fix_recovers_it(client: Client, app: App) -> None:
    worker = enrol(app.store, name="box")
    job = start(app.store, worker, task="media.encode")
    assert "No attempt is lost." in read(client, "/zombies/scan")
    app.store.retire(worker, "killed", how=WorkerExit("exit"))
    page = read(client, "/zombies/scan")
    assert "media.encode" in page
    assert "Recover these 1" in page
    assert re.search(r'<div id="live"(?![^>]*hx-get)', page), "a scan is not made again with every pulse"
    assert row(app.store, job.id).state is State.RUNNING
    assert "Lost jobs were recovered." in act(client, "/zombies/fix")
    assert row(app.store, job.id).state is State.READY
    assert "nothing to recover" in act(client, "/zombies/fix")


def test_a_token_of_some_queues_sees_its_running_jobs_and_recovers_nothing(app: App) -> None:
    client, token = Client(app, peer=PEER), add_token(app, "some", "operator", ("mail",))
    try:
        for path in ("/zombies", "/zombies/scan"):
            answer = client.get(path, token=token, headers=HTML)
            assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?state=running")
        assert client.post("/zombies/fix", token=token, headers=HTML, data={"x": "1"}).status_code == 404
    finally:
        client.close()
