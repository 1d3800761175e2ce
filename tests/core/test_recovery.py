"""What a reaper decides before `judge`: whom it believes to be lost, when, and who is to blame."""

import signal
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.core.records import Job, Moment, Vanished
from holdfast.core.recovery import (
    GAPS,
    LEASE_RAN_OUT,
    MANY,
    PROOF_S,
    RENEW_S,
    SECOND_LOOK_S,
    SILENCE_S,
    SILENT_MAX_S,
    STORM,
    STORM_SPREAD_S,
    UNBROKEN_S,
    Gap,
    Observations,
    WorkerDeath,
    beating,
    death_of,
    death_of_silent,
    last_gap,
    late,
    outcome_of,
    spread_s,
    suspects,
)
from holdfast.core.verdict import Lost, Released
from holdfast.core.worker_exit import WorkerExit
from tests.factory import a_job, a_worker

BEAT_S = 10.0
LEASE_S = 30.0
NOW = Moment(wall=5000.0, lease=1000.0)


def running(id: str = "a", **given: Any) -> Job:
    return a_job(**{"id": id, "worker": "w", "lease_until": 100.0, "beat_s": BEAT_S, "lease_s": LEASE_S} | given)


def expired(
    observed: Observations, jobs: list[Job], now: float, beating: Sequence[str] = (), locked: Sequence[str] = ()
) -> list[str]:
    """Make one pass over overdue jobs, and return the ids of those that are settled."""
    observed.begin()
    found = [job.id for job in observed.confirmed_expired(jobs, now, beating, locked)]
    observed.finish()
    return found


# ------------------------------------------------------------------------------------------------ a second look


@pytest.mark.parametrize("evidence", ["lock", "session"])
def test_a_lock_must_be_seen_free_for_a_while(evidence: Any) -> None:
    observed, dead = Observations(), Vanished(a_worker(id="w"), evidence)
    assert observed.confirmed_vanished([dead], 1000.0, 0.5) == []
    assert (observed.unconfirmed, observed.recheck_s, observed.patience_s) == ([0.5], 0.5, 0.5)
    observed.begin()
    assert observed.confirmed_vanished([dead], 1000.25, 0.5) == []
    assert observed.unconfirmed == [0.25]
    observed.begin()
    assert observed.confirmed_vanished([dead], 1000.5, 0.5) == [dead]
    assert (observed.unconfirmed, observed.recheck_s, observed.patience_s) == ([], 0.0, 0.0)


def test_a_lock_that_was_taken_again_must_be_seen_free_twice_more() -> None:
    observed, dead = Observations(), Vanished(a_worker(id="w"), "lock")
    observed.confirmed_vanished([dead], 1000.0, 0.5)
    observed.confirmed_vanished([], 1000.25, 0.5)
    assert observed.confirmed_vanished([dead], 1000.75, 0.5) == []


@pytest.mark.parametrize("evidence", ["lock", "session"])
@pytest.mark.parametrize("beat", [{"beats": 8}, {"beat_at": 4990.5}], ids=["counted", "noted beside a locked row"])
def test_a_worker_that_beats_while_its_lock_is_free_is_not_dead(evidence: Any, beat: dict[str, Any]) -> None:
    """Its session was cut, and the server has no room for another one. When its beats stop, it is dead."""
    observed, before = Observations(), Vanished(a_worker(id="w", beats=7, beat_at=4990.0), evidence)
    after = Vanished(a_worker(**{"id": "w", "beats": 7, "beat_at": 4990.0} | beat), evidence)
    observed.confirmed_vanished([before], 1000.0, 0.5)
    observed.begin()
    assert observed.confirmed_vanished([after], 1000.5, 0.5) == []
    assert observed.unconfirmed == [0.5], "the wait begins again with the beat"
    observed.begin()
    assert observed.confirmed_vanished([after], 1000.75, 0.5) == []
    assert observed.unconfirmed == [0.25]
    assert observed.confirmed_vanished([after], 1001.0, 0.5) == [after]


