"""judge: what becomes of a job, over every combination, against tables written by hand from the design.

The tables below are sections 2, 14 and 15 in another form. They know nothing of how `judge` is written.
"""

import itertools
import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.machine import MOVES, State, Transition
from holdfast.core.policy import OnCrash
from holdfast.core.records import Job, NewEvent
from holdfast.core.settlement import own_event, settlement
from holdfast.core.stop_reason import full_reason
from holdfast.core.transitions import apply_verdict
from holdfast.core.verdict import (
    FORGIVEN_MAX,
    OUTAGE_S,
    OUTAGES_MAX,
    PROMPT_RELEASES_MAX,
    RELEASE_DELAY_MAX_S,
    Cancelled,
    Diverged,
    Failed,
    HeldBack,
    Lost,
    Outcome,
    Parked,
    Released,
    Snoozed,
    Stalled,
    Succeeded,
    TimedOut,
    Verdict,
    judge,
)
from tests.factory import a_job, awaiting

NOW = 1_700_000_000.0
ON_CRASH = ("retry", "hold", "fail", "rollback")
RUNNING = a_job(backoff_base_s=1.0)

OUTCOMES: dict[str, Outcome] = {
    "succeeded": Succeeded('"r"'),
    "failed": Failed("boom", {"trace": "x"}),
    "failed in an outage": Failed("cut off", outage=True),
    "timed out": TimedOut("too long", {"stack": "y"}),
    "stalled": Stalled("stuck"),
    "finished, not stored": Failed("no JSON", finished=True),
    "lost": Lost("expired", "silence", {"host": "h"}, suspects=4),
    "lost, excused": Lost("expired", "silence", {"host": "h"}, suspects=4, excused=True),
    "lost with many": Lost("vanished", "silence", spread_s=8.0),
    "released before it began": Released(False, "stopping"),
    "released after it began": Released(True, "stopping"),
    "held back": HeldBack("others crashed"),
    "snoozed": Snoozed(60.0),
    "parked": Parked("signal"),
    "cancelled": Cancelled("asked to"),
}

#                                     retry     hold      fail      rollback
WHILE_BUDGETS_LAST = {
    "succeeded": ("done", "done", "done", "done"),
    "failed": ("ready", "ready", "ready", "ready"),
    "failed in an outage": ("ready", "held", "dead", "ready"),
    "timed out": ("ready", "held", "dead", "ready"),
    "stalled": ("ready", "held", "dead", "ready"),
    "finished, not stored": ("ready", "held", "dead", "ready"),
    "lost": ("ready", "held", "dead", "ready"),
    "lost, excused": ("ready", "held", "dead", "ready"),
    "lost with many": ("ready", "held", "dead", "ready"),
    "released before it began": ("ready", "ready", "ready", "ready"),
    "released after it began": ("ready", "held", "dead", "ready"),
    "held back": ("held", "held", "held", "held"),
    "snoozed": ("ready", "ready", "ready", "ready"),
    "parked": ("waiting", "waiting", "waiting", "waiting"),
    "cancelled": ("cancelled", "cancelled", "cancelled", "cancelled"),
}
# Once a budget is spent, only these differ: the job is given up instead of being run again.
# An undo that has not begun is begun all the same: rolling back is what becomes of a workflow that is given up.
WHEN_SPENT = {
    "failed": ("dead", "dead", "dead", "dead"),
    "timed out": ("dead", "held", "dead", "ready"),
    "stalled": ("dead", "held", "dead", "ready"),
    "finished, not stored": ("dead", "held", "dead", "ready"),
    "lost": ("dead", "held", "dead", "ready"),
    "lost with many": ("dead", "held", "dead", "ready"),
}
# While it rolls back, success is the end of the rollback, undoing goes on whatever was declared for a crash, and a
# spent budget holds the job and never buries it.
_CUT_SHORT = ("timed out", "stalled", "finished, not stored", "lost", "lost, excused", "lost with many")
ROLLING_BACK = {
    "succeeded": ("rolled_back",) * 4,
    **dict.fromkeys((*_CUT_SHORT, "failed in an outage", "released after it began"), ("ready",) * 4),
}
ROLLING_BACK_WHEN_SPENT = dict.fromkeys(("failed", *(set(_CUT_SHORT) - {"lost, excused"})), ("held",) * 4)
COUNTS_AS_FAILURE = {"failed", "timed out", "stalled", "finished, not stored"}
COUNTS_AS_CRASH = {"lost", "lost with many"}
IS_LOSS = {"lost", "lost, excused", "lost with many"}

# failures and crashes so far, attempts_max, crashes_max: below, at and over each budget.
BUDGETS = [
    (0, 0, 5, 3),  # all is left
    (3, 0, 5, 3),  # the next but one attempt is the last
    (4, 0, 5, 3),  # this was the last attempt
    (2, 2, 5, 9),  # failures and crashes count together
    (0, 1, 5, 3),
    (0, 2, 9, 3),  # this was the last crash
    (0, 0, 1, 3),
    (0, 0, 5, 1),
    (0, 0, 1, 1),
    (5, 0, 5, 3),  # over already: somebody lowered the budget
    (0, 3, 9, 3),
    (7, 7, 5, 3),
]


def is_spent(name: str, failures: int, crashes: int, attempts_max: int, crashes_max: int) -> bool:
    """Section 2: dead when crashes >= crashes_max or failures + crashes >= attempts_max."""
    if name in COUNTS_AS_FAILURE:
        return failures + 1 + crashes >= attempts_max
    if name in COUNTS_AS_CRASH:
        return crashes + 1 >= crashes_max or failures + crashes + 1 >= attempts_max
    return False


