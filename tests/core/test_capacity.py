"""The forecast of a plan: rates times costs, the first bottleneck, and what to change."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.capacity import DAY_S, Cost, Costs, Event, Limit, Plan, advice, forecast
from holdfast.core.costs import COSTS

# Round numbers, so that a test can say what must come out.
COST = Costs(
    measured="nowhere",
    one_writer=False,
    events={
        **dict.fromkeys(Event, Cost()),
        Event.STORED: Cost(10, 20, 500, 0),
        Event.ENQUEUE: Cost(100, 200, 100, 1),
        Event.RUN: Cost(50, 30, 1500, 0),
        Event.ROUND: Cost(1000, 500, 0, 4),
        Event.LOOK: Cost(400, 300, 0, 4),
        Event.PROCESS: Cost(2000, 4000, 0, 10),
        Event.RENEWAL: Cost(40, 10, 300, 0),
        Event.DELETED: Cost(5, 1, 100, 0),
    },
    cycle_s=0.1,
    look_s=0.02,
    row_bytes=700,
    line_bytes=1000,
    disk_copies=1.5,
    wal_copies=2.0,
    connections_idle=2,
    connections_busy=4,
    connections_command=1,
)
PLAN = Plan(workers=10, jobs_day=10 * DAY_S, duration_s=0.5)
PLANS = st.builds(
    Plan,
    workers=st.integers(1, 5000),
    jobs_day=st.floats(1, 1e10),
    duration_s=st.floats(0, 1000),
    peak=st.floats(1, 20),
    slots=st.integers(1, 500),
    enqueue_batch=st.floats(1, 1000),
    failures=st.floats(0, 1),
    retention_s=st.floats(3600, 1e9),
    connections_max=st.integers(1, 10_000),
    disk_bytes_s=st.floats(1e6, 1e10),
    store_cores=st.floats(0.5, 200),
)


def test_the_load_is_that_of_the_peak_and_the_disk_that_of_the_average() -> None:
    seen = forecast(replace(PLAN, peak=3, retention_s=2 * DAY_S), COST)
    assert seen.jobs_s == pytest.approx(30)
    assert seen.running == pytest.approx(15)
    assert seen.disk_bytes == pytest.approx(2 * 10 * DAY_S * 700)
    flat = forecast(replace(PLAN, retention_s=2 * DAY_S), COST)
    assert seen.disk_bytes == flat.disk_bytes
    assert seen.wal_bytes_day == flat.wal_bytes_day
    assert seen.total.wal_bytes == pytest.approx(3 * flat.total.wal_bytes)


def test_arguments_and_failures_take_room() -> None:
    plain = forecast(replace(PLAN, retention_s=DAY_S), COST)
    more = forecast(replace(PLAN, retention_s=DAY_S, payload_bytes=100, failures=0.1), COST)
    jobs = 10 * DAY_S
    assert more.disk_bytes - plain.disk_bytes == pytest.approx(jobs * (100 * 1.5 + 0.1 * 1000))
    assert more.total.wal_bytes - plain.total.wal_bytes == pytest.approx(10 * 100 * 2.0 + 10 * 0.1 * 1500)


def test_each_event_is_counted() -> None:
    seen = forecast(replace(PLAN, retention_s=DAY_S, duration_s=20.0, processes=4, enqueue_batch=5), COST)
    counted = {event: rate for event, rate in seen.events.items() if event not in (Event.LOOK, Event.BUSY)}
    assert counted == pytest.approx(
        {
            Event.STORED: 10,
            Event.ENQUEUE: 2,
            Event.RUN: 10,
            Event.ROUND: 10 / 1.1,
            Event.RENEWAL: 10 * 20 / 10,
            Event.FAILURE: 0,
            Event.DELETED: 10,
            Event.PROCESS: 10,
            Event.COMMAND: 3,
        }
    )


def test_a_short_job_is_never_renewed() -> None:
    assert forecast(replace(PLAN, duration_s=0.9), COST).events[Event.RENEWAL] == 0


def test_a_woken_worker_takes_the_hints_of_a_while_together() -> None:
    few, many = (forecast(replace(PLAN, jobs_day=rate * DAY_S, duration_s=0.0), COST) for rate in (1, 10_000))
    assert few.events[Event.LOOK] == pytest.approx(10, rel=0.05)  # every worker, at each enqueue
    assert many.events[Event.LOOK] == pytest.approx(10 / 0.02, rel=0.05)


def test_a_worker_without_a_free_slot_is_not_woken() -> None:
    assert forecast(replace(PLAN, duration_s=100.0), COST).events[Event.LOOK] == 0


def test_nothing_is_deleted_that_is_kept_for_ever() -> None:
    assert forecast(PLAN, COST).events[Event.DELETED] == 0


@pytest.mark.parametrize(
    ("limit", "short"),
    [
        (Limit.SLOTS, {"slots": 1, "duration_s": 5.0}),
        (Limit.STORE_CPU, {"store_cores": 0.01}),
        (Limit.CONNECTIONS, {"connections_max": 49}),
        (Limit.WAL, {"disk_bytes_s": 100.0}),
        (Limit.DISK, {"disk_bytes": 1e6, "retention_s": DAY_S}),
        (Limit.WORKER_CPU, {"workers": 1, "slots": 100_000, "jobs_day": 50_000 * DAY_S}),
    ],
)
def test_what_is_short_is_the_first_bottleneck(limit: Limit, short: dict[str, float]) -> None:
    plenty = {"store_cores": 1000.0}
    seen = forecast(replace(PLAN, **{**plenty, **short}), COST)  # type: ignore[arg-type]
    assert seen.bottleneck.limit is limit
    assert not seen.fits


def test_connections_are_counted_for_all_processes() -> None:
    seen = forecast(replace(PLAN, processes=4, producers=7, connections_max=50), COST)
    assert (seen.connections_idle, seen.connections) == (10 * 2 + 3 + 7, 10 * 4 + 3 + 7)
    assert seen.fits


def test_the_one_writer_of_sqlite_waits_for_the_disk_at_each_commit() -> None:
    one = replace(COST, one_writer=True)
    slow, fast = (forecast(replace(PLAN, sync_s=sync_s), one) for sync_s in (0.01, 0.001))
    assert {use.limit for use in slow.uses} >= {Limit.WRITER}
    assert not {use.limit for use in slow.uses} & {Limit.STORE_CPU, Limit.CONNECTIONS}
    waits, hardly = (next(use.used for use in seen.uses if use.limit is Limit.WRITER) for seen in (slow, fast))
    assert waits - hardly == pytest.approx(slow.total.transactions * 0.009)


@settings(max_examples=40)
@given(plan=PLANS, store=st.sampled_from(sorted(COSTS)))
def test_more_jobs_never_need_less(plan: Plan, store: str) -> None:
    less, more = (forecast(replace(plan, jobs_day=plan.jobs_day * times), COSTS[store]) for times in (1, 2))
    for name in ("running", "disk_bytes", "producer_cores"):  # a worker without a free slot is not even woken
        assert getattr(more, name) >= getattr(less, name)


@settings(max_examples=40)
@given(plan=PLANS, store=st.sampled_from(sorted(COSTS)))
def test_each_limit_is_full_at_the_rate_that_is_named(plan: Plan, store: str) -> None:
    for use in forecast(plan, COSTS[store]).uses:
        if 0 < use.full_at_jobs_day < math.inf:
            there = forecast(replace(plan, jobs_day=use.full_at_jobs_day), COSTS[store])
            again = next(each for each in there.uses if each.limit is use.limit)
            assert again.share == pytest.approx(1, rel=1e-3)


@settings(max_examples=40)
@given(plan=PLANS)
def test_advice_is_nothing_that_does_not_help(plan: Plan) -> None:
    seen = forecast(plan, COST)
    changes = advice(plan, COST)
    if seen.has_headroom:
        assert not changes
    for change in changes:
        assert change.value != getattr(plan, change.field)


def test_a_fleet_that_is_much_too_large_is_made_smaller_before_the_server_is_made_larger() -> None:
    plan = replace(PLAN, workers=2000, jobs_day=5000 * DAY_S, store_cores=8, connections_max=100)
    changes = advice(plan, COST)
    fields = [change.field for change in changes]
    assert fields[0] == "workers"
    assert changes[0].value < 500
    assert fields.index("workers") < fields.index("connections_max")
    assert changes[-1].then.fits


@pytest.mark.parametrize("store", sorted(COSTS))
def test_every_event_was_measured(store: str) -> None:
    costs = COSTS[store]
    assert set(costs.events) == set(Event)
    numbers = [value for cost in costs.events.values() for value in (cost.store_us, cost.client_us, cost.wal_bytes)]
    assert min(numbers) >= 0
    assert min(costs.row_bytes, costs.line_bytes, costs.disk_copies, costs.wal_copies) > 0
    assert costs.events[Event.RUN].client_us > 0
    assert costs.one_writer is (store == "sqlite")