def test_a_beat_of_one_worker_does_not_save_another() -> None:
    observed, dead = Observations(), Vanished(a_worker(id="dead", beats=7), "session")
    living = [Vanished(a_worker(id="living", beats=beats), "session") for beats in (1, 2)]
    observed.confirmed_vanished([dead, living[0]], 1000.0, 0.5)
    assert observed.confirmed_vanished([dead, living[1]], 1000.5, 0.5) == [dead]


@pytest.mark.parametrize("evidence", ["boot", "gone"])
def test_a_new_boot_and_a_mark_are_believed_at_once(evidence: Any) -> None:
    observed, dead = Observations(), Vanished(a_worker(id="w"), evidence)
    assert observed.confirmed_vanished([dead], 1000.0, 0.5) == [dead]
    assert observed.unconfirmed == []


def test_an_overdue_lease_is_believed_at_the_second_look() -> None:
    observed, job = Observations(), running(lease_until=0.0)
    assert expired(observed, [job], 0.0) == []
    assert observed.unconfirmed == [SECOND_LOOK_S]
    assert expired(observed, [job], SECOND_LOOK_S) == ["a"]
    assert observed.unconfirmed == []


@pytest.mark.parametrize("changed", [{"fence": 2}, {"lease_until": 101.0}])
def test_a_lease_that_was_renewed_in_between_is_another_one(changed: dict[str, Any]) -> None:
    observed = Observations()
    expired(observed, [running(fence=1)], 200.0)
    assert expired(observed, [running(**{"fence": 1} | changed)], 201.0) == []


def test_a_job_that_a_pass_did_not_meet_is_forgotten() -> None:
    observed, job = Observations(), running()
    expired(observed, [job], 100.0)
    expired(observed, [], 101.0)
    assert observed.overdue == {}
    assert expired(observed, [job], 102.0) == []


def test_a_pass_that_was_broken_off_forgets_nothing() -> None:
    observed, job = Observations(), running()
    expired(observed, [job], 100.0)
    observed.begin()
    assert expired(observed, [job], 101.0) == ["a"]


def test_a_reaper_that_stands_by_forgets_what_it_saw() -> None:
    observed, job, dead = Observations(), running(), Vanished(a_worker(id="w"), "lock")
    expired(observed, [job], 100.0)
    observed.confirmed_vanished([dead], 100.0, 0.5)
    observed.forget()
    assert observed.unconfirmed == []
    assert expired(observed, [job], 101.0) == []
    assert observed.confirmed_vanished([dead], 101.0, 0.5) == []


@pytest.mark.parametrize(("number", "at_once"), [(MANY, False), (MANY + 1, True)])
def test_very_many_overdue_jobs_get_no_second_look(number: int, at_once: bool) -> None:
    observed = Observations()
    assert len(expired(observed, [running(str(n)) for n in range(number)], 100.0)) == (number if at_once else 0)


def test_another_look_is_worth_it_when_the_first_doubt_can_be_settled_and_ends_with_the_last() -> None:
    observed = Observations()
    observed.unconfirmed = [0.01, 3.0]
    assert (observed.recheck_s, observed.patience_s) == (SECOND_LOOK_S, 3.0)


# -------------------------------------------------------------------------------------------------- locked rows


def test_an_overdue_job_whose_worker_beats_gets_one_beat_after_its_row_is_free() -> None:
    observed, job = Observations(), running()
    assert expired(observed, [job], 100.0, ["a"], ["a"]) == []
    assert observed.unconfirmed == [], "nobody knows how long a row stays locked"
    assert expired(observed, [job], 150.0, ["a"], ["a"]) == []
    assert expired(observed, [job], 155.0, ["a"]) == []
    assert observed.unconfirmed == [5.0]
    assert expired(observed, [job], 160.0, ["a"]) == ["a"]


