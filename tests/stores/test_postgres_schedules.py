"""Schedules on PostgreSQL: locks of others delay only their own schedule, and a thousand fire within two seconds."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from holdfast import App
from holdfast.core.records import Filter
from holdfast.scheduler import Scheduler
from holdfast.testing import FakeClock
from tests.factory import make_job
from tests.servers import CLOCK, PostgresServer

NOON = 1_750_075_200.0  # on a full minute


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(wall=NOON)


@pytest.fixture
def app(server: PostgresServer, schema: str, clock: FakeClock) -> Iterator[App]:
    """Six schedules, each due every minute; the job of the second has a key."""
    app = App(f"{server.url}?schema={schema}", clock=clock)

    @app.task(name="report")
    def report() -> None: ...

    for name in "abcdef":
        app.cron("* * * * *", report.using(key="K") if name == "b" else report, key=name)
    yield app
    app.close()


def fired(app: App) -> list[str]:
    return [schedule.key for schedule in app.store.schedules() if schedule.fired_at is not None]


def test_a_key_that_an_open_transaction_holds_delays_only_its_schedule(
    app: App, server: PostgresServer, clock: FakeClock
) -> None:
    scheduler = Scheduler(app, name="x")
    scheduler.look()
    clock.advance(60)
    with psycopg.connect(server.url) as db:
        app.store.add([make_job(key="K")], connection=db)
        assert scheduler.look()[0] == 5
        assert fired(app) == list("acdef")
        clock.advance(60)
        assert scheduler.look()[0] == 5, "the next instants of the others come in time"
        db.rollback()
    assert scheduler.look()[0] == 1
    assert fired(app) == list("abcdef")


def test_a_schedule_whose_row_is_locked_delays_only_itself(
    app: App, server: PostgresServer, schema: str, clock: FakeClock
) -> None:
    scheduler = Scheduler(app, name="x")
    scheduler.look()
    clock.advance(60)
    with psycopg.connect(server.url) as db:
        db.execute(f"SELECT FROM {schema}.schedule WHERE key = 'c' FOR UPDATE")  # type: ignore[call-overload]
        assert scheduler.look()[0] == 5
        assert fired(app) == list("abdef")
    assert scheduler.look()[0] == 1


def test_a_thousand_schedules_that_are_due_at_one_instant_fire_within_two_seconds(
    server: PostgresServer, schema: str
) -> None:
    """Each instant is stored once, and the duty does not move. The best of three: the machine may be busy."""
    app = App(f"{server.url}?schema={schema}")

    @app.task(name="report")
    def report() -> None: ...

    for number in range(1000):
        app.cron("* * * * *", report, key=f"s{number}")
    moved: list[Any] = []
    app.on("duty_lost", moved.append)
    scheduler = Scheduler(app, name="x")
    scheduler.look()
    took_s = []
    for _ in range(3):
        server.execute(f"TRUNCATE {schema}.job; UPDATE {schema}.schedule SET fired_at = NULL, mark = mark - 120")
        began = CLOCK.lease()
        assert scheduler.look()[0] == 1000
        took_s.append(CLOCK.lease() - began)
    assert min(took_s) < 2.0
    assert len({job.id for job in app.store.find(Filter(limit=2000))}) == 1000
    assert moved == []
    app.close()
