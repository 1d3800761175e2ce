"""Limits as workers meet them: declared by the app, kept by a real worker, ghosts settled, reasons shown."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import App, UsageError
from holdfast.cli.main import cli
from holdfast.clock import pause
from holdfast.core.limits import Limits, Rate, setting
from holdfast.insight.explain import explain
from tests.cli.conftest import shown_choices
from tests.factory import claim, enrol, row
from tests.worker.house import House, on_every_store, until


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal") as app:
        yield app


def test_what_the_app_declares_is_in_force_once_a_worker_has_started(app: App) -> None:
    app.queue("default", limit=3, group_limit=2, rate="100/60s", burst=5)
    app.task(name="t")(lambda: None)
    app.tick(budget_s=5)
    [queue] = app.store.queues()
    assert queue.limits == Limits(limit=3, group_limit=2, rate=Rate(100, 60.0), burst=5)
    app.tick(budget_s=5)
    assert len(app.store.journal(kinds=["limited"])) == 1


@pytest.mark.parametrize("given", [{"limit": -1}, {"rate": "fast"}, {"burst": 0}, {"group_limit": "two"}])
def test_a_declaration_that_can_never_work_is_refused(app: App, given: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        app.queue("mail", **given)  # type: ignore[arg-type]


def test_a_rate_for_each_group_is_refused(app: App) -> None:
    """docs/adr/0025-one-rate-per-queue.md says why, and docs/limits.md what to do instead."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'group_rate'"):
        app.queue("mail", group_rate="5/s")  # type: ignore[call-arg]
    told = CliRunner().invoke(cli, ["--db", app.url, "queues", "limit", "mail", "--group-rate", "5/s"])
    assert (told.exit_code, app.store.queues()) == (2, [])
    assert "--group-rate" in told.output


def test_a_rate_makes_a_tick_leave_the_rest(app: App) -> None:
    done: list[int] = []
    app.queue("default", rate="2/1h", burst=2)
    task = app.task(name="t")(done.append)
    app.enqueue_many([task.job(number) for number in range(5)])
    app.tick(budget_s=5)
    assert len(done) == 2


@pytest.mark.slow  # a lease ends
def test_a_place_of_a_lost_attempt_is_settled_and_taken(app: App) -> None:
    """No reaper runs: the worker that needs the place settles the lost attempt itself."""
    task = app.task(name="t", lease_s=1.0, beat_s=0.3)(lambda: None)
    jobs = app.enqueue_many([task.job(), task.job()])
    app.store.limit("default", setting(limit=1))
    [lost] = claim(app.store, enrol(app.store, boot_id=app.clock.boot_id), limit=1)
    app.tick(budget_s=0.3)
    assert app.store.places("default").queue == 1
    while app.clock.lease() < (lost.lease_until or 0.0):
        pause(0.05)
    app.tick(budget_s=20)
    assert [job.refresh().state for job in jobs] == ["done", "done"]
    assert row(app.store, lost.id).attempt == 2


@pytest.mark.slow  # a lease ends
def test_a_worker_without_a_reaper_settles_the_lost_attempt_whose_place_it_needs(shared_house: House) -> None:
    house = shared_house
    task = house.app.task(name="t", lease_s=2.0, beat_s=0.5)(lambda: None)
    house.app.queue("default", limit=1)
    house.store.real.limit("default", setting(limit=1))
    jobs = house.app.enqueue_many([task.job(), task.job()])
    [lost] = claim(house.store.real, enrol(house.store.real, boot_id=house.app.clock.boot_id), limit=1)
    house.start(reaper=False)
    assert [job.result(60) for job in jobs] == [None, None]
    assert (house.row(lost.id).attempt, house.row(lost.id).crashes) == (2, 1)
    assert house.kinds(lost.id) == ["zombie", "succeeded"]


@on_every_store
def test_a_worker_takes_no_more_places_of_a_limited_queue_than_it_has_slots(house: House) -> None:
    goes_on = threading.Event()
    task = house.app.task(name="t")(lambda: goes_on.wait(60))
    house.app.queue("default", limit=10)
    house.app.enqueue_many([task.job() for _ in range(30)])
    try:
        with house.app.worker(slots=2, name="one"):
            until(lambda: house.store.real.places("default").queue == 2)
            with house.app.worker(slots=2, name="two"):
                until(lambda: house.store.real.places("default").queue == 4)
                pause(0.3)  # a claim ahead would come now
                assert house.store.real.counts()["default"] == {"running": 4, "ready": 26}
                goes_on.set()
                until(lambda: house.store.real.counts()["default"] == {"done": 30})
    finally:
        goes_on.set()


def test_jobs_show_names_the_limit_that_a_job_waits_for(app: App) -> None:
    task = app.task(name="t")(lambda: None)
    job = task.using(group="acme").enqueue()
    app.pause("default", group="acme", until=datetime.now(UTC) + timedelta(hours=1), by="ann")
    told = explain(app.store, row(app.store, job.id))
    assert "Its group, acme, is paused in queue default until" in told.sentence
    assert shown_choices(told) == [("let it run", "holdfast queues resume default --group acme")]
    app.resume("default", group="acme")
    assert "paused" not in explain(app.store, row(app.store, job.id)).sentence
    with pytest.raises(UsageError, match="time zone"):
        app.pause("default", until=datetime(2030, 1, 1))
    assert [event.kind for event in app.store.journal()] == ["paused", "resumed"]
