"""Limits, rates and turns: parsed, merged and decided, without a store."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from holdfast.core import limits
from holdfast.core.limits import Group, Limits, Places, Queue, Rate, Setting, check_group, setting
from holdfast.errors import UsageError
from tests.factory import a_job

NOW = 1_000_000.0


# --------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("text", "starts", "period_s"),
    [("100/60s", 100, 60.0), ("5/s", 5, 1.0), ("1000/1h", 1000, 3600.0), ("3/500ms", 3, 0.5), ("7/2", 7, 2.0),
     ("1/m", 1, 60.0)],
)  # fmt: skip
def test_a_rate_is_starts_per_period(text: str, starts: int, period_s: float) -> None:
    assert Rate.parse(text) == Rate(starts, period_s)
    assert Rate.parse(text).step_s == period_s / starts
    assert Rate.parse(str(Rate.parse(text))) == Rate.parse(text)


@pytest.mark.parametrize(
    "text", ["", "5", "5/", "/s", "0/s", "-1/s", "1.5/s", "5/x", "1/0s", "5/s/s", "1/400d", "²/s", 5, None, "2000000/s"]
)
def test_other_texts_are_no_rate(text: object) -> None:
    with pytest.raises(UsageError, match="rate="):
        Rate.parse(text)


@pytest.mark.parametrize(
    "given", [{"limit": -1}, {"limit": 1.5}, {"limit": True}, {"limit": 10**7}, {"group_limit": -1}, {"burst": 0},
              {"burst": None}, {"limit": "3"}],
)  # fmt: skip
def test_a_limit_is_a_whole_number(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(given))):
        setting(**given)


def test_every_field_that_a_person_chooses_wins_and_none_means_no_limit() -> None:
    values: dict[str, list[Any]] = {
        "limit": [UNSET, None, 3],
        "group_limit": [UNSET, None, 2],
        "rate": [UNSET, None, Rate(1, 1.0)],
        "burst": [UNSET, 1, 4],
    }
    default = Limits()
    for name, options in values.items():
        for declared, chosen in itertools.product(options, options):
            found = limits.in_force(Setting(**{name: declared}), Setting(**{name: chosen}))
            wanted = next((each for each in (chosen, declared) if each is not UNSET), getattr(default, name))
            assert getattr(found, name) == wanted
            others = values.keys() - {name}
            assert all(getattr(found, other) == getattr(default, other) for other in others)


@pytest.mark.parametrize("group", ["", "x" * 201, " a", "a\n", None, 5, "a\x00b"])
def test_a_group_has_a_name_that_can_be_shown(group: object) -> None:
    with pytest.raises(UsageError, match="group"):
        check_group(group)
    assert check_group("ünï 🐈") == "ünï 🐈"


# ------------------------------------------------------------------------------------------------ rates

rates = st.builds(Rate, st.integers(1, 50), st.sampled_from([0.5, 1.0, 7.0, 60.0]))
waits = st.lists(st.tuples(st.floats(0, 20), st.integers(0, 6)), max_size=60)


@given(rate=rates, burst=st.integers(1, 6), claims=waits)
def test_no_interval_has_more_starts_than_allowed(rate: Rate, burst: int, claims: list[tuple[float, int]]) -> None:
    wall, mark, starts = NOW, 0.0, []
    for wait, wanted in claims:
        wall += wait
        free = limits.room(Limits(rate=rate, burst=burst), 0, mark, wall, wanted)
        after = limits.mark_after(rate, burst, mark, wall, free)
        mark = mark if after is None else after
        starts += [wall] * free
    for first, begin in enumerate(starts):
        for number, end in enumerate(starts[first:], 1):
            # The smallest half-open interval with both; a float may be off by its last digits.
            assert number <= math.ceil((end - begin) / rate.step_s + 1e-6) + burst - 1


@given(rate=rates, burst=st.integers(1, 6), taken=st.integers(0, 10))
def test_the_next_permit_is_when_one_may_start_and_no_earlier(rate: Rate, burst: int, taken: int) -> None:
    mark = NOW + min(taken, burst) * rate.step_s
    at = limits.next_permit(rate, burst, mark, NOW)
    assert (at == 0.0) is (limits.permits(rate, burst, mark, NOW) > 0 or mark > NOW + burst * rate.step_s)
    if at:
        assert limits.permits(rate, burst, mark, at + 1e-6) == 1
        assert limits.permits(rate, burst, mark, at - rate.step_s / 2) == 0


def test_a_mark_that_is_too_far_ahead_comes_back() -> None:
    rate = Rate(1, 10.0)
    far = NOW + 90_000
    assert limits.permits(rate, 3, far, NOW) == 0
    assert limits.next_permit(rate, 3, far, NOW) == 0.0
    mark = limits.mark_after(rate, 3, far, NOW, 0)
    assert mark == NOW + 30
    assert limits.next_permit(rate, 3, mark, NOW) == NOW + 10
    assert limits.mark_after(rate, 3, mark, NOW, 0) is None


def test_room_is_the_smallest_of_what_is_wanted_free_and_permitted() -> None:
    rate = Rate(1, 1.0)
    assert limits.room(Limits(), 99, 0.0, NOW, 5) == 5
    assert limits.room(Limits(limit=3), 1, 0.0, NOW, 5) == 2
    assert limits.room(Limits(limit=3), 4, 0.0, NOW, 5) == 0
    assert limits.room(Limits(limit=9, rate=rate, burst=2), 1, 0.0, NOW, 5) == 2
    assert limits.room(Limits(limit=0), 0, 0.0, NOW, 5) == 0


# ------------------------------------------------------------------------------------------------ turns


def test_the_walk_begins_behind_the_cursor_and_comes_round() -> None:
    assert limits.walk(["c", "a", "b"], "a") == ["b", "c", "", "a"]
    assert limits.walk(["a", "b"], "") == ["a", "b", ""]
    assert limits.walk(["a", "b"], "zz") == ["", "a", "b"]
    assert limits.walk([], "x") == [""]


names = st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=8, unique=True)


@given(names=names, sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_groups_that_always_have_jobs_differ_by_at_most_one_start(names: list[str], sizes: list[int]) -> None:
    starts, cursor = dict.fromkeys(["", *names], 0), ""
    for free in sizes:
        order = limits.walk(names, cursor)
        groups = [Group(name, None) for name in order][: free + limits.SPARE_GROUPS]
        due = {name: [name] * 99 for name in order}
        taken = [name for name, _ in limits.take_turns(groups, due, free)]
        assert len(taken) == min(free, len(groups) * limits.most_of_each(free, len(groups)))
        for name in taken:
            starts[name] += 1
        assert max(starts.values()) - min(starts.values()) <= 1
        cursor = limits.next_cursor(cursor, taken, free, order[-1], whole=True)


def test_a_group_gives_no_more_than_it_has_places_or_jobs() -> None:
    groups = [Group("a", 1), Group("b", None), Group("c", 5)]
    due = {"a": [1, 2, 3], "b": [4, 5, 6], "c": [7]}
    assert list(limits.take_turns(groups, due, 9)) == [("a", 1), ("b", 4), ("c", 7), ("b", 5), ("b", 6)]
    assert list(limits.take_turns(groups, due, 2)) == [("a", 1), ("b", 4)]
    assert list(limits.take_turns(groups, due, 0)) == []


@pytest.mark.parametrize(
    ("taken", "free", "whole", "wanted"),
    [
        (["a", "b"], 2, False, "b"),  # all that was wanted
        (["a"], 2, True, "a"),  # all that there is
        (["a"], 2, False, "w"),  # more may come behind the last one
        ([], 2, True, "c"),
        ([], 2, False, "w"),
    ],
)
def test_the_cursor_moves_to_where_the_next_claim_begins(taken: list[str], free: int, whole: bool, wanted: str) -> None:
    assert limits.next_cursor("c", taken, free, "w", whole=whole) == wanted
    assert limits.next_cursor("c", [], free, None, whole=whole) == "c"


# ---------------------------------------------------------------------------------------------- reasons


def test_a_job_that_may_start_has_no_reason_not_to() -> None:
    job = a_job(group="g")
    queue = Queue(name="q", chosen=setting(limit=3, group_limit=2, rate="1/s"))
    assert limits.why_limited(queue, job, Places(2, 1), NOW) is None
    assert limits.why_paused(queue, job, NOW) is None


@pytest.mark.parametrize(
    ("given", "places", "words"),
    [
        ({"limit": 3}, (3, 0), "limit: 3 of 3"),
        ({"limit": 0}, (0, 0), "limit: 0 of 0"),
        ({"group_limit": 2}, (9, 2), "group, g, has reached the group limit of queue q: 2 of 2"),
        ({"rate": "1/10s"}, (0, 0), "starts 1 jobs in 10 s: the next one in 4.0 s"),
    ],
)
def test_the_reason_names_the_limit(given: dict[str, Any], places: tuple[int, int], words: str) -> None:
    queue = Queue(name="q", chosen=setting(**given), booked_until=NOW + 4)
    assert words in (limits.why_limited(queue, a_job(group="g"), Places(*places), NOW) or "")


def test_a_pause_is_named_while_it_holds() -> None:
    job = a_job(group="g")
    assert limits.why_paused(Queue(name="q", paused=True), job, NOW) == "Its queue, q, is paused."
    timed = Queue(name="q", paused=True, paused_until=NOW + 1)
    assert "until" in (limits.why_paused(timed, job, NOW) or "")
    assert limits.why_paused(timed, job, NOW + 1) is None
    group = Queue(name="q", paused_groups={"g": NOW + 1})
    assert "group, g, is paused in queue q" in (limits.why_paused(group, job, NOW) or "")
    assert limits.why_paused(group, a_job(group="h"), NOW) is None
    assert limits.why_paused(group, job, NOW + 1) is None