def wanted_state(name: str, on_crash: str, rolling_back: bool, cancel: bool, spent: bool) -> str:
    if cancel and name != "succeeded":
        return "cancelled"  # section 15, race 11
    tables = [WHILE_BUDGETS_LAST]
    if spent:
        tables.insert(0, WHEN_SPENT)
    if rolling_back:
        tables.insert(0, ROLLING_BACK)
    if rolling_back and spent:
        tables.insert(0, ROLLING_BACK_WHEN_SPENT)
    return next(table[name] for table in tables if name in table)[ON_CRASH.index(on_crash)]


Case = tuple[str, str, bool, bool, tuple[int, int, int, int]]
CASES: list[Case] = list(
    itertools.product(OUTCOMES, ON_CRASH, (False, True), (False, True), BUDGETS)  # 15 x 4 x 2 x 2 x 12
)


def cases(*only: str, **fixed: Any) -> Iterator[tuple[Case, Job, Verdict]]:
    """Every combination of the named outcomes, judged."""
    for case in CASES:
        name, on_crash, rolling_back, cancel, (failures, crashes, attempts_max, crashes_max) = case
        if only and name not in only:
            continue
        job = msgspec.structs.replace(
            RUNNING,
            on_crash=on_crash,
            rolling_back=rolling_back,
            cancel_requested=cancel,
            failures=failures,
            crashes=crashes,
            attempts_max=attempts_max,
            crashes_max=crashes_max,
        )
        if all(getattr(job, field) == value for field, value in fixed.items()):
            yield case, job, judge(OUTCOMES[name], job, NOW, chance=0.5)


def test_every_combination_leads_where_the_design_says() -> None:
    seen = 0
    for (name, on_crash, rolling_back, cancel, budget), _, verdict in cases():
        wanted = wanted_state(name, on_crash, rolling_back, cancel, is_spent(name, *budget))
        assert verdict.state == wanted, (name, on_crash, rolling_back, cancel, budget)
        seen += 1
    assert seen == 15 * 4 * 2 * 2 * len(BUDGETS)


@pytest.mark.parametrize("name", sorted(OUTCOMES))
def test_with_an_open_step_every_ending_of_a_handler_holds_but_success_and_a_cancellation(name: str) -> None:
    """Also one that wants to come back later: it would run the step a second time."""
    opened = msgspec.structs.replace(RUNNING, workflow=True, open_step="charge")
    verdict = judge(OUTCOMES[name], opened, NOW, chance=0.5)
    ends = {"succeeded": State.DONE, "cancelled": State.CANCELLED, "released before it began": State.READY}
    assert verdict.state is ends.get(name, State.HELD)
    if name not in (*ends, "held back"):
        assert "step 'charge' was started and not recorded" in (verdict.reason or "")
    assert verdict.failures == (1 if name in COUNTS_AS_FAILURE else 0)
    assert verdict.crashes == (1 if name != "lost, excused" and isinstance(OUTCOMES[name], Lost) else 0)


def test_every_verdict_is_a_move_that_the_machine_has() -> None:
    for case, _, verdict in cases():
        assert MOVES[State.RUNNING][verdict.move] is verdict.state, case


def test_what_each_ending_costs() -> None:
    for case, _, verdict in cases():
        name, _, _, cancel, _ = case
        asked_to_stop = cancel or name == "cancelled"
        failures = int(name in COUNTS_AS_FAILURE and not asked_to_stop)
        crashes = int(name in COUNTS_AS_CRASH and not asked_to_stop)
        assert (verdict.failures, verdict.crashes) == (failures, crashes), case
        assert verdict.zombies == int(name in IS_LOSS), case
        assert verdict.fresh_budgets is (verdict.move is Transition.UNDO), case  # undos have budgets of their own


def test_only_a_loss_raises_the_fence_because_only_then_the_attempt_may_still_report() -> None:
    for case, _, verdict in cases():
        assert verdict.raises_fence is (case[0] in IS_LOSS), case


def test_only_a_loss_tells_how_many_were_suspects() -> None:
    for case, _, verdict in cases():
        outcome = OUTCOMES[case[0]]
        wanted = outcome.suspects if isinstance(outcome, Lost) and not outcome.excused else None
        assert verdict.suspects == wanted, case


def test_a_rollback_begins_once_and_only_for_jobs_that_declared_it() -> None:
    short_endings = COUNTS_AS_FAILURE - {"failed"} | IS_LOSS | {"failed in an outage", "released after it began"}
    for case, _, verdict in cases():
        name, on_crash, rolling_back, cancel, _ = case
        begins = name in short_endings and on_crash == "rollback" and not rolling_back and not cancel
        assert verdict.rolling_back is (True if begins else None), case
        assert (verdict.move is Transition.UNDO) is begins, case
        if begins:
            assert verdict.run_at == NOW, case


def test_a_result_is_kept_only_from_a_job_that_is_done() -> None:
    for case, _, verdict in cases():
        assert verdict.result == ('"r"' if verdict.state is State.DONE else None), case


def test_no_ending_touches_priority_or_the_wish_to_cancel() -> None:
    for case, _, verdict in cases():
        assert (verdict.priority, verdict.cancel_requested) == (None, None), case


def test_a_cancelled_job_keeps_no_other_state_of_mind_than_cancelled() -> None:
    for case, _, verdict in cases(cancel_requested=True):
        assert verdict.state in (State.DONE, State.ROLLED_BACK, State.CANCELLED), case
        assert (verdict.state is State.CANCELLED) is (case[0] != "succeeded"), case


# --------------------------------------------------------------------------------------- when it runs again


def test_a_job_that_stops_keeps_the_instant_at_which_it_was_due() -> None:
    for case, _, verdict in cases():
        assert verdict.run_at is None or verdict.state is State.READY, case


KEPT = None  # its place: the row's `run_at` stays


def again_after(outcome: Outcome, *, chance: float = 0.5, **changes: Any) -> float | None:
    """Return after how many seconds it is due again; None: it keeps its place."""
    job = msgspec.structs.replace(RUNNING, **{"attempts_max": 99, "crashes_max": 99} | changes)
    verdict = judge(outcome, job, NOW, chance=chance)
    assert verdict.state is State.READY
    return None if verdict.run_at is None else verdict.run_at - NOW


