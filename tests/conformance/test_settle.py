"""settle: the only way out of running; applies verdicts, journals them, refuses who is not the attempt. Fenced."""

from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest

from holdfast.core import acts
from holdfast.core.machine import ENDED, State, Transition
from holdfast.core.records import Filter, Job, Lease, NewEvent, Pulse, StopReason
from holdfast.core.settlement import Settlement
from holdfast.core.settlement import settlement as addressed
from holdfast.core.stop_reason import full_reason
from holdfast.core.verdict import (
    Cancelled,
    Failed,
    Lost,
    Outcome,
    Parked,
    Released,
    Snoozed,
    Stalled,
    Succeeded,
    TimedOut,
    Verdict,
)
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.conformance.test_add import AWKWARD
from tests.factory import (
    EXPIRED,
    STALE,
    a_job,
    a_step,
    add_many,
    again,
    claim,
    enrol,
    job_in,
    make_job,
    move,
    picture,
    record,
    revive,
    row,
    settle,
    settlement,
    stale_reports,
    start,
    start_flow,
)

ACCEPTED, ALREADY, REFUSED = Reply.ACCEPTED, Reply.ALREADY, Reply.REFUSED

ENDINGS: dict[str, tuple[Outcome, State]] = {
    "success": (Succeeded('"fine"'), State.DONE),
    "failure": (Failed("boom"), State.READY),
    "time limit": (TimedOut("too long"), State.READY),
    "stall": (Stalled("stuck"), State.READY),
    "release": (Released(True, "stopping"), State.READY),
    "snooze": (Snoozed(60.0), State.READY),
    "park": (Parked("for a signal"), State.WAITING),
    "cancellation": (Cancelled(), State.CANCELLED),
}
every_ending = pytest.mark.parametrize(("outcome", "state"), ENDINGS.values(), ids=ENDINGS.keys())


def report(lease: Lease, outcome: Outcome = ENDINGS["success"][0]) -> Settlement:
    """What the attempt that has this lease sends at its end."""
    job = msgspec.structs.replace(a_job(), id=lease.job_id, fence=lease.fence, claim_id=lease.claim_id, worker="w")
    return settlement(job, outcome)


# -------------------------------------------------------------------------------------- what is applied


@every_ending
def test_an_ending_takes_lease_and_worker_off_the_row_and_keeps_the_fence(
    store: Store, clock: FakeClock, outcome: Outcome, state: State
) -> None:
    job = start(store)
    clock.advance(5)
    assert settle(store, job, outcome) is ACCEPTED
    after = row(store, job.id)
    assert (after.state, after.worker, after.lease_until, after.started) == (state, None, None, False)
    assert (after.fence, after.claim_id, after.attempt) == (job.fence, job.claim_id, job.attempt)
    assert after.claimed_at == job.claimed_at
    assert after.ended_at == (clock.wall() if state in ENDED else None)


def test_a_loss_raises_the_fence_and_takes_the_claim_id_off_the_row(store: Store) -> None:
    job = start(store)
    assert settle(store, job, EXPIRED) is ACCEPTED
    after = row(store, job.id)
    assert (after.state, after.fence, after.claim_id) == (State.READY, job.fence + 1, None)
    assert (after.worker, after.lease_until, after.started, after.attempt) == (None, None, False, 1)
    assert (after.crashes, after.zombies, after.failures) == (1, 1, 0)


def test_a_success_keeps_its_result_and_the_last_error(store: Store) -> None:
    job = start(store, base_s=0.0, cap_s=0.0)
    settle(store, job, Failed("at first"))
    settle(store, again(store, row(store, job.id)), Succeeded('{"ok": true}'))
    after = row(store, job.id)
    assert (after.state, after.result, after.error, after.failures) == (
        State.DONE,
        '{"ok": true}',
        "at first",
        1,
    )


def test_a_success_without_a_result_leaves_none(store: Store) -> None:
    job = start(store)
    settle(store, job, Succeeded())
    assert row(store, job.id).result is None


def test_a_success_takes_a_suspects_crash_back(store: Store) -> None:
    job = start(store)
    settle(store, job, Lost("exit", "killed", suspects=2))
    suspect = again(store, row(store, job.id))
    assert (suspect.crashes, suspect.suspects) == (1, 2)
    assert settle(store, suspect, Succeeded("1")) is ACCEPTED
    done = row(store, job.id)
    assert (done.state, done.crashes, done.suspects, done.zombies) == (State.DONE, 0, 0, 1)


