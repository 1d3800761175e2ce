"""The pages of workflows: the list, and the steps of one on a time axis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.app import App
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, a_step, enrol, park, record, settle, start, start_flow
from tests.pages.test_pages import HTML, read
from tests.server.client import PEER, Client, add_token


@pytest.fixture
def client(app: App) -> Iterator[Client]:
    client = Client(app)
    yield client
    client.close()


def bars(page: str) -> list[tuple[float, float]]:
    """Return where each bar on the axis begins, and how wide it is."""
    found = [part.partition(">")[0] for part in page.split('<rect class="band-')[1:]]
    return [
        tuple(float(part.partition(f' {name}="')[2].partition('"')[0]) for name in ("x", "width")) for part in found
    ]  # type: ignore[misc]


def test_steps_stand_on_an_axis_where_and_as_long_as_they_ran(client: Client, app: App, clock: FakeClock) -> None:
    flow, now = start_flow(app.store, task="shop.order", lease_s=900.0), clock.wall()
    record(app.store, flow, a_step(1, started_at=now, ended_at=now + 25, name="reserve", result='"R7"'))
    record(app.store, flow, a_step(2, "started", started_at=now + 50, name="charge", repeatable=False))
    clock.advance(100)
    page = read(client, f"/workflows/{flow.id}")
    assert bars(page) == [(0.0, 250.0), (500.0, 500.0)]
    assert page.index("reserve") < page.index("charge")
    assert "R7" in page
    assert "a person decides when its worker dies in it" in page


def test_a_death_is_a_mark_on_the_step_that_it_interrupted(client: Client, app: App, clock: FakeClock) -> None:
    worker = enrol(app.store, name="box")
    flow, now = start_flow(app.store, worker, lease_s=30.0), clock.wall()
    record(app.store, flow, a_step(1, "started", started_at=now, fence=flow.fence, name="charge", repeatable=False))
    assert 'mark-death" x' not in read(client, f"/workflows/{flow.id}")
    clock.advance(60)
    settle(app.store, flow, EXPIRED)
    page = read(client, f"/workflows/{flow.id}")
    assert page.count('class="mark-death" x') == 1
    assert "Worker box died here" in " ".join(page.replace('<span translate="no">', "").split())


def test_a_long_workflow_is_shown_in_parts(client: Client, app: App) -> None:
    flow = start_flow(app.store)
    for first in range(1, 451, 150):
        record(app.store, flow, *(a_step(number, name=f"step-{number}") for number in range(first, first + 150)))
    page = read(client, f"/workflows/{flow.id}")
    assert page.count('<details class="flow-step"') == 200
    assert "step-450" in read(client, f"/workflows/{flow.id}?from_step=400")
    assert read(client, f"/workflows/{flow.id}?from_step=999999").count('<details class="flow-step"') == 1


def test_the_list_has_tabs_and_pages_and_no_plain_jobs(client: Client, app: App) -> None:
    for number in range(60):
        start_flow(app.store, task=f"flow_{number % 2}")
    waiting = park(app.store, start_flow(app.store, task="asks"), "signal:approve:1", question="Ship it?")
    start(app.store, task="plain")
    page = read(client, "/workflows")
    assert page.count("<tr data-row") == 50
    assert "plain" not in page.partition("<main")[2].replace("chip plain", "")
    older = page.partition("before=")[2].partition('"')[0]
    assert read(client, f"/workflows?before={older}").count("<tr data-row") == 11
    assert read(client, "/workflows?task=flow_1").count("<tr data-row") == 30
    assert waiting.id in read(client, "/workflows?state=waiting")
    assert "No workflow fits" in read(client, "/workflows?state=dead")


def test_a_plain_job_has_no_page_of_steps_and_other_queues_are_not_found(app: App) -> None:
    client, flow = Client(app, peer=PEER), start_flow(app.store, queue="secret", task="hidden")
    job, token = start(app.store, queue="mail"), add_token(app, "some", "viewer", ("mail",))
    try:
        for path in (f"/workflows/{job.id}", f"/workflows/{flow.id}", "/workflows/%00"):
            assert client.get(path, token=token, headers=HTML).status_code == 404
        assert "hidden" not in client.get("/workflows", token=token, headers=HTML).text
    finally:
        client.close()