def in_a_row(*outcomes: Outcome, **changes: Any) -> list[float | None]:
    """Return after how many seconds a job is due after each of these."""
    job = msgspec.structs.replace(RUNNING, **{"attempts_max": 99, "crashes_max": 99} | changes)
    delays = []
    for outcome in outcomes:
        now = max(NOW, job.run_at)  # nobody claims it before
        verdict = judge(outcome, job, now, chance=0.5)
        assert verdict.state is State.READY
        delays.append(None if verdict.run_at is None else verdict.run_at - now)
        job = apply_verdict(job, verdict, now)
    return delays


@pytest.mark.parametrize("failures", [0, 1, 7])
@pytest.mark.parametrize("jitter", [False, True])
def test_after_a_first_crash_the_job_is_ready_at_once_and_in_its_place(failures: int, jitter: bool) -> None:
    assert again_after(OUTCOMES["lost"], failures=failures, backoff_jitter=jitter) is KEPT


STOPPED = Released(True, "the worker stopped")
NOT_BEGUN = Released(False, "claimed ahead, but no slot became free")
OUT_OF_BUDGET = Released(True, "the budget of the tick is spent", budget_spent=True)
LOST_AHEAD = Lost("vanished", "its process died", suspects=7, started=False)
EXCUSED = Lost("expired", "the store was away", excused=True)


def test_every_second_release_in_a_row_puts_a_job_behind_the_others() -> None:
    assert in_a_row(*[STOPPED] * 5) == [KEPT, 0, KEPT, 0, KEPT]


def test_after_many_releases_in_a_row_a_job_comes_back_later_and_later_but_it_does() -> None:
    many = in_a_row(*[STOPPED] * PROMPT_RELEASES_MAX, *[STOPPED] * 2_000)
    assert many[:PROMPT_RELEASES_MAX] == [KEPT, 0] * (PROMPT_RELEASES_MAX // 2)
    assert many[PROMPT_RELEASES_MAX:][:7] == [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert many[-1] == RELEASE_DELAY_MAX_S
    assert in_a_row(*[STOPPED] * PROMPT_RELEASES_MAX, NOT_BEGUN, STOPPED)[-2:] == [KEPT, 2.0]


def test_a_job_that_had_not_begun_is_given_back_in_its_place_however_often() -> None:
    assert in_a_row(*[NOT_BEGUN] * 5) == [KEPT] * 5
    assert in_a_row(STOPPED, NOT_BEGUN, STOPPED, NOT_BEGUN) == [KEPT, KEPT, 0, KEPT]


def test_a_release_by_the_budget_of_a_tick_always_does() -> None:
    assert in_a_row(*[OUT_OF_BUDGET] * 3) == [0, 0, 0]
    assert in_a_row(STOPPED, OUT_OF_BUDGET, STOPPED, STOPPED) == [KEPT, 0, KEPT, 0]
    assert in_a_row(OUT_OF_BUDGET, STOPPED, STOPPED) == [0, 0, KEPT]


@pytest.mark.parametrize("other", [Failed("x"), OUTCOMES["lost"], Snoozed(1.0)])
def test_any_other_ending_ends_the_row_of_releases(other: Outcome) -> None:
    first, _, again = in_a_row(STOPPED, other, STOPPED)
    assert (first, again) == (KEPT, KEPT)


def test_a_loss_that_costs_nothing_counts_as_a_release() -> None:
    """A job that holds its worker up until its lease is over, again and again, must not stand before the others."""
    assert in_a_row(*[EXCUSED] * 4) == [KEPT, 0, KEPT, 0]
    assert in_a_row(EXCUSED, STOPPED) == [KEPT, 0]


def test_a_job_that_was_claimed_ahead_and_had_not_begun_comes_back_in_its_place_at_no_cost() -> None:
    assert in_a_row(*[LOST_AHEAD] * 20, crashes_max=1, attempts_max=1) == [KEPT] * 20
    in_a_storm = msgspec.structs.replace(LOST_AHEAD, spread_s=5.0)
    for outcome in (LOST_AHEAD, in_a_storm):
        verdict = judge(outcome, RUNNING, NOW, chance=0.5)
        assert (verdict.run_at, verdict.crashes, verdict.suspects, verdict.zombies) == (KEPT, 0, None, 1)
    assert in_a_row(STOPPED, LOST_AHEAD, STOPPED) == [KEPT, KEPT, 0], "nor does it end the row of releases"


def test_outages_are_free_until_there_were_many_in_a_row() -> None:
    outage = OUTCOMES["failed in an outage"]
    assert in_a_row(*[outage] * OUTAGES_MAX, attempts_max=1) == [OUTAGE_S] * OUTAGES_MAX
    often = msgspec.structs.replace(RUNNING, releases=OUTAGES_MAX)
    verdict = judge(outage, often, NOW, chance=0.5)
    assert (verdict.state, verdict.failures, verdict.releases) == (State.READY, 1, 0)


@pytest.mark.parametrize("releases", [0, OUTAGES_MAX])
@pytest.mark.parametrize("on_crash", ON_CRASH)
def test_an_outage_inside_the_transaction_is_judged_as_a_release_of_the_same_job(
    on_crash: OnCrash, releases: int
) -> None:
    """Nobody knows what the handler did outside the store before its transaction failed."""
    job = msgspec.structs.replace(RUNNING, on_crash=on_crash, releases=releases)
    verdict = judge(OUTCOMES["failed in an outage"], job, NOW, chance=0.5)
    released = judge(Released(True, "cut off"), job, NOW, chance=0.5)
    assert (verdict.state, verdict.rolling_back) == (released.state, released.rolling_back)
    assert verdict.crashes == 0
    assert verdict.failures == (1 if releases else 0)
    if on_crash == "hold":
        assert (verdict.error, verdict.stop_reason) == ("cut off", "on_crash")
        assert verdict.reason == "cut off; on_crash=hold: a person decides"


@pytest.mark.parametrize("outcome", [LOST_AHEAD, EXCUSED])
def test_a_loss_that_costs_nothing_waits_for_no_backoff_whatever_it_cost_before(outcome: Outcome) -> None:
    assert again_after(outcome, crashes=2, failures=5) is KEPT


def test_a_place_after_the_clock_was_put_back_is_now() -> None:
    for outcome in (OUTCOMES["lost"], STOPPED, LOST_AHEAD, EXCUSED):
        assert again_after(outcome, run_at=NOW + 3600) == 0


@pytest.mark.parametrize(("crashes", "delay"), [(1, 2), (2, 4), (3, 8), (20, 3600)])
def test_after_further_crashes_it_waits_with_the_jobs_backoff(crashes: int, delay: float) -> None:
    assert again_after(OUTCOMES["lost"], crashes=crashes, backoff_jitter=False) == delay


@pytest.mark.parametrize("name", ["failed", "timed out", "stalled"])
@pytest.mark.parametrize(("failures", "crashes", "delay"), [(0, 0, 1), (1, 0, 2), (2, 1, 8), (40, 0, 3600)])
def test_after_a_failure_it_waits_with_the_jobs_backoff(name: str, failures: int, crashes: int, delay: float) -> None:
    assert again_after(OUTCOMES[name], failures=failures, crashes=crashes, backoff_jitter=False) == delay


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.75])
def test_jitter_is_drawn_from_all_of_the_delay_or_from_half_of_it(chance: float) -> None:
    assert again_after(Failed("x"), chance=chance, failures=3, backoff_full=True) == 8 * chance
    assert again_after(Failed("x"), chance=chance, failures=3) == 4 + 4 * chance


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.75])
def test_when_many_were_lost_at_once_a_first_crash_is_spread_over_a_few_seconds(chance: float) -> None:
    assert again_after(Lost("vanished", "x", spread_s=8.0), chance=chance) == 8 * chance
    assert again_after(Lost("vanished", "x", spread_s=0.0), chance=chance) is KEPT


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("rolling_back", [False, True])
def test_a_graceful_release_is_ready_at_once(started: bool, rolling_back: bool) -> None:
    released = Released(started, "stopping")
    on_crash = "rollback" if rolling_back else "retry"
    assert again_after(released, on_crash=on_crash, rolling_back=rolling_back, failures=3, crashes=2) is KEPT