EVERYTHING = Verdict(
    move=Transition.RETRY,
    state=State.READY,
    run_at=1_800_000_000.5,
    error="why",
    result="[]",
    failures=2,
    crashes=3,
    zombies=4,
    suspects=5,
    rolling_back=True,
    cancel_requested=True,
    priority=6,
)


def settle_with(store: Store, verdict: Verdict) -> None:
    job = start(store)
    assert store.settle([addressed(job, verdict)]) == [ACCEPTED]


def test_every_part_of_a_verdict_is_applied(store: Store) -> None:
    settle_with(store, EVERYTHING)
    [job] = store.find(Filter())
    assert (job.run_at, job.error, job.result, job.priority) == (1_800_000_000.5, "why", "[]", 6)
    assert (job.failures, job.crashes, job.zombies, job.suspects) == (2, 3, 4, 5)
    assert (job.rolling_back, job.cancel_requested) == (True, True)


def test_what_a_verdict_leaves_out_stays_as_it_was_and_numbers_add_up(store: Store, clock: FakeClock) -> None:
    settle_with(store, EVERYTHING)
    [before] = store.find(Filter())
    clock.set_wall(1_800_000_001)
    job = again(store, before)
    plain = Verdict(move=Transition.RETRY, state=State.READY, failures=1, crashes=1, zombies=1)
    store.settle([addressed(job, plain)])
    after = row(store, job.id)
    assert (after.run_at, after.error, after.result) == (1_800_000_000.5, "why", "[]")
    assert (after.failures, after.crashes, after.zombies) == (3, 4, 5)
    assert (after.suspects, after.priority) == (5, 6)
    assert (after.rolling_back, after.cancel_requested) == (True, True)


def test_flags_and_numbers_can_be_taken_back_to_nothing(store: Store, clock: FakeClock) -> None:
    settle_with(store, EVERYTHING)
    clock.set_wall(1_800_000_001)
    job = again(store, store.find(Filter())[0])
    none = Verdict(
        move=Transition.RETRY,
        state=State.READY,
        suspects=0,
        rolling_back=False,
        cancel_requested=False,
        priority=0,
        fresh_budgets=True,
        error="",
        run_at=0.0,
    )
    store.settle([addressed(job, none)])
    after = row(store, job.id)
    assert (after.suspects, after.rolling_back, after.cancel_requested) == (0, False, False)
    assert (after.priority, after.error, after.run_at) == (0, None, 0.0)
    assert (after.failures, after.crashes, after.zombies) == (0, 0, 4)


def test_progress_and_note_stay_readable_after_the_end(store: Store) -> None:
    job = start(store)
    assert job.worker is not None
    store.beat(job.worker, [Pulse(job.lease, progress=0.5, note="half")])
    settle(store, job, Succeeded())
    assert (row(store, job.id).progress, row(store, job.id).note) == (0.5, "half")


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("no")], ids=repr)
def test_an_ending_carries_the_last_progress(store: Store, outcome: Outcome) -> None:
    job = start(store)
    assert job.worker is not None
    store.beat(job.worker, [Pulse(job.lease, progress=0.5, note="half")])
    ending = settlement(job, outcome)
    said = msgspec.structs.replace(ending.verdict, progress=1.0, note="finished")
    store.settle([msgspec.structs.replace(ending, verdict=said)])
    assert (row(store, job.id).progress, row(store, job.id).note) == (1.0, "finished")


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("no"), EXPIRED, Released(True, "stop")], ids=repr)
def test_the_log_leaves_the_row_with_the_attempt(store: Store, outcome: Outcome) -> None:
    """So nobody takes the lines of one attempt for those of the next."""
    job = start(store)
    assert job.worker is not None
    store.beat(job.worker, [Pulse(job.lease, log="said by the first")])
    assert settle(store, job, outcome) is Reply.ACCEPTED
    assert row(store, job.id).log is None


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD.keys())
def test_any_error_result_note_and_detail_come_back_as_they_were(store: Store, text: str) -> None:
    job = start(store)
    assert job.worker is not None
    store.beat(job.worker, [Pulse(job.lease, note=text, log=text)])
    assert row(store, job.id).log == text
    verdict = Verdict(
        move=Transition.BURY,
        state=State.DEAD,
        error=text,
        result=text,
        events=(NewEvent("dead", {"reason": text, text: [text]}, actor=text),),
    )
    store.settle([addressed(job, verdict)])
    after = row(store, job.id)
    assert (after.error, after.result, after.note) == (text or None, text, text)  # "" removes an error
    [event] = store.journal(job.id)
    assert (event.detail, event.actor) == ({"reason": text, text: [text]}, text)


