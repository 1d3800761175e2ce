"""Rollups: buckets, what a batch adds, folding, percentiles."""

from __future__ import annotations

import pytest

from holdfast.core.machine import State, Transition
from holdfast.core.records import Lease, NewEvent
from holdfast.core.rollups import (
    BOUNDS,
    EVER,
    HOUR,
    KEPT_S,
    MARK,
    MINUTE,
    QUARTER,
    SPANS,
    Delta,
    Endings,
    Line,
    Rollup,
    added,
    bucket_of,
    delta,
    folded,
    oldest_slot,
    percentile,
    touched,
    with_deltas,
)
from holdfast.core.settlement import Settlement
from holdfast.core.verdict import Verdict

WALL = 7_000_000 * 60.0 + 30


def ending(
    queue: str = "mail",
    state: State = State.DONE,
    waited_s: float | None = 0.3,
    ran_s: float | None = 4.0,
    detector: str = "",
) -> Settlement:
    events = (NewEvent("zombie", {"detector": detector}),) if detector else ()
    verdict = Verdict(move=Transition.FINISH, state=state, events=(NewEvent("claimed"), *events))
    lease = Lease("j", 1, "c")
    return Settlement(lease=lease, queue=queue, worker=None, verdict=verdict, waited_s=waited_s, ran_s=ran_s)


def line(queue: str = "mail", attempts: int = 1, *, wait: int | None = 8, run: int | None = 11) -> Line:
    return Line(queue, "done", "", wait, run, attempts)


def test_the_bounds_of_buckets_rise_and_a_bound_belongs_to_its_bucket() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))
    assert [bucket_of(each) for each in (-5.0, 0.0, 0.001, 0.0011)] == [0, 0, 0, 1]
    assert bucket_of(BOUNDS[-1]) == len(BOUNDS) - 1
    assert bucket_of(BOUNDS[-1] + 1) == bucket_of(float("inf")) == len(BOUNDS)
    assert bucket_of(None) is None


def test_a_batch_is_one_delta_with_a_line_for_each_kind_of_ending() -> None:
    batch = [ending(), ending(waited_s=0.4), ending(ran_s=None), ending(state=State.READY, detector="exit")]
    wait, run = bucket_of(0.3), bucket_of(4.0)
    assert delta(batch, WALL) == Delta(
        7_000_000,
        [
            Line("mail", "done", "", wait, run, 2),
            Line("mail", "done", "", wait, None, 1),
            Line("mail", "ready", "exit", wait, run, 1),
        ],
    )


def test_a_fold_may_change_the_minute_the_quarter_the_hour_and_the_total_of_each_queue() -> None:
    slots = {(MINUTE, 7_000_000), (QUARTER, 466_666), (HOUR, 116_666), (EVER, 0)}
    assert touched([Delta(7_000_000, [line()])], {}, WALL) == {(*each, "mail") for each in slots}
    assert touched([], {"media": 3}, WALL) == {(*each, "media") for each in slots}


def test_a_fold_adds_to_what_is_stored() -> None:
    stored = [MARK, Rollup(MINUTE, 7_000_000, "mail", 2, 2, [Endings("done", "", 1, [0, 1], [])])]
    changed = folded(stored, [Delta(7_000_000, [line(attempts=2, wait=0, run=None)])], {}, WALL)
    assert changed == [
        Rollup(EVER, 0, "mail", endings=[Endings("done", "", 2, [2], [])]),
        Rollup(MINUTE, 7_000_000, "mail", 2, 2, [Endings("done", "", 3, [2, 1], [])]),
        Rollup(QUARTER, 466_666, "mail", endings=[Endings("done", "", 2, [2], [])]),
        Rollup(HOUR, 116_666, "mail", endings=[Endings("done", "", 2, [2], [])]),
    ]


def test_a_delta_of_another_minute_goes_to_that_minute() -> None:
    changed = folded([MARK], [Delta(7_000_000 - 61, [line()])], {}, WALL)
    slots = [(EVER, 0), (MINUTE, 6_999_939), (QUARTER, 466_662), (HOUR, 116_665)]
    assert [each.place for each in changed] == [(*each, "mail") for each in slots]


def test_what_the_number_of_jobs_has_grown_by_has_arrived() -> None:
    first = folded([MARK], [], {"mail": 5}, WALL)
    assert {(each.span, each.arrived, each.came) for each in first} == {(span, 5, 5) for span in SPANS}
    again = folded([MARK, *first], [], {"mail": 7}, WALL)
    assert {(each.span, each.arrived, each.came) for each in again} == {(span, 7, 7) for span in SPANS}
    assert folded([MARK, *first], [], {"mail": 5}, WALL) == []


def test_a_queue_that_shrinks_has_had_no_arrivals_and_begins_again_from_there() -> None:
    stored = [MARK, Rollup(EVER, 0, "mail", 5, 5)]
    assert folded(stored, [], {"mail": 3}, WALL) == [Rollup(EVER, 0, "mail", 5, 3)]
    [ever, *_] = folded([MARK, Rollup(EVER, 0, "mail", 5, 3)], [], {"mail": 4}, WALL)
    assert (ever.arrived, ever.came) == (6, 4)


def test_jobs_that_a_store_had_before_have_not_arrived_at_the_first_fold() -> None:
    first = folded([], [], {"mail": 5}, WALL)
    assert first == [MARK, Rollup(EVER, 0, "mail", 0, 5)]
    assert [each.arrived for each in folded(first, [], {"mail": 6}, WALL)] == [1, 1, 1, 1]


def test_readers_see_deltas_that_are_not_folded_yet() -> None:
    deltas = [Delta(7_000_000, [line()]), Delta(7_000_001, [line("media", 3)])]
    stored = [MARK, Rollup(MINUTE, 6_999_999, "mail", 4, 4), Rollup(MINUTE, 6_999_998, "mail", 0, 4)]
    found = with_deltas(stored, deltas, MINUTE)
    assert [(each.slot, each.queue, each.arrived, len(each.endings)) for each in found] == [
        (6_999_999, "mail", 4, 0),
        (7_000_000, "mail", 0, 1),
        (7_000_001, "media", 0, 1),
    ]
    assert with_deltas([MARK], [], EVER) == []


def test_minutes_and_quarters_are_kept_for_two_days_and_hours_for_ninety() -> None:
    assert KEPT_S == {MINUTE: 2 * 86_400, QUARTER: 2 * 86_400, HOUR: 90 * 86_400}
    assert oldest_slot(MINUTE, WALL) == 7_000_000 - 2 * 24 * 60
    assert oldest_slot(HOUR, WALL) == 116_666 - 90 * 24


def test_histograms_of_different_lengths_are_added() -> None:
    assert added([1, 2], [0, 1, 4]) == added([0, 1, 4], [1, 2]) == [1, 3, 4]


@pytest.mark.parametrize(
    ("histogram", "share", "wanted"),
    [
        ([], 0.5, None),
        ([0, 0], 0.5, None),
        ([4], 0.5, 0.0005),
        ([0, 4], 0.5, 0.0015),
        ([0, 4], 1.0, 0.002),
        ([1, 0, 1], 0.5, 0.001),
        ([1, 0, 2], 0.75, 0.002 + 0.003 * 0.625),
        ([0] * len(BOUNDS) + [1], 0.5, BOUNDS[-1]),
    ],
)
def test_a_percentile_is_interpolated_in_its_bucket(histogram: list[int], share: float, wanted: float | None) -> None:
    assert percentile(histogram, share) == (None if wanted is None else pytest.approx(wanted))