def test_a_graceful_release_never_finds_a_budget_spent() -> None:
    for case, _, verdict in cases("released before it began", on_crash="retry", cancel_requested=False):
        assert (verdict.move, verdict.run_at) == (Transition.RELEASE, KEPT), case
    for case, _, verdict in cases("released after it began", on_crash="retry", cancel_requested=False):
        assert (verdict.move, verdict.run_at) == (Transition.RELEASE, KEPT), case


@pytest.mark.parametrize(("delay_s", "wanted"), [(60.0, 60.0), (0.0, 0.0), (-5.0, 0.0), (math.nan, 0.0)])
def test_a_snooze_is_as_long_as_was_asked_for_and_never_in_the_past(delay_s: float, wanted: float) -> None:
    assert again_after(Snoozed(delay_s)) == wanted


@pytest.mark.parametrize(("delay_s", "wanted"), [(60.0, 60.0), (0.0, 0.0), (-5.0, 0.0), (math.nan, 0.0)])
def test_a_failure_whose_task_chose_the_pause_waits_as_long_and_never_in_the_past(
    delay_s: float, wanted: float
) -> None:
    assert again_after(Failed("x", delay_s=delay_s)) == wanted


def test_a_chosen_pause_does_not_outlive_the_budget() -> None:
    job = a_job(attempts_max=2, failures=1)
    assert judge(Failed("x", delay_s=60.0), job, NOW, chance=0.5).move is Transition.BURY


# ------------------------------------------------------------------------------------ what is written down


def test_the_reason_is_kept_as_the_error_of_every_job_that_stops() -> None:
    for case, _, verdict in cases():
        if verdict.state in (State.HELD, State.DEAD, State.CANCELLED):
            assert verdict.error, case


def test_a_release_a_snooze_a_park_and_a_success_leave_the_last_error_readable() -> None:
    quiet = {"succeeded", "released before it began", "snoozed", "parked"}
    for case, _, verdict in cases(*quiet, cancel_requested=False):
        assert verdict.error is None, case
    for case, _, verdict in cases("released after it began", on_crash="retry", cancel_requested=False):
        assert verdict.error is None, case


ERRORS = {
    "failed": "boom",
    "timed out": "too long",
    "stalled": "stuck",
    "finished, not stored": "no JSON",
    "lost": "silence",
}


@pytest.mark.parametrize(("name", "error"), ERRORS.items())
def test_the_error_begins_with_what_happened(name: str, error: str) -> None:
    for case, _, verdict in cases(name, cancel_requested=False):
        assert verdict.error is not None
        assert verdict.error.startswith(error), case


def test_a_job_whose_budget_is_spent_says_which_one_and_how_often() -> None:
    crashed = msgspec.structs.replace(RUNNING, crashes=2, crashes_max=3, attempts_max=9)
    assert judge(OUTCOMES["lost"], crashed, NOW, chance=0).reason == "silence; crashed 3 times (crashes_max=3)"
    failed = msgspec.structs.replace(RUNNING, failures=3, crashes=1, attempts_max=5)
    wanted = "boom; failed or crashed 5 times (attempts_max=5)"
    assert judge(OUTCOMES["failed"], failed, NOW, chance=0).reason == wanted
    once = msgspec.structs.replace(RUNNING, crashes_max=1)
    assert judge(OUTCOMES["lost"], once, NOW, chance=0).reason == "silence; crashed once (crashes_max=1)"