# ------------------------------------------------------------------------------------------- the journal


def test_notes_are_journalled_in_order_under_the_fence_of_the_attempt(store: Store, clock: FakeClock) -> None:
    job = start(store, on_crash="hold")
    clock.advance(31)
    settle(store, job, Lost("expired", "silence", autopsy={"rss_mb": 12.5, "stack": ["a", "b"], "x": None}))
    zombie, held = store.journal(job.id)
    assert (zombie.kind, held.kind) == ("zombie", "held")
    assert (zombie.fence, zombie.worker, zombie.at, zombie.actor) == (
        job.fence,
        job.worker,
        clock.wall(),
        None,
    )
    assert zombie.detail["detector"] == "expired"
    assert (zombie.detail["rss_mb"], zombie.detail["stack"], zombie.detail["x"]) == (12.5, ["a", "b"], None)
    assert zombie.seq < held.seq


def test_a_plain_success_writes_no_event(store: Store) -> None:
    job = start(store)
    settle(store, job, Succeeded())
    assert store.journal() == []


def test_a_success_with_a_note_writes_it(store: Store) -> None:
    verdict = Verdict(move=Transition.FINISH, state=State.DONE, events=(NewEvent("succeeded"),))
    settle_with(store, verdict)
    assert [event.kind for event in store.journal()] == ["succeeded"]


# ------------------------------------------------------------------------------------------- repeats


@every_ending
def test_a_settle_whose_answer_was_lost_is_repeated_and_changes_nothing(
    store: Store, clock: FakeClock, outcome: Outcome, state: State
) -> None:
    job = start(store)
    settle(store, job, outcome)
    before = picture(store)
    clock.advance(5)
    assert settle(store, job, outcome) is ALREADY
    assert picture(store) == before


def test_a_repeat_is_known_as_one_when_the_job_has_moved_on(store: Store, clock: FakeClock) -> None:
    job = start(store)
    settle(store, job, Failed("boom"))
    clock.advance(3600)
    again(store, row(store, job.id))
    before = picture(store)
    assert settle(store, job, Failed("boom")) is ALREADY
    assert picture(store) == before


@pytest.mark.parametrize("outcome", [Failed("bang"), TimedOut("boom"), Succeeded()], ids=["words", "kind", "success"])
def test_what_the_attempt_did_not_report_before_is_no_repeat(store: Store, clock: FakeClock, outcome: Outcome) -> None:
    job = start(store)
    settle(store, job, Failed("boom"))
    clock.advance(3600)
    again(store, row(store, job.id))
    assert settle(store, job, outcome) is REFUSED
    assert len(stale_reports(store, job.id)) == 1


def test_what_another_attempt_of_the_job_reported_is_no_repeat(store: Store, clock: FakeClock) -> None:
    job = start(store, attempts_max=9)
    settle(store, job, Failed("boom"))
    clock.advance(3600)
    zombie = again(store, row(store, job.id))
    settle(store, zombie, EXPIRED)
    assert settle(store, zombie, Failed("boom")) is REFUSED


def test_what_another_job_reported_is_no_repeat(store: Store) -> None:
    other, zombie = start(store), start(store)
    settle(store, other, Failed("boom"))
    settle(store, zombie, EXPIRED)
    assert other.fence == zombie.fence
    assert settle(store, zombie, Failed("boom")) is REFUSED


def test_an_attempt_has_one_outcome_the_first(store: Store) -> None:
    job = start(store)
    settle(store, job, Failed("the first"))
    assert settle(store, job, Succeeded('"the second"')) is ALREADY
    after = row(store, job.id)
    assert (after.state, after.error, after.result) == (State.READY, "the first", None)


def test_the_same_settlement_twice_in_one_batch_is_applied_once(store: Store) -> None:
    job = start(store)
    twice = settlement(job, Failed("boom"), now=store.now().wall)
    assert store.settle([twice, twice]) == [ACCEPTED, ALREADY]
    assert row(store, job.id).failures == 1
    assert [event.kind for event in store.journal()] == ["failed"]