@pytest.mark.parametrize(("beat_at", "beats"), [(5000.0, True), (4990.5, True), (4990.0, False), (5009.5, True)])
def test_a_worker_beats_if_its_last_beat_is_younger_than_a_beat_of_the_job(beat_at: float, beats: bool) -> None:
    living = {"w": a_worker(id="w", beat_at=beat_at)}
    others = running("b", worker="gone"), running("c", worker=None)
    assert beating([running(), *others], living, 5000.0) == ({"a"} if beats else set())


# --------------------------------------------------------------------------------------------------------- gaps


@pytest.mark.parametrize(
    ("gaps", "found"),
    [
        ([], None),
        ([Gap(0, 9)], None),
        ([Gap(0, 10)], Gap(0, 10)),
        ([Gap(0, 30), Gap(31, 34)], Gap(0, 34)),
        ([Gap(0, 30), Gap(50, 53)], Gap(0, 30)),
        ([Gap(0, 30), Gap(50, 80)], Gap(50, 80)),
        ([Gap(0, 4), Gap(5, 9), Gap(10, 14)], Gap(0, 14)),
        ([Gap(0, 8), Gap(18, 26)], None),
    ],
)
def test_gaps_with_less_than_a_beat_between_them_are_one(gaps: list[Gap], found: Gap | None) -> None:
    assert last_gap(gaps, BEAT_S) == found


def after_a_gap(seconds: float = 40.0) -> Observations:
    """The reaper's clock is 900 s behind the store's. The gap ends at 200 on the store's clock."""
    observed = Observations()
    observed.pinged(-700.0 - seconds, -700.0, 200.0)
    return observed


def test_after_a_gap_every_worker_gets_one_beat_to_renew() -> None:
    observed, job = after_a_gap(), running(lease_until=199.0)
    assert expired(observed, [job], 200.0) == []
    assert observed.unconfirmed == [BEAT_S]
    assert expired(observed, [job], 209.0) == []
    assert expired(observed, [job], 210.0) == ["a"]


def test_a_gap_does_not_shorten_the_patience_with_a_worker_that_beats() -> None:
    observed, job = after_a_gap(), running(lease_until=199.0)
    assert expired(observed, [job], 205.0, ["a"]) == []
    assert observed.unconfirmed == [BEAT_S]


@pytest.mark.parametrize(
    ("lease_until", "excused"), [(159.9, False), (160.0, True), (200.0, True), (229.9, True), (230.0, False)]
)
def test_a_lease_that_was_last_renewed_before_the_end_of_the_gap_is_excused(lease_until: float, excused: bool) -> None:
    assert after_a_gap().is_in_gap(running(lease_until=lease_until)) is excused
    assert not Observations().is_in_gap(running(lease_until=lease_until))
    assert not after_a_gap().is_in_gap(running(lease_until=None))


@pytest.mark.parametrize(("silent_s", "beat_s", "gap"), [(SILENCE_S, 1.0, False), (SILENCE_S + 0.1, 1.0, True)])
def test_a_store_that_does_not_answer_for_long_makes_a_gap(silent_s: float, beat_s: float, gap: bool) -> None:
    assert after_a_gap(silent_s).is_in_gap(running(lease_until=199.9, beat_s=beat_s)) is gap


@pytest.mark.parametrize(("pace_s", "gap"), [(0.0, True), (5.0, False), (2.0, True)])
def test_a_silence_between_two_pings_makes_a_gap_but_the_reapers_own_pause_does_not(pace_s: float, gap: bool) -> None:
    observed = Observations(pace_s)
    observed.pinged(0.0, 0.0, 100.0)
    observed.pinged(5.0, 5.0, 105.0)
    assert observed.is_in_gap(running(lease_until=104.0, beat_s=1.0)) is gap


def test_the_first_ping_has_nothing_to_compare_with() -> None:
    observed = Observations()
    observed.pinged(50.0, 50.0, 100.0)
    assert not observed.is_in_gap(running(lease_until=99.0, beat_s=1.0))