def test_what_is_undone_keeps_why() -> None:
    asked = msgspec.structs.replace(
        RUNNING, workflow=True, cancel_requested=True, undo_requested=True, error="withdrawn"
    )
    assert judge(Cancelled("stopped"), asked, NOW, chance=0).error == "withdrawn"
    nameless = msgspec.structs.replace(asked, error=None)
    assert judge(Cancelled("stopped"), nameless, NOW, chance=0).error == "stopped"
    undoing = msgspec.structs.replace(RUNNING, rolling_back=True, error="withdrawn")
    stuck = judge(Failed("the undo fails"), msgspec.structs.replace(undoing, attempts_max=1), NOW, chance=0)
    assert (stuck.error, stuck.stop_reason, stuck.rollback_cause) == ("the undo fails", "attempts_max", "withdrawn")
    for job in (undoing, apply_verdict(undoing, stuck, NOW)):
        undone = apply_verdict(job, judge(Succeeded(), job, NOW, chance=0), NOW)
        assert (undone.state, undone.error, undone.stop_reason) == (State.ROLLED_BACK, "withdrawn", None)


@pytest.mark.parametrize(
    "outcome", [Cancelled("stop", goes_on=True), TimedOut("stop", goes_on=True), Stalled("stop", goes_on=True)]
)
def test_nothing_is_undone_while_the_handler_may_still_be_at_work(outcome: Outcome) -> None:
    by_a_person = isinstance(outcome, Cancelled)
    job = msgspec.structs.replace(
        RUNNING, on_crash="rollback", cancel_requested=by_a_person, undo_requested=by_a_person, error="withdrawn"
    )
    verdict = judge(outcome, job, NOW, chance=0)
    assert (verdict.state, verdict.rolling_back) == (State.HELD, None)
    assert verdict.stop_reason == "still_running"
    assert "may still be at work" in (verdict.reason or "")
    assert verdict.error == ("withdrawn; stop" if by_a_person else "stop")
    assert (verdict.cancel_requested, verdict.undo_requested) == ((False, False) if by_a_person else (None, None))
    stopped = judge(msgspec.structs.replace(outcome, goes_on=False), job, NOW, chance=0)
    assert (stopped.state, stopped.rolling_back) == (State.READY, True)


def test_a_rollback_counts_only_the_ending_that_on_crash_sent_there() -> None:
    asked = judge(Failed("withdrawn", rollback=True), RUNNING, NOW, chance=0)
    spent = judge(Failed("boom"), msgspec.structs.replace(RUNNING, undoable=True, attempts_max=1), NOW, chance=0)
    sends_there = msgspec.structs.replace(RUNNING, on_crash="rollback")
    sent = judge(TimedOut("slow"), sends_there, NOW, chance=0)
    assert [verdict.move for verdict in (asked, spent, sent)] == [Transition.UNDO] * 3
    assert [(verdict.failures, verdict.crashes) for verdict in (asked, spent, sent)] == [(0, 0), (0, 0), (1, 0)]
    released = judge(Released(started=True, cause="drained"), sends_there, NOW, chance=0)
    assert (released.move, released.failures, released.error) == (Transition.UNDO, 0, "drained")


def test_a_job_that_was_released_before_it_began_keeps_its_place_however_often_it_was_released() -> None:
    often = msgspec.structs.replace(RUNNING, releases=15)
    assert judge(Released(started=False, cause="drained"), often, NOW, chance=0).run_at is None


def test_a_job_that_is_held_back_costs_nothing_and_says_why() -> None:
    for case, _, verdict in cases("held back", cancel_requested=False):
        assert (verdict.failures, verdict.crashes, verdict.zombies, verdict.raises_fence) == (0, 0, 0, False), case
        assert (verdict.error, verdict.stop_reason) == ("others crashed", "suspected"), case
        assert verdict.events[1] == NewEvent("held", {"reason": "others crashed; a person decides"}), case


EVENT = {
    "failed": "failed",
    "failed in an outage": "released",
    "timed out": "timed_out",
    "stalled": "stalled",
    "finished, not stored": "failed",
    "lost": "zombie",
    "lost, excused": "zombie",
    "lost with many": "zombie",
    "released before it began": "released",
    "released after it began": "released",
    "held back": "released",
    "snoozed": "snoozed",
}
EVENT_OF_STATE = {"held": "held", "dead": "dead", "cancelled": "cancelled", "rolled_back": "rolled_back"}


def test_every_ending_writes_what_happened_and_then_what_became_of_it() -> None:
    for case, _, verdict in cases():
        wanted = [EVENT[case[0]]] if case[0] in EVENT else []
        if case[0] == "failed in an outage" and verdict.state is State.CANCELLED:
            wanted = ["failed"]  # it does not come back, so it is not released
        wanted += [EVENT_OF_STATE[verdict.state]] if verdict.state in EVENT_OF_STATE else []
        assert [note.kind for note in verdict.events] == wanted, case
        assert {note.actor for note in verdict.events} <= {None}, case


def test_the_event_of_an_ending_carries_the_decision() -> None:
    for case, _, verdict in cases(*EVENT):
        assert verdict.events[0].detail["decision"] == verdict.move.value, case


def test_an_autopsy_goes_into_the_zombie_event() -> None:
    for case, _, verdict in cases("lost", "lost, excused"):
        detail = verdict.events[0].detail
        assert (detail["detector"], detail["cause"], detail["host"]) == ("expired", "silence", "h"), case


def test_the_error_of_a_lost_attempt_names_its_worker_and_the_cause_does_not() -> None:
    for worker, error in (("box/1", "worker box/1 was lost: silence"), (None, "silence")):
        verdict = judge(Lost("expired", "silence", worker=worker), a_job(), NOW, chance=0.5)
        assert (verdict.error, verdict.events[0].detail["cause"]) == (error, "silence")


