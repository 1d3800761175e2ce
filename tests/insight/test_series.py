"""Series: what came and ended in the last hour, day or week, as points, sums and percentiles."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from holdfast import App, UsageError, insight
from holdfast.core.rollups import HOUR, MINUTE, QUARTER, Delta, Line, bucket_of
from holdfast.runtime.hooks import Hooks
from holdfast.stores.memory.store import MemoryStore
from holdfast.testing import FakeClock
from holdfast.upkeep.rollup_folder import RollupFolder
from tests.factory import add


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def ended(store: MemoryStore, ago_s: float, queue: str = "mail", state: str = "done", attempts: int = 1) -> None:
    """Attempts that waited 0.15 s and ran 4 s."""
    minute = int((store.now().wall - ago_s) // 60)
    detector = "" if state == "done" else "exit"
    line = Line(queue, state, detector, bucket_of(0.15), bucket_of(4.0), attempts)
    store.figures._deltas.append(Delta(minute, [line]))


@pytest.mark.parametrize(("window", "points", "step_s"), [("hour", 60, 60), ("day", 96, 900), ("week", 168, 3600)])
def test_a_window_has_a_point_for_each_step_and_ends_now(
    store: MemoryStore, window: str, points: int, step_s: int
) -> None:
    length_s = points * step_s
    for ago_s in (0, step_s, length_s - step_s, length_s):
        ended(store, ago_s)
    view = insight.series_view(store, window)
    assert [each["ended"] for each in view["points"]] == [1, *[0] * (points - 3), 1, 1]
    assert view["total"]["ended"] == 3
    first = datetime.fromisoformat(view["points"][0]["at"])
    now = datetime.fromtimestamp(store.now().wall, UTC)
    assert length_s - step_s <= (now - first).total_seconds() < length_s


def test_a_point_tells_states_deaths_and_times(store: MemoryStore) -> None:
    ended(store, 0, attempts=3)
    ended(store, 0, state="dead")
    ended(store, 0, state="ready", attempts=2)
    last = insight.series_view(store)["points"][-1]
    assert (last["ended"], last["done"], last["dead"], last["attempts"]) == (4, 3, 1, 6)
    assert last["lost"] == {"exit": 3}
    assert (last["wait_p50_s"], last["run_p50_s"], last["run_p99_s"]) == (0.15, 3.5, 4.97)
    assert insight.series_view(store)["points"][0]["run_p50_s"] is None


def test_one_queue_and_only_those_that_the_reader_sees(store: MemoryStore) -> None:
    ended(store, 0)
    ended(store, 0, "media", attempts=5)
    view = insight.series_view(store, queue="mail")
    assert (view["total"]["ended"], view["points"][-1]["ended"]) == (1, 1)
    assert {name: each["ended"] for name, each in view["queues"].items()} == {"mail": 1, "media": 5}
    seen = insight.series_view(store, sees=lambda name: name == "mail")
    assert (seen["total"]["ended"], list(seen["queues"])) == (1, ["mail"])


def test_arrivals_are_those_of_the_last_fold(store: MemoryStore, clock: FakeClock) -> None:
    folder = RollupFolder(store, clock, hooks=Hooks(), name="a")
    add(store, queue="mail")
    folder.once()
    clock.advance(60)
    add(store, queue="mail")
    folder.once()
    assert [each["arrived"] for each in insight.series_view(store)["points"][-3:]] == [0, 1, 1]
    assert insight.series_view(store, "week")["total"]["arrived"] == 2


def test_a_window_that_does_not_exist_is_refused(store: MemoryStore) -> None:
    with pytest.raises(UsageError, match="window='month' must be one of hour, day, week"):
        insight.series_view(store, "month")


def test_the_app_returns_series_as_objects() -> None:
    app = App("memory://")

    @app.task
    def hello() -> None: ...

    hello.enqueue()
    app.tick()
    series = app.admin.series("hour", queue="default")
    assert (series.queue, series.total.done, series.points[-1].at.tzinfo) == ("default", 1, UTC)
    assert series.total.run_p95_s is not None
    assert app.admin.series().queues["default"].arrived == 1
    app.close()


def test_spans_divide_steps() -> None:
    assert all(frame.step_s % frame.span == 0 == frame.length_s % frame.step_s for frame in insight.FRAMES.values())
    assert {frame.span for frame in insight.FRAMES.values()} == {MINUTE, QUARTER, HOUR}