@pytest.mark.parametrize(("wrote_at", "gap"), [(2.0, False), (2.1, True)])
def test_a_long_pass_makes_no_gap_while_its_writes_are_answered(wrote_at: float, gap: bool) -> None:
    observed = Observations()
    observed.pinged(0.0, 0.0, 100.0)
    observed.wrote(wrote_at)
    observed.pinged(4.0, 4.0, 104.0)
    assert observed.is_in_gap(running(lease_until=103.0, beat_s=1.0)) is gap


def test_a_write_before_the_first_ping_says_nothing() -> None:
    observed = Observations()
    observed.wrote(0.0)
    observed.pinged(50.0, 50.0, 100.0)
    assert not observed.is_in_gap(running(lease_until=99.0, beat_s=1.0))


def test_a_store_clock_that_is_set_ahead_makes_a_gap() -> None:
    observed = Observations()
    assert observed.clock_jump_s(1000.0, 0.0) == 0.0, "the first look has nothing to compare with"
    assert observed.clock_jump_s(1010.0, 10.0) == 0.0
    assert observed.clock_jump_s(1012.0 + SILENCE_S, 12.0) == 0.0, "a small jump is noise"
    assert observed.clock_jump_s(1000.0, 12.0) == 0.0, "it was set back: no lease ends early"
    assert not observed.is_in_gap(running(lease_until=1000.0))
    assert observed.clock_jump_s(4613.0, 25.0) == 3600.0
    assert observed.clock_jump_s(4614.0, 26.0) == 0.0
    assert observed.is_in_gap(running(lease_until=1013.0))
    assert not observed.is_in_gap(running(lease_until=1012.0))


def test_old_gaps_are_forgotten() -> None:
    observed = Observations()
    for n in range(GAPS):
        observed.pinged(0.0, 1.0 if n else 40.0, 200.0 + 50 * n)
    assert observed.is_in_gap(running(lease_until=199.0))


# ------------------------------------------------------------------------------- reads work, and no commit ends


def prove(observed: Observations, at: float, job: Job, took_s: float = 0.01) -> None:
    """The reaper commits a write of its own, and its clock is 900 s behind the store's."""
    observed.proven(at - took_s - 900.0, at - 900.0, at, [job])


def test_a_lease_is_judged_once_commits_have_worked_for_a_few_seconds() -> None:
    observed, job = Observations(), running()
    for at in (97.0, 98.5, 100.0):
        prove(observed, at, job)
    assert expired(observed, [job], 100.0) == []
    assert observed.unconfirmed == [SECOND_LOOK_S], "its workers had the time to renew before the lease ended"
    assert expired(observed, [job], 100.01 + SECOND_LOOK_S) == ["a"]


@pytest.mark.parametrize(("beat_s", "wait_s"), [(BEAT_S, RENEW_S), (1.0, 1.0)])
def test_where_nothing_is_known_about_commits_the_living_get_the_time_to_renew(beat_s: float, wait_s: float) -> None:
    observed, job = Observations(), running(beat_s=beat_s)
    prove(observed, 200.0, job)
    assert expired(observed, [job], 200.0) == []
    assert observed.unconfirmed == [wait_s]
    prove(observed, 200.0 + wait_s / 2, job)
    assert expired(observed, [job], 200.0 + wait_s) == ["a"]
    assert not observed.is_in_gap(job), "it costs its crash"


def test_two_commits_with_a_long_time_between_them_show_nothing_about_that_time() -> None:
    observed, job = Observations(), running()
    prove(observed, 195.0, job)
    prove(observed, 195.0 + UNBROKEN_S + 0.1, job)
    assert expired(observed, [job], 198.0) == []
    assert observed.unconfirmed == [pytest.approx(195.0 + UNBROKEN_S + 0.1 + RENEW_S - 198.0)]


@pytest.mark.parametrize("took_s", [0.01, SILENCE_S + 0.1])
def test_a_commit_that_failed_or_took_long_is_a_gap_since_the_oldest_lease_was_renewed(took_s: float) -> None:
    observed, job = Observations(), running()
    if took_s < SILENCE_S:
        observed.unproven()
    observed.proven(1000.0, 1000.0 + took_s, 200.0, [running("b", lease_until=110.0), job])
    assert observed.is_in_gap(running(lease_until=70.0))
    assert not observed.is_in_gap(running(lease_until=69.9))
    for at in range(201, 210):
        prove(observed, at, job)
    assert expired(observed, [job], 209.8) == []
    assert expired(observed, [job], 210.0) == ["a"]