def test_traces_and_stacks_go_into_the_event() -> None:
    for _, _, verdict in cases("failed"):
        assert verdict.events[0].detail["trace"] == "x"
    for _, _, verdict in cases("timed out"):
        assert verdict.events[0].detail["stack"] == "y"


def test_a_plain_success_writes_nothing() -> None:
    for case, _, verdict in cases("succeeded", rolling_back=False):
        assert verdict.events == (), case
        assert verdict.error is None, case


def test_the_reason_in_a_held_or_dead_event_is_what_the_row_says() -> None:
    for case, job, verdict in cases():
        if verdict.state in (State.HELD, State.DEAD):
            assert verdict.stop_reason, case
            assert verdict.events[-1].detail["reason"] == full_reason(apply_verdict(job, verdict, NOW)), case


# ---------------------------------------------------------------------------------------------- suspects

SUSPECT = a_job(crashes=1, zombies=1, suspects=5, attempts_max=3, crashes_max=2)
ACQUITS = {
    "succeeded",
    "failed",
    "failed in an outage",
    "timed out",
    "stalled",
    "finished, not stored",
    "snoozed",
    "parked",
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_suspect_that_ends_without_a_crash_gets_its_crash_taken_back(name: str) -> None:
    verdict = judge(OUTCOMES[name], SUSPECT, NOW, chance=0.5)
    if name in ACQUITS:
        assert (verdict.crashes, verdict.suspects) == (-1, 0)
    elif not isinstance(OUTCOMES[name], Lost):
        assert (verdict.crashes, verdict.suspects) == (0, None), "that shows nothing"


def test_a_crash_that_was_its_own_is_not_taken_back() -> None:
    guilty = msgspec.structs.replace(SUSPECT, suspects=1)
    assert judge(Succeeded(), guilty, NOW, chance=0.5).crashes == 0
    assert judge(Failed("x"), guilty, NOW, chance=0.5).crashes == 0


def test_a_suspect_that_begins_to_roll_back_has_fresh_budgets_and_nothing_to_be_taken_back() -> None:
    job = msgspec.structs.replace(SUSPECT, workflow=True, undoable=True)
    verdict = judge(Failed("x", rollback=True), job, NOW, chance=0.5)
    assert (verdict.rolling_back, verdict.fresh_budgets, verdict.crashes) == (True, True, 0)


def test_a_job_that_is_rolling_back_does_not_begin_a_second_rollback() -> None:
    job = a_job(workflow=True, undoable=True, rolling_back=True, error="it was asked for")
    verdict = judge(Failed("x", rollback=True), job, NOW, chance=0.5)
    assert (verdict.move, verdict.failures, verdict.fresh_budgets) == (Transition.RETRY, 1, False)


def test_an_undo_that_fails_for_good_is_tried_again_all_the_same() -> None:
    job = a_job(workflow=True, undoable=True, rolling_back=True, error="it was asked for")
    assert judge(Failed("x", final=True), job, NOW, chance=0.5).move is Transition.RETRY


@pytest.mark.parametrize(
    ("on_crash", "move"), [("retry", Transition.UNDO), ("hold", Transition.UNDO), ("fail", Transition.BURY)]
)
def test_a_workflow_whose_budget_is_spent_is_undone_unless_it_was_declared_otherwise(
    on_crash: str, move: Transition
) -> None:
    job = a_job(workflow=True, undoable=True, on_crash=on_crash, attempts_max=1)
    assert judge(Failed("x"), job, NOW, chance=0.5).move is move


def test_a_requested_rollback_happens_once_and_quotes_the_request() -> None:
    asked = {"cancel_requested": True, "undo_requested": True, "error": "ann: sold out"}
    job = a_job(workflow=True, undoable=True, **asked)
    verdict = judge(Failed("x"), job, NOW, chance=0.5)
    assert (verdict.move, verdict.error) == (Transition.UNDO, "ann: sold out")
    again = judge(Failed("x"), msgspec.structs.replace(job, rolling_back=True), NOW, chance=0.5)
    assert again.move is Transition.CANCEL


def test_only_a_job_that_rolls_back_keeps_the_error_on_its_row() -> None:
    plain = a_job(workflow=True, undoable=True, error="the first time")
    assert judge(Failed("x"), plain, NOW, chance=0.5).error == "x"
    assert judge(Failed("x"), msgspec.structs.replace(plain, rolling_back=True), NOW, chance=0.5).error is None


def test_a_job_that_is_held_before_its_start_keeps_its_open_step_unasked() -> None:
    opened = a_job(workflow=True, open_step="charge")
    assert judge(HeldBack("it crashed too often"), opened, NOW, chance=0.5).stop_reason == "suspected"


def test_a_workflow_whose_code_became_another_waits_for_a_person_at_no_cost() -> None:
    verdict = judge(Diverged("the steps are others"), a_job(workflow=True, failures=1, crashes=1), NOW, chance=0.5)
    assert (verdict.move, verdict.state, verdict.failures, verdict.crashes) == (Transition.HOLD, State.HELD, 0, 0)
    assert verdict.error == "the steps are others"


def test_what_is_taken_back_does_not_count_against_any_budget() -> None:
    tired = msgspec.structs.replace(SUSPECT, failures=1)  # with its crash and one failure more: three of three
    assert judge(Failed("x"), tired, NOW, chance=0.5).state is State.READY
    assert judge(Failed("x"), msgspec.structs.replace(tired, suspects=1), NOW, chance=0.5).state is State.DEAD


def test_a_suspect_that_is_lost_alone_is_guilty_and_one_that_is_lost_in_company_is_not() -> None:
    alone, company = Lost("exit", "killed", suspects=1), Lost("exit", "killed", suspects=2)
    assert judge(alone, SUSPECT, NOW, chance=0.5).state is State.DEAD
    verdict = judge(company, SUSPECT, NOW, chance=0.5)
    assert (verdict.state, verdict.crashes, verdict.zombies, verdict.suspects) == (State.READY, 0, 1, None)
    nobody_else = judge(Lost("vanished", "killed"), SUSPECT, NOW, chance=0.5)  # the only one of a worker that died
    assert (nobody_else.state, nobody_else.crashes, nobody_else.suspects) == (State.READY, 0, None)


def test_one_that_died_alone_stays_guilty_whatever_happens_to_its_worker() -> None:
    guilty = msgspec.structs.replace(SUSPECT, suspects=1)
    verdict = judge(Lost("exit", "killed", suspects=4), guilty, NOW, chance=0.5)
    assert (verdict.crashes, verdict.suspects) == (0, None)


def test_what_was_excused_makes_nobody_a_suspect() -> None:
    """Or the next crash in company would be forgiven, and nobody would ever be blamed for it."""
    assert judge(Lost("exit", "cut off", suspects=4, excused=True), a_job(), NOW, chance=0.5).suspects is None
    innocent = a_job(suspects=4, zombies=1)
    assert judge(Lost("exit", "killed", suspects=4), innocent, NOW, chance=0.5).crashes == 1


def test_the_first_loss_in_company_is_carried_by_each() -> None:
    assert judge(Lost("exit", "killed", suspects=2), a_job(), NOW, chance=0.5).crashes == 1


def test_a_suspect_is_not_forgiven_for_ever() -> None:
    company = Lost("exit", "killed", suspects=2)
    often = msgspec.structs.replace(SUSPECT, zombies=FORGIVEN_MAX - 1)
    assert judge(company, often, NOW, chance=0.5).state is State.READY
    too_often = msgspec.structs.replace(SUSPECT, zombies=FORGIVEN_MAX)
    assert judge(company, too_often, NOW, chance=0.5).state is State.DEAD


# ---------------------------------------------------------------------------------------------- properties

small = st.integers(0, 12)
huge = st.integers(0, 2**31)
chances = st.floats(min_value=0, max_value=1, exclude_max=True)
seconds = st.floats(min_value=0, max_value=1e9)
texts = st.text(max_size=8)

losses: st.SearchStrategy[Outcome] = st.builds(
    Lost,
    st.sampled_from(["exit", "vanished", "expired", "stuck", "restart"]),
    texts,
    suspects=small,
    excused=st.booleans(),
    spread_s=st.floats(min_value=0, max_value=60),
    started=st.booleans(),
)
forced: st.SearchStrategy[Outcome] = st.builds(TimedOut, texts) | st.builds(Stalled, texts)
cut_off: st.SearchStrategy[Outcome] = st.builds(Released, st.just(True), texts) | st.builds(
    Failed, texts, outage=st.just(True)
)
failures: st.SearchStrategy[Outcome] = st.builds(
    Failed, texts, final=st.booleans(), delay_s=st.none() | st.floats(-1e9, 1e9)
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    losses,
    forced,
    failures,
    st.builds(Succeeded, st.none() | texts),
    st.builds(Released, st.booleans(), texts, st.booleans()),
    st.builds(HeldBack, texts),
    st.builds(Snoozed, st.floats(min_value=-1e9, max_value=1e9)),
    st.builds(Parked, texts),
    st.builds(Cancelled, texts),
)


@st.composite
def jobs(draw: st.DrawFn, numbers: st.SearchStrategy[int] = huge) -> Job:
    base, cap = sorted([draw(seconds), draw(seconds)])
    return msgspec.structs.replace(
        RUNNING,
        failures=draw(numbers),
        crashes=draw(numbers),
        zombies=draw(numbers),
        attempts_max=draw(st.integers(1, 2**31 - 1) | st.integers(1, 12)),
        crashes_max=draw(st.integers(1, 2**31 - 1) | st.integers(1, 12)),
        on_crash=draw(st.sampled_from(ON_CRASH)),
        rolling_back=draw(st.booleans()),
        cancel_requested=draw(st.booleans()),
        backoff_base_s=base,
        backoff_cap_s=cap,
        backoff_jitter=draw(st.booleans()),
        started=draw(st.booleans()),
        releases=draw(numbers),
    )


@given(job=jobs(), outcome=outcomes, now=seconds, chance=chances)
def test_a_job_never_runs_in_the_past_nor_later_than_its_cap_its_spread_or_its_snooze(
    job: Job, outcome: Outcome, now: float, chance: float
) -> None:
    run_at = judge(outcome, job, now, chance=chance).run_at
    if run_at is None:
        return
    longest = job.backoff_cap_s
    if isinstance(outcome, Snoozed):
        longest = max(0.0, outcome.delay_s)
    if isinstance(outcome, Lost):
        longest = max(longest, outcome.spread_s)
    assert math.isfinite(run_at)
    assert now <= run_at <= now + longest


@given(job=jobs(), outcome=outcomes, now=seconds, chance=chances)
def test_judging_is_pure(job: Job, outcome: Outcome, now: float, chance: float) -> None:
    before = msgspec.structs.asdict(job)
    assert judge(outcome, job, now, chance=chance) == judge(outcome, job, now, chance=chance)
    assert msgspec.structs.asdict(job) == before


@given(job=jobs(), outcome=outcomes, chance=chances)
def test_no_job_runs_again_over_its_budgets(job: Job, outcome: Outcome, chance: float) -> None:
    verdict = judge(outcome, job, NOW, chance=chance)
    costs = verdict.failures + verdict.crashes
    if verdict.move is Transition.RETRY and costs:
        assert job.failures + job.crashes + costs < job.attempts_max
        assert not verdict.crashes or job.crashes + verdict.crashes < job.crashes_max


@given(
    job=jobs().map(lambda job: msgspec.structs.replace(job, on_crash="hold")),
    outcome=losses | forced | cut_off,
    chance=chances,
)
def test_what_is_dangerous_to_repeat_never_becomes_ready_by_itself(job: Job, outcome: Outcome, chance: float) -> None:
    job = msgspec.structs.replace(job, rolling_back=False)  # an undo that was cut short is run again
    verdict = judge(outcome, job, NOW, chance=chance)
    assert verdict.state is (State.CANCELLED if job.cancel_requested else State.HELD)
    assert verdict.run_at is None


@given(
    job=jobs(numbers=st.just(0)),
    budgets=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    endings=st.lists(losses | forced | failures, min_size=40, max_size=40),
)
def test_a_job_that_always_ends_badly_is_given_up_within_its_budgets(
    job: Job, budgets: tuple[int, int], endings: list[Outcome]
) -> None:
    attempts_max, crashes_max = budgets
    job = msgspec.structs.replace(job, attempts_max=attempts_max, crashes_max=crashes_max, cancel_requested=False)
    paid = 0
    for outcome in endings:
        if isinstance(outcome, Lost) and (outcome.excused or not outcome.started):
            continue  # nobody is to blame, and it costs nothing
        verdict = judge(outcome, job, NOW, chance=0.5)
        paid += 1
        job = msgspec.structs.replace(
            job,
            failures=job.failures + verdict.failures,
            crashes=job.crashes + verdict.crashes,
            rolling_back=verdict.rolling_back or job.rolling_back,
        )
        if verdict.state is not State.READY:
            assert verdict.state in (State.DEAD, State.HELD)
            break
    # One more than the budget: a workflow whose last attempt was lost still begins to roll back.
    assert paid <= job.attempts_max + 1
    assert job.failures + job.crashes <= job.attempts_max + 1


@given(job=jobs(), outcome=outcomes, chance=chances)
def test_while_it_rolls_back_no_job_is_buried(job: Job, outcome: Outcome, chance: float) -> None:
    undoes = msgspec.structs.replace(job, rolling_back=True)
    assert judge(outcome, undoes, NOW, chance=chance).state is not State.DEAD


@given(job=jobs(), outcome=outcomes, chance=chances)
def test_a_job_is_done_or_rolled_back_only_by_success(job: Job, outcome: Outcome, chance: float) -> None:
    state = judge(outcome, job, NOW, chance=chance).state
    assert (state in (State.DONE, State.ROLLED_BACK)) is isinstance(outcome, Succeeded)
    if state is State.DONE:
        assert not job.rolling_back


# --------------------------------------------------------------------------------------------- settlements


def test_a_settlement_is_addressed_to_the_attempt_that_was_seen() -> None:
    verdict = judge(OUTCOMES["lost"], RUNNING, NOW, chance=0.5)
    plain, reaped = settlement(RUNNING, verdict), settlement(RUNNING, verdict, seen_lease=True)
    assert (plain.lease, plain.queue, plain.worker) == (RUNNING.lease, RUNNING.queue, RUNNING.worker)
    assert (plain.verdict, plain.seen_lease_until) == (verdict, None)
    assert reaped.seen_lease_until == RUNNING.lease_until is not None


@pytest.mark.parametrize("cancel", [False, True])
def test_a_settlement_says_whether_its_judge_knew_of_the_cancel(cancel: bool) -> None:
    job = msgspec.structs.replace(RUNNING, cancel_requested=cancel)
    assert settlement(job, judge(Failed("x"), job, NOW, chance=0.5)).seen_cancel is cancel


def test_an_attempts_own_ending_is_the_line_that_tells_of_it_and_no_other() -> None:
    claimed, failed = NewEvent("claimed", {"attempt": 1}), NewEvent("failed", {"error": "boom"})
    verdict = judge(Failed("boom"), RUNNING, NOW, chance=0.5)
    ending = own_event(msgspec.structs.replace(verdict, events=(claimed, failed)))
    assert ending == failed
    for others in ((), (claimed,), (claimed, NewEvent("succeeded")), (NewEvent("zombie"), NewEvent("dead"))):
        assert own_event(msgspec.structs.replace(verdict, events=others)) is None


@pytest.mark.parametrize(("looked", "came", "ready"), [(None, 1, False), (1, 1, False), (2, 1, False), (0, 1, True)])
def test_a_workflow_for_which_something_came_after_it_had_looked_does_not_wait(
    looked: int | None, came: int, ready: bool
) -> None:
    """It may have looked after it was claimed: then it has seen more than the row of its claim shows."""
    job = msgspec.structs.replace(RUNNING, inbox=came)
    outcome = Parked("asks", NOW + 9, awaiting("signal:approve:1"), "Ship it?", looked)
    verdict = judge(outcome, job, NOW, chance=0.5)
    assert [note.kind for note in verdict.events] == ["asked"]
    if ready:
        assert (verdict.state, verdict.run_at, verdict.inbox) == (State.READY, NOW, None)
        assert (verdict.wake_at, verdict.awaits, verdict.question) == (None, (), None)
    else:
        assert (verdict.state, verdict.run_at, verdict.inbox) == (State.WAITING, None, looked)
        assert (verdict.wake_at, verdict.awaits, verdict.question) == (NOW + 9, outcome.awaits, "Ship it?")


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [(Failed("no luck"), "failed"), (Lost("exit", "killed"), "zombie"), (TimedOut("slow"), "timed_out")],
)
def test_the_event_of_an_ending_carries_the_release_of_its_worker(outcome: Outcome, kind: str) -> None:
    job = a_job(crashes_max=1, attempts_max=1)
    events = judge(outcome, job, 100.0, chance=0.5, release="2.4.1").events
    assert [(event.kind, event.detail.get("release")) for event in events] == [(kind, "2.4.1"), ("dead", None)]
    assert "release" not in judge(outcome, job, 100.0, chance=0.5).events[0].detail