def test_two_outcomes_of_one_attempt_in_one_batch_are_one_the_first(store: Store) -> None:
    job = start(store)
    first, second = settlement(job, Succeeded('"1"')), settlement(job, Failed("boom"))
    assert store.settle([first, second]) == [ACCEPTED, ALREADY]
    after = row(store, job.id)
    assert (after.state, after.failures, after.result) == (State.DONE, 0, '"1"')
    assert store.counts() == {"default": {State.DONE: 1}}


def test_settling_nothing_is_nothing(store: Store) -> None:
    assert store.settle([]) == []


# ------------------------------------------------------------------------------------------- the fence


@pytest.mark.parametrize(
    "outcome", [Succeeded('"from the grave"'), Failed("from the grave")], ids=["success", "failure"]
)
@pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())
def test_a_stale_report_is_refused_and_nothing_changes_but_one_event(
    store: Store, clock: FakeClock, stale: Callable[[Store], Lease], outcome: Outcome
) -> None:
    lease = stale(store)
    before, counts = row(store, lease.job_id), store.counts()
    events = store.journal()
    clock.advance(10)
    for _ in range(3):
        assert store.settle([report(lease, outcome)]) == [REFUSED]
    assert row(store, lease.job_id) == before
    assert store.counts() == counts
    *others, event = store.journal()
    assert others == events
    assert (event.kind, event.job_id, event.fence) == ("stale_report", lease.job_id, lease.fence)
    assert (event.worker, event.at) == ("w", clock.wall())


@pytest.mark.parametrize("outcome", [pair[0] for pair in ENDINGS.values()], ids=ENDINGS.keys())
def test_a_zombie_is_refused_whatever_it_reports(store: Store, outcome: Outcome) -> None:
    zombie = start(store)
    settle(store, zombie, EXPIRED)
    successor = again(store, row(store, zombie.id))
    assert settle(store, zombie, outcome) is REFUSED
    assert row(store, zombie.id) == successor
    assert settle(store, successor, Succeeded('"mine"')) is ACCEPTED
    assert row(store, zombie.id).result == '"mine"'


def test_each_zombie_of_a_job_leaves_its_own_stale_report(store: Store) -> None:
    zombies = [start(store, crashes_max=9, attempts_max=9, base_s=0.0, cap_s=0.0)]
    for _ in range(3):
        settle(store, zombies[-1], EXPIRED)
        zombies.append(again(store, row(store, zombies[0].id)))
    for zombie in zombies[:-1] * 2:
        assert settle(store, zombie, Succeeded()) is REFUSED
    assert [event.fence for event in stale_reports(store)] == [zombie.fence for zombie in zombies[:-1]]


def test_two_strangers_with_one_fence_leave_one_stale_report(store: Store) -> None:
    job = start(store)
    for name in ("stranger", "another"):
        assert store.settle([report(Lease(job.id, job.fence, name))]) == [REFUSED]
    assert len(stale_reports(store)) == 1


def test_a_stale_report_does_not_stop_the_true_attempt_from_reporting(store: Store) -> None:
    job = start(store)
    store.settle([report(Lease(job.id, job.fence, "stranger"))])
    assert settle(store, job, Succeeded()) is ACCEPTED


def test_an_unknown_job_is_refused_without_an_event(store: Store) -> None:
    """A settler asks this to learn whether the store takes endings at all."""
    assert (
        store.settle([report(Lease("nobody", 1, "c")), report(Lease("no one", 1, "c"), Failed("x"))]) == [REFUSED] * 2
    )
    assert (store.journal(), store.counts()) == ([], {})


def test_a_report_after_the_purge_is_refused_without_an_event(store: Store, clock: FakeClock) -> None:
    job = start(store)
    settle(store, job, Succeeded())
    store.purge([State.DONE], clock.wall() + 1)
    assert settle(store, job, Succeeded()) is REFUSED
    assert store.journal() == []


def test_good_and_stale_in_one_batch_are_told_apart_in_order(store: Store) -> None:
    good, other = start(store), start(store)
    stale = STALE["after a successor claimed"](store)
    settled = job_in(store, State.DONE)
    batch = [report(stale), settlement(good, Failed("x")), report(settled.lease), report(Lease("no", 1, "c"))]
    assert store.settle([*batch, settlement(other, Succeeded())]) == [
        REFUSED,
        ACCEPTED,
        ALREADY,
        REFUSED,
        ACCEPTED,
    ]
    assert row(store, good.id).failures == 1
    assert row(store, other.id).state is State.DONE
    assert store.counts()["default"][State.DONE] == 2