def test_a_gap_begins_at_the_last_commit_that_was_seen() -> None:
    observed, job = Observations(), running()
    prove(observed, 98.0, job)
    observed.unproven()
    prove(observed, 103.0, job)
    assert not observed.is_in_gap(job), "it was shorter than a beat"
    observed.unproven()
    prove(observed, 120.0, job)
    assert observed.is_in_gap(running(lease_until=98.0)), "two with less than a beat between them are one"
    assert not observed.is_in_gap(running(lease_until=97.9))
    prove(observed, 121.0, job)
    assert observed.is_in_gap(running(lease_until=149.9))
    assert not observed.is_in_gap(running(lease_until=150.0)), "a commit that works is no gap"


def test_while_a_lease_is_late_something_is_committed_each_second_and_otherwise_never() -> None:
    observed, job = Observations(), running()
    assert not observed.wants_proof([], 97.0)
    observed.unproven()
    assert not observed.wants_proof([], 97.0)
    assert observed.wants_proof([job], 97.0)
    prove(observed, 97.0, job)
    assert not observed.wants_proof([job], 97.0 + PROOF_S - 0.1)
    assert observed.wants_proof([job], 97.0 + PROOF_S)
    assert observed.wants_proof([job, running("b", beat_s=0.5)], 97.25)
    observed.unproven()
    assert observed.wants_proof([job], 97.1)


@pytest.mark.parametrize(
    ("now", "grace_s", "is_late"),
    [(90.0, 0.0, False), (90.1, 0.0, True), (99.9, 0.0, True), (100.0, 0.0, False), (100.0, 1.0, True)],
)
def test_a_lease_is_late_when_it_has_missed_a_beat_and_is_not_overdue(
    now: float, grace_s: float, is_late: bool
) -> None:
    assert [job.id for job in late([running()], now, grace_s)] == (["a"] if is_late else [])


# ------------------------------------------------------------------------------------------------ how it ended


@pytest.mark.parametrize(
    ("evidence", "name", "detector", "cause"),
    [
        ("lock", "box", "vanished", "its process died (pid 7 on host)"),
        ("lock", "w", "restart", "an earlier process of this worker died (pid 7 on host)"),
        ("session", None, "vanished", "its process died or was cut off from the server (pid 7 on host)"),
        ("boot", "w", "restart", "its machine was restarted"),
        ("boot", None, "vanished", "its machine was restarted"),
    ],
)
def test_the_evidence_says_how_a_worker_ended(evidence: Any, name: str | None, detector: Any, cause: str) -> None:
    worker = a_worker(name="w", pid=7, host="host")
    death = death_of(Vanished(worker, evidence), name, 5.0)
    assert death == WorkerDeath(cause, WorkerExit(detector), worker, evidence, 5.0)


def test_a_worker_that_was_marked_gone_ended_as_its_row_says() -> None:
    worker = a_worker(name="w", gone_cause="it was killed", exit_kind="exit", exit_code=-9)
    death = death_of(Vanished(worker, "gone"), "w", 5.0)
    assert death == WorkerDeath("it was killed", WorkerExit("exit", -9), worker, None, 5.0)


@pytest.mark.parametrize(
    ("silent_s", "has_ended", "running", "detector"),
    [
        (SILENT_MAX_S, False, 0, None),
        (SILENT_MAX_S + 1, False, 0, "vanished"),
        (SILENT_MAX_S + 1, False, 1, None),
        (SILENT_MAX_S + 1, True, 0, "restart"),
        (60.0, True, 0, "restart"),
        (60.0, True, 1, None),
        (60.0, False, 0, None),
        (0.0, True, 0, None),
    ],
)
def test_a_silent_worker_is_gone_after_a_day_or_once_its_process_is_seen_to_be_gone(
    silent_s: float, has_ended: bool, running: int, detector: str | None
) -> None:
    worker = a_worker(beat_at=200_000.0 - silent_s, running=running, beat_s=10.0)
    found = death_of_silent(worker, 200_000.0, has_ended=has_ended)
    assert (found.exit.kind if found else None) == detector