@pytest.mark.parametrize("true_first", [True, False])
def test_two_attempts_of_one_job_in_one_batch_are_journalled_in_its_order(store: Store, true_first: bool) -> None:
    zombie = start(store, base_s=0.0, cap_s=0.0)
    settle(store, zombie, EXPIRED)
    true = again(store, row(store, zombie.id))
    known = len(store.journal(job_id=true.id))
    batch = [settlement(true, Failed("boom")), settlement(zombie, Succeeded())]
    store.settle(batch if true_first else batch[::-1])
    kinds = [event.kind for event in store.journal(job_id=true.id)[known:]]
    assert kinds == (["failed", "stale_report"] if true_first else ["stale_report", "failed"])


def test_a_late_report_is_accepted_while_nobody_has_reaped_it(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=30.0)
    clock.advance(3600)
    assert settle(store, job, Succeeded()) is ACCEPTED


def test_a_report_of_a_worker_marked_gone_is_accepted_while_nobody_has_reaped_it(store: Store) -> None:
    job = start(store)
    assert job.worker is not None
    store.retire(job.worker, "killed")
    assert settle(store, job, Succeeded()) is ACCEPTED


def test_the_report_of_a_revived_jobs_earlier_attempt_is_refused(store: Store) -> None:
    held = job_in(store, State.HELD)
    assert held.fence == 2
    move(store, held.id, held.state, held.fence, acts.revive(held, 0.0, actor="ann"))
    revived = again(store, row(store, held.id))
    assert store.settle([report(Lease(held.id, 1, "claim"))]) == [REFUSED]
    assert row(store, held.id) == revived


# -------------------------------------------------------------------- asked to stop after the judge looked


def cancel(store: Store, job: Job) -> None:
    assert move(store, job.id, State.RUNNING, job.fence, acts.cancel(job, actor="ann"))


JUDGED_TOO_EARLY = {name: pair[0] for name, pair in ENDINGS.items() if name != "success"} | {"loss": EXPIRED}


@pytest.mark.parametrize("outcome", JUDGED_TOO_EARLY.values(), ids=JUDGED_TOO_EARLY.keys())
def test_a_verdict_made_before_the_job_was_asked_to_stop_is_to_be_judged_again(store: Store, outcome: Outcome) -> None:
    job = start(store)
    cancel(store, job)
    before = picture(store)
    assert settle(store, job, outcome) is Reply.AGAIN
    assert picture(store) == before
    assert settle(store, row(store, job.id), outcome) is ACCEPTED
    assert row(store, job.id).state is State.CANCELLED


def test_a_success_is_a_success_whenever_the_job_was_asked_to_stop(store: Store) -> None:
    job = start(store)
    cancel(store, job)
    assert settle(store, job, Succeeded('"made it"')) is ACCEPTED
    assert (row(store, job.id).state, row(store, job.id).result) == (State.DONE, '"made it"')


def test_a_success_that_another_process_found_is_a_success(store: Store, clock: FakeClock) -> None:
    job = start(store)
    cancel(store, job)
    assert settle(store, job, Succeeded(), seen_lease=True) is ACCEPTED


def test_one_that_is_to_be_judged_again_does_not_stop_the_others_of_its_batch(store: Store) -> None:
    asked, other = start(store), start(store)
    cancel(store, asked)
    batch = [settlement(job, Failed("x")) for job in (asked, other)]
    assert store.settle(batch) == [Reply.AGAIN, ACCEPTED]
    assert row(store, asked.id).state is State.RUNNING
    assert row(store, other.id).failures == 1


def test_a_zombie_is_refused_and_not_asked_to_judge_again(store: Store) -> None:
    zombie = start(store)
    settle(store, zombie, EXPIRED)
    cancel(store, again(store, row(store, zombie.id)))
    assert settle(store, zombie, Failed("x")) is REFUSED


def test_a_lease_that_was_renewed_is_not_settled_whatever_else_has_changed(store: Store, clock: FakeClock) -> None:
    job = start(store)
    assert job.worker is not None
    clock.advance(30)
    [seen] = store.overdue()
    store.beat(job.worker, [Pulse(job.lease)])
    cancel(store, job)
    before = picture(store)
    assert settle(store, seen, EXPIRED, seen_lease=True) is REFUSED
    assert picture(store) == before


# ----------------------------------------------------------------- steps that came after the judge looked


def test_a_step_that_was_begun_after_the_reaper_looked_is_held_and_not_repeated(store: Store, clock: FakeClock) -> None:
    """The worker was late, not dead: it wrote down that the step begins, and ran it."""
    job = start_flow(store)
    clock.advance(30)
    [seen] = store.overdue()
    record(store, job, a_step(1, "started", repeatable=False), open_step="charge")
    before = picture(store)
    assert settle(store, seen, EXPIRED, seen_lease=True) is Reply.AGAIN
    assert picture(store) == before
    [seen] = store.overdue()
    assert settle(store, seen, EXPIRED, seen_lease=True) is ACCEPTED
    held = row(store, job.id)
    assert (held.state, held.open_step) == (State.HELD, "charge")


def test_a_step_that_was_recorded_after_the_reaper_looked_needs_nobody(store: Store, clock: FakeClock) -> None:
    job = start_flow(store)
    record(store, job, a_step(1, "started", repeatable=False), open_step="charge")
    clock.advance(30)
    [seen] = store.overdue()
    record(store, job, a_step(1, repeatable=False), open_step="")
    assert settle(store, seen, EXPIRED, seen_lease=True) is Reply.AGAIN
    [seen] = store.overdue()
    assert settle(store, seen, EXPIRED, seen_lease=True) is ACCEPTED
    assert row(store, job.id).state is State.READY


def test_a_person_is_asked_about_the_step_that_is_open_now(store: Store) -> None:
    job = start_flow(store)
    record(store, job, a_step(1, "started", repeatable=False), open_step="charge")
    seen = row(store, job.id)
    record(store, job, a_step(1, repeatable=False), a_step(2, "started", repeatable=False), open_step="ship")
    assert settle(store, seen, EXPIRED) is Reply.AGAIN
    assert settle(store, row(store, job.id), EXPIRED) is ACCEPTED
    assert "'ship'" in (full_reason(row(store, job.id)) or "")


def test_why_a_job_stopped_is_beside_its_error_until_it_goes_on(store: Store) -> None:
    held, dead = start(store, on_crash="hold"), start(store, attempts_max=1)
    settle(store, held, EXPIRED)
    settle(store, dead, Failed("boom"))
    for job, error, reason in ((held, EXPIRED.cause, "on_crash"), (dead, "boom", "attempts_max")):
        stopped = row(store, job.id)
        assert (stopped.error, stopped.stop_reason, stopped.rollback_cause) == (error, reason, None)
        assert revive(store, stopped)
        revived = row(store, job.id)
        assert (revived.error, revived.stop_reason) == (error, None)


@pytest.mark.parametrize("reason", get_args(StopReason))
def test_every_reason_to_stop_can_be_stored(store: Store, reason: StopReason) -> None:
    settle_with(store, Verdict(move=Transition.HOLD, state=State.HELD, error="why", stop_reason=reason))
    [job] = store.find(Filter())
    assert (job.error, job.stop_reason) == ("why", reason)


def test_a_rollback_that_is_stuck_keeps_why_it_began(store: Store) -> None:
    job = start_flow(store, attempts_max=1)
    record(store, job, a_step(1, has_undo=True), undoable=True)
    settle(store, row(store, job.id), Failed("sold out"))
    undoing = row(store, job.id)
    assert (undoing.rolling_back, undoing.error, undoing.stop_reason) == (True, "sold out", "attempts_max")
    settle(store, again(store, undoing), Failed("no refund"))
    stuck = row(store, job.id)
    assert (stuck.state, stuck.error, stuck.stop_reason) == (State.HELD, "no refund", "attempts_max")
    assert stuck.rollback_cause == "sold out; attempts_max=1 was reached"
    assert revive(store, stuck)
    settle(store, again(store, stuck), Succeeded())
    undone = row(store, job.id)
    assert (undone.state, undone.error, undone.stop_reason) == (State.ROLLED_BACK, stuck.rollback_cause, None)


@pytest.mark.parametrize("outcome", [EXPIRED, Failed("no luck"), TimedOut("too slow")], ids=["lost", "failed", "slow"])
def test_what_is_to_be_undone_since_the_judge_looked_is_not_buried(store: Store, outcome: Outcome) -> None:
    job = start_flow(store, crashes_max=1, attempts_max=1)
    record(store, job, a_step(1, "started", has_undo=True), undoable=True)
    before = picture(store)
    assert settle(store, job, outcome) is Reply.AGAIN
    assert picture(store) == before
    assert settle(store, row(store, job.id), outcome) is ACCEPTED
    after = row(store, job.id)
    assert (after.state, after.rolling_back) == (State.READY, True)