# --------------------------------------------------------------------------------------------------- one attempt


def lost(job: Job, death: WorkerDeath, suspects: int = 1, in_gap: bool = False) -> Lost:
    found = outcome_of(job, death, death.worker, NOW, suspects=suspects, in_gap=in_gap)
    assert isinstance(found, Lost)
    return found


def test_a_lost_attempt_carries_everything_that_is_known() -> None:
    worker = a_worker(name="box")
    found = lost(running(started=True), WorkerDeath("it died", WorkerExit("vanished"), worker, "lock", 5.0), 3)
    assert (found.detector, found.worker, found.cause) == ("vanished", "box", "it died")
    assert (found.suspects, found.excused, found.spread_s, found.started) == (3, False, 5.0, True)
    assert (found.autopsy["worker"], found.autopsy["evidence"]) == ("box", "lock")


def test_a_worker_that_nobody_knows_is_called_by_its_id() -> None:
    found = lost(running(started=False), LEASE_RAN_OUT)
    assert (found.detector, found.worker, found.cause) == ("expired", "w", "its lease ran out")
    assert not found.started
    assert "evidence" not in found.autopsy


@pytest.mark.parametrize(
    ("given", "begun"),
    [({"started": True}, True), ({"started": False}, False), ({"started": False, "open_step": "charge"}, True)],
)
def test_a_worker_that_was_told_to_stop_gives_its_jobs_back(given: dict[str, Any], begun: bool) -> None:
    death = WorkerDeath("the worker stopped", WorkerExit("released"))
    found = outcome_of(running(**given), death, None, NOW, suspects=1, in_gap=False)
    assert found == Released(begun, "the worker stopped")


def test_a_workflow_whose_step_is_open_had_begun_when_its_worker_was_lost() -> None:
    assert lost(running(started=False, open_step="charge"), LEASE_RAN_OUT).started


@pytest.mark.parametrize(
    ("code", "number", "found"),
    [(3, 1, 1), (3, 2, 2), (-signal.SIGSEGV, 1, 1), (-signal.SIGKILL, 1, 0)],
)
def test_a_job_that_was_alone_is_suspected_if_its_process_ended_itself(code: int, number: int, found: int) -> None:
    assert lost(running(), WorkerDeath("it ended", WorkerExit("exit", code)), number).suspects == found


@pytest.mark.parametrize(
    ("detector", "excused", "in_gap", "found"),
    [
        ("expired", False, False, False),
        ("expired", False, True, True),
        ("exit", False, True, False),
        ("exit", True, False, True),
    ],
)
def test_an_attempt_is_excused_if_its_lease_ended_in_a_gap_or_its_worker_was_excused(
    detector: Any, excused: bool, in_gap: bool, found: bool
) -> None:
    death = WorkerDeath("it ended", WorkerExit(detector, excused=excused))
    assert lost(running(), death, in_gap=in_gap).excused is found


def test_all_jobs_of_one_process_are_suspects() -> None:
    jobs = [running("a"), running("b"), running("c", worker="x"), running("a")]
    assert suspects(jobs) == Counter({"w": 2, "x": 1})


@pytest.mark.parametrize(("begun", "seconds"), [(0, 0.0), (STORM, 0.0), (STORM + 1, STORM_SPREAD_S)])
def test_a_storm_comes_back_over_a_few_seconds(begun: int, seconds: float) -> None:
    assert spread_s(begun) == seconds


def test_a_worker_that_was_marked_gone_without_a_cause_has_vanished() -> None:
    death = death_of(Vanished(a_worker(name="w"), "gone"), None, 0.0)
    assert (death.cause, death.exit) == ("marked gone", WorkerExit("vanished"))