def test_an_ending_of_the_attempt_itself_is_to_be_judged_again_too(store: Store) -> None:
    """A thread that was given up may have begun a step behind the back of its worker."""
    job = start_flow(store)
    record(store, job, a_step(1, "started", repeatable=False), open_step="charge")
    assert settle(store, job, Released(True, "stopping")) is Reply.AGAIN
    assert settle(store, row(store, job.id), Released(True, "stopping")) is ACCEPTED
    assert row(store, job.id).state is State.HELD


def test_a_success_is_a_success_whatever_was_recorded_meanwhile(store: Store) -> None:
    job = start_flow(store)
    record(store, job, a_step(1, "started", has_undo=True, repeatable=False), open_step="charge", undoable=True)
    assert settle(store, job, Succeeded('"fine"')) is ACCEPTED


def test_a_verdict_without_a_look_at_steps_is_not_compared_with_them(store: Store) -> None:
    job = start_flow(store)
    record(store, job, a_step(1, "started", has_undo=True, repeatable=False), open_step="charge", undoable=True)
    blind = msgspec.structs.replace(settlement(job, Failed("x")), seen_open_step=None, seen_undoable=None)
    assert store.settle([blind]) == [ACCEPTED]


@pytest.mark.parametrize("seen", [{"seen_open_step": ""}, {"seen_undoable": False}], ids=["open step", "undoable"])
def test_even_a_success_is_to_be_judged_again_when_it_names_what_was_seen(store: Store, seen: dict[str, Any]) -> None:
    job = start_flow(store)
    record(store, job, a_step(1, "started", has_undo=True, repeatable=False), open_step="charge", undoable=True)
    named = msgspec.structs.replace(settlement(job, Succeeded()), **seen)
    assert store.settle([named]) == [Reply.AGAIN]
    assert row(store, job.id).state is State.RUNNING


def test_steps_of_one_do_not_stop_the_others_of_its_batch(store: Store) -> None:
    flows = [start_flow(store) for _ in range(3)]
    record(store, flows[1], a_step(1, "started", repeatable=False), open_step="charge")
    plain = start(store)
    batch = [settlement(job, Failed("x")) for job in (*flows, plain)]
    assert store.settle(batch) == [ACCEPTED, Reply.AGAIN, ACCEPTED, ACCEPTED]
    assert [row(store, job.id).state for job in flows] == [State.READY, State.RUNNING, State.READY]


def test_a_lease_that_was_renewed_is_not_settled_whatever_was_begun(store: Store, clock: FakeClock) -> None:
    job = start_flow(store)
    assert job.worker is not None
    clock.advance(30)
    [seen] = store.overdue()
    store.beat(job.worker, [Pulse(job.lease)])
    record(store, job, a_step(1, "started", repeatable=False), open_step="charge")
    assert settle(store, seen, EXPIRED, seen_lease=True) is REFUSED


# ------------------------------------------------------------------------------------------- reapers


def test_a_reaper_that_saw_the_lease_as_it_is_settles_it(store: Store, clock: FakeClock) -> None:
    job = start(store)
    clock.advance(30)
    [seen] = store.overdue()
    assert settle(store, seen, EXPIRED, seen_lease=True) is ACCEPTED
    assert row(store, job.id).state is State.READY


@pytest.mark.parametrize("lease", [0.1 + 0.2, 12_345.678_901_234_567, 1e7 / 3, 98_765_432.123_456_789])
def test_a_lease_end_with_many_digits_is_reaped_like_any_other(store: Store, clock: FakeClock, lease: float) -> None:
    clock.reboot(clock.boot_id, lease)
    job = start(store, lease_s=7.7)
    assert job.lease_until == pytest.approx(lease + 7.7, abs=1e-6)
    assert job.worker is not None
    clock.advance(8)
    [seen] = store.overdue()
    assert seen == job
    store.beat(job.worker, [Pulse(job.lease)])
    assert settle(store, seen, EXPIRED, seen_lease=True) is REFUSED
    clock.advance(8)
    [seen] = store.overdue()
    assert settle(store, seen, EXPIRED, seen_lease=True) is ACCEPTED


def test_the_second_of_two_reapers_is_refused_without_a_stale_report(store: Store, clock: FakeClock) -> None:
    start(store)
    clock.advance(30)
    [seen] = store.overdue()
    [also_seen] = store.overdue()
    settle(store, seen, EXPIRED, seen_lease=True)
    before = picture(store)
    assert settle(store, also_seen, EXPIRED, seen_lease=True) is REFUSED
    assert picture(store) == before


def test_a_reaper_that_settles_by_fence_alone_and_comes_second_leaves_no_stale_report(store: Store) -> None:
    job = start(store)
    vanished = Lost("vanished", "its process is gone")
    assert settle(store, job, vanished) is ACCEPTED
    before = picture(store)
    assert settle(store, job, vanished) is REFUSED
    again(store, row(store, job.id))
    assert settle(store, job, vanished) is REFUSED
    assert stale_reports(store) == []
    assert row(store, job.id).fence == before[0][0].fence + 1


def test_a_reaper_that_comes_after_the_attempt_settled_itself_changes_nothing(store: Store, clock: FakeClock) -> None:
    job = start(store)
    clock.advance(30)
    [seen] = store.overdue()
    settle(store, job, Succeeded())
    before = picture(store)
    assert settle(store, seen, EXPIRED, seen_lease=True) in (ALREADY, REFUSED)
    assert picture(store) == before


def test_a_reaper_with_an_old_sight_of_the_lease_is_refused_even_when_it_has_run_out_again(
    store: Store, clock: FakeClock
) -> None:
    job = start(store)
    assert job.worker is not None
    clock.advance(30)
    [seen] = store.overdue()
    store.beat(job.worker, [Pulse(job.lease)])
    clock.advance(60)
    assert settle(store, seen, EXPIRED, seen_lease=True) is REFUSED
    [newer] = store.overdue()
    assert settle(store, newer, EXPIRED, seen_lease=True) is ACCEPTED


def test_a_detector_that_knows_of_the_death_settles_a_lease_that_has_just_been_renewed(
    store: Store, clock: FakeClock
) -> None:
    seen = start(store)
    assert seen.worker is not None
    clock.advance(5)
    store.beat(seen.worker, [Pulse(seen.lease)])
    assert settle(store, seen, Lost("exit", "killed by signal 9")) is ACCEPTED


def test_a_late_report_of_a_reaped_attempt_is_refused_even_with_the_fence_on_the_row(store: Store) -> None:
    zombie = start(store)
    settle(store, zombie, EXPIRED)
    now = row(store, zombie.id)
    guess = Lease(zombie.id, now.fence, zombie.lease.claim_id)
    assert store.settle([report(guess)]) == [REFUSED]


# ------------------------------------------------------------------------------------------- together


def test_a_settled_key_is_free_for_the_next_job(store: Store) -> None:
    job = start(store, key="k")
    settle(store, job, Succeeded())
    assert not store.add([make_job(key="k")])[0].existed


def test_two_thousand_attempts_are_settled_in_one_batch(store: Store) -> None:
    add_many(store, [make_job() for _ in range(2000)])
    jobs = claim(store, enrol(store), limit=2000)
    outcomes = [Succeeded('"x"') if number % 2 else Failed("x") for number in range(2000)]
    batch = [settlement(job, outcome) for job, outcome in zip(jobs, outcomes, strict=True)]
    assert store.settle(batch) == [ACCEPTED] * 2000
    assert store.counts() == {"default": {State.DONE: 1000, State.READY: 1000}}
    assert len(store.journal(limit=5000)) == 1000


@pytest.mark.parametrize("outcome", [Succeeded('"r"'), Failed("boom"), Released(True, "stopping")])
def test_an_ending_is_that_of_the_job_it_names_and_of_no_other_of_the_same_claim(
    store: Store, outcome: Outcome
) -> None:
    store.add([make_job(), make_job()])
    named, left_out = claim(store, limit=2)
    assert settle(store, named, outcome) is ACCEPTED
    assert row(store, left_out.id) == left_out


def test_even_a_success_is_refused_when_it_names_a_lease_that_was_renewed_since(store: Store, clock: FakeClock) -> None:
    job = start(store)
    clock.advance(10)
    store.beat(job.worker or "", [Pulse(job.lease)])
    before = row(store, job.id)
    assert settle(store, job, Succeeded(), seen_lease=True) is REFUSED
    assert row(store, job.id) == before
