"""Dead, hung, slow: told apart from what the rows say, over every store and on a clock that stands still."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from holdfast import insight
from holdfast.cli.commands import command_of
from holdfast.cli.main import cli
from holdfast.core.records import Event, Job, Pulse
from holdfast.core.verdict import Failed, Lost, Stalled, Succeeded, TimedOut
from holdfast.core.worker_exit import WorkerExit
from holdfast.insight.health import NOT_BEGUN_S, SLOW_LEAST_S, STILL_S, Health, Uncounted, fresh_since, health
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.factory import EXPIRED, add, again, claim, enrol, revive, row, settle, start

BEAT_S = 10.0  # of a worker


def beat(store: Store, job: Job, still_s: float | None = None, progress: float | None = None) -> None:
    assert job.worker is not None
    store.beat(job.worker, [Pulse(job.lease, progress=progress, still_s=still_s)])


def told(store: Store, job: Job) -> tuple[str, str]:
    """What the command line says, to programs and to people; both say the same."""
    seen = row(store, job.id)
    health = insight.job_story(store, seen)["health"]
    sentence = insight.explain(store, seen).sentence
    assert sentence.endswith(health["sentence"])
    return health["word"], health["sentence"]


def choices(store: Store, job_id: str) -> list[tuple[str, str]]:
    """What a person may do about it, in words and as a command."""
    return [(choice.words, command_of(choice)) for choice in insight.explain(store, row(store, job_id)).choices]


def usually(store: Store, clock: FakeClock, task: str, took_s: float, jobs: int) -> None:
    for _ in range(jobs):
        job = start(store, task=task)
        clock.advance(took_s)
        settle(store, job, Succeeded())


# ------------------------------------------------------------------------------------------------- it runs


def test_all_is_well(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=30.0, timeout_s=60.0, stall_s=40.0)
    clock.advance(5)
    assert told(store, job) == ("well", "Its lease ends in 25 s unless the worker renews it.")


def test_a_job_that_does_not_run_has_no_health(store: Store) -> None:
    assert insight.job_story(store, add(store))["health"] is None


def test_dead_when_no_beat_came_until_the_lease_ran_out(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=30.0)
    beat(store, job)
    clock.advance(42)
    enrol(store)
    assert told(store, job) == (
        "dead",
        "Its worker is dead, frozen or cut off: no beat for 42 s, and its lease ran out 12 s ago. "
        "A reaper will settle it.",
    )
    assert choices(store, job.id) == [("recover it now", "holdfast scan --fix")]


def test_dead_only_when_the_lease_is_over(store: Store, clock: FakeClock) -> None:
    job = start(store, enrol(store, beat_s=10.0), lease_s=30.0)
    beat(store, job)
    for passed_s, word in ((29.5, "silent"), (0.5, "silent"), (0.5, "dead")):
        clock.advance(passed_s)
        assert told(store, job)[0] == word


def test_a_job_of_an_unknown_worker_is_judged_by_its_lease_alone(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=30.0)
    assert health(job, None, store.now()).word == "well"
    clock.advance(42)
    assert health(job, None, store.now()).sentence == (
        "Its worker is dead, frozen or cut off: its lease ran out 12 s ago. A reaper will settle it."
    )


def test_a_job_with_no_time_of_its_claim_is_neither_hung_nor_slow(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=600.0, stall_s=3.0, timeout_s=4.0)
    clock.advance(300)
    assert health(replace(job, claimed_at=None), None, store.now(), usual_s=1.0).word == "well"


def test_silent_when_the_lease_of_this_very_job_is_not_renewed(store: Store, clock: FakeClock) -> None:
    """A job may have a shorter lease than its worker beats for."""
    job = start(store, lease_s=6.0, beat_s=2.0)
    beat(store, job)
    clock.advance(4.0)
    assert told(store, job)[0] == "well"
    clock.advance(0.5)
    assert told(store, job) == (
        "silent",
        "Perhaps its worker is dead, frozen or cut off: its lease was not renewed for 4.5 s, though that is due every "
        "2.0 s. A reaper will settle it when its lease ends, in 1.5 s, or as soon as the death is proved.",
    )


def test_losses_that_do_not_count_are_counted(store: Store, clock: FakeClock) -> None:
    """Of several jobs in a process that died all are suspects, and who comes to an end afterwards was innocent."""
    job = start(store, crashes_max=9, attempts_max=9)
    told_of = [
        (Lost("exit", "killed", suspects=2), 1, 0),
        (Failed("oops"), 0, 1),
        (Lost("exit", "killed", excused=True), 0, 2),
        (Lost("exit", "killed"), 1, 2),
    ]
    for outcome, crashes, uncounted in told_of:
        settle(store, job, outcome)
        seen = row(store, job.id)
        assert (seen.crashes, insight.uncounted(seen, store.journal(job.id))) == (crashes, Uncounted(0, uncounted))
        clock.advance(3600)
        job = again(store, seen)


def test_losses_of_before_a_person_gave_it_fresh_budgets_are_past(store: Store) -> None:
    job = start(store, on_crash="fail")
    settle(store, job, Lost("exit", "killed"))
    assert revive(store, row(store, job.id))
    assert insight.uncounted(row(store, job.id), store.journal(job.id)) == Uncounted(0, 0)


def test_a_loss_before_the_recorded_start_blames_no_job(store: Store) -> None:
    job = start(store)
    settle(store, job, Lost("exit", "killed", started=False, autopsy={"started": False}))
    assert insight.uncounted(row(store, job.id), store.journal(job.id)) == Uncounted(1, 0)


def test_dead_when_its_worker_is_gone_though_the_lease_has_not_ended(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=30.0)
    assert job.worker is not None
    store.retire(job.worker, "its process was killed by SIGKILL", how=WorkerExit("exit", -9))
    clock.advance(3)
    enrol(store)
    assert told(store, job) == (
        "dead",
        "Its worker is gone (its process was killed by SIGKILL, 3.0 s ago). A reaper is about to settle it.",
    )


NOBODY = "No worker is alive to settle it: start one, unless `holdfast reaper` runs."


def test_no_reaper_is_promised_when_no_worker_is_alive(store: Store, clock: FakeClock) -> None:
    silent, overdue = (start(store, enrol(store, beat_s=1.0), lease_s=lease_s) for lease_s in (600.0, 3.0))
    gone = start(store, lease_s=600.0)
    assert gone.worker is not None
    store.retire(gone.worker, "its process was killed by SIGKILL", how=WorkerExit("exit", -9))
    clock.advance(60)
    for job, word in ((silent, "silent"), (overdue, "dead"), (gone, "dead")):
        found, sentence = told(store, job)
        assert (found, sentence.endswith(f". {NOBODY}")) == (word, True)


def test_dead_as_soon_as_its_worker_vanished(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=30.0)
    clock.advance(2)
    [worker], now = store.workers(), store.now()
    assert health(job, worker, now, vanished={worker.id}) == Health(
        "dead",
        "Its worker vanished: its process has ended or was cut off from the store, and beat last 2.0 s ago. "
        "A reaper is about to settle it.",
    )
    assert health(job, worker, now, vanished={worker.id}, reaped=False).sentence.endswith(f". {NOBODY}")
    assert health(job, worker, now, vanished={"another"}).word == "well"


@pytest.mark.parametrize("beat_at", [30, 40], ids=["when its lease ended", "now"])
def test_a_worker_that_beats_for_others_only_has_lost_this_one(store: Store, clock: FakeClock, beat_at: int) -> None:
    worker = enrol(store)
    job, other = start(store, worker, lease_s=30.0), start(store, worker, lease_s=30.0)
    clock.advance(beat_at)
    beat(store, other)
    clock.advance(40 - beat_at)
    word, sentence = told(store, job)
    assert word == "dead"
    assert sentence.startswith("Its worker beats, but no longer for this job: its lease ran out 10 s ago.")


@pytest.mark.parametrize(("silent_s", "word"), [(3 * BEAT_S, "well"), (3 * BEAT_S + 1, "silent")])
def test_silent_when_beats_are_missing_and_the_lease_still_holds(
    store: Store, clock: FakeClock, silent_s: float, word: str
) -> None:
    job = start(store, enrol(store, beat_s=BEAT_S), lease_s=600.0)
    beat(store, job)
    clock.advance(silent_s)
    enrol(store)
    assert told(store, job)[0] == word
    if word == "silent":
        assert told(store, job)[1] == (
            "Its worker is dead, frozen or cut off: no beat for 31 s, though one was due every 10 s. "
            "A reaper will settle it when its lease ends, in 9 min 29 s, or as soon as the death is proved."
        )


@pytest.mark.parametrize(("still_s", "word"), [(29.0, "well"), (30.0, "hung")])
def test_hung_when_it_does_not_move_for_its_stall_s(store: Store, clock: FakeClock, still_s: float, word: str) -> None:
    job = start(store, stall_s=30.0, lease_s=600.0)
    clock.advance(100)
    beat(store, job, still_s=still_s)
    assert told(store, job)[0] == word
    if word == "hung":
        assert told(store, job)[1] == (
            "It hangs: its worker beats, but no progress for 30 s, longer than its stall_s=30. "
            "The worker is about to stop it, as stalled."
        )


def test_hung_when_it_has_not_moved_since_it_began(store: Store, clock: FakeClock) -> None:
    job = start(store, stall_s=30.0, lease_s=600.0)
    clock.advance(31)
    beat(store, job)
    assert told(store, job)[0] == "hung"


@pytest.mark.parametrize("moved_s", [5.0, 200.0])
def test_perhaps_hung_when_it_is_still_for_longer_than_it_moved(store: Store, clock: FakeClock, moved_s: float) -> None:
    """Without a stall_s. It may be still for a minute, and for as long as it moved before."""
    job = start(store, lease_s=3600.0)
    limit = max(STILL_S, moved_s)
    clock.advance(moved_s + limit)
    beat(store, job, still_s=limit)
    assert told(store, job)[0] == "well"
    clock.advance(1)
    beat(store, job)
    word, sentence = told(store, job)
    assert word == "hung"
    assert sentence.startswith("Perhaps it hangs: its worker beats, but it has been still for ")
    assert f", after it had moved for {insight.duration(moved_s)}. " in sentence
    assert sentence.endswith("Nothing stops it but a person: it has no timeout_s and no stall_s.")
    stop = ("stop it", f"holdfast jobs cancel {job.id} --fence {job.fence}")
    assert choices(store, job.id) == [stop]
    asked = replace(row(store, job.id), cancel_requested=True)
    assert insight.explain(store, asked).choices == ()


def test_one_that_may_be_still_for_longer_is_not_said_to_hang(store: Store, clock: FakeClock) -> None:
    job = start(store, stall_s=3600.0, lease_s=36_000.0)
    clock.advance(1000)
    beat(store, job, still_s=900.0)
    assert told(store, job)[0] == "well"


def test_one_that_never_tells_of_progress_is_not_said_to_hang(store: Store, clock: FakeClock) -> None:
    job = start(store, lease_s=36_000.0)
    clock.advance(3600)
    beat(store, job)
    assert told(store, job)[0] == "well"


def test_one_that_waits_for_a_slot_neither_hangs_nor_is_slow(store: Store, clock: FakeClock) -> None:
    add(store, stall_s=3.0, timeout_s=4.0, lease_s=600.0)
    worker = enrol(store)
    [job] = claim(store, worker, limit=0, ahead=1)
    clock.advance(NOT_BEGUN_S - 1)
    store.beat(worker, [Pulse(job.lease, started=False)])
    assert told(store, job)[0] == "well"


def test_a_worker_that_beats_and_does_not_begin_what_it_has_claimed_is_not_well(store: Store, clock: FakeClock) -> None:
    add(store, lease_s=600.0)
    worker = enrol(store)
    [job] = claim(store, worker, limit=0, ahead=1)
    clock.advance(NOT_BEGUN_S)
    store.beat(worker, [Pulse(job.lease, started=False)])
    word, sentence = told(store, job)
    assert word == "hung"
    assert "it beats, but it was claimed 10 s ago and is not said to have begun" in sentence
    assert "restart it" in sentence


@pytest.mark.parametrize(("ran_s", "word"), [(47.0, "well"), (48.0, "slow"), (59.5, "slow"), (60.0, "slow")])
def test_slow_when_it_nears_its_time_limit(store: Store, clock: FakeClock, ran_s: float, word: str) -> None:
    job = start(store, timeout_s=60.0, lease_s=600.0)
    clock.advance(ran_s)
    beat(store, job, still_s=2.0, progress=0.4)
    seen, sentence = told(store, job)
    assert seen == word
    if word == "slow":
        assert sentence.startswith("It is slow: its worker beats and it moves, last 2.0 s ago (40%), but it has used ")
        ends = {48.0: "in 12 s", 59.5: "in 500 ms"}.get(ran_s, "is about to stop it")
        assert re.search(rf"of its timeout_s=60\. The worker .*{ends}\.$", sentence)


@pytest.mark.parametrize(
    ("usual_s", "ran_s", "word"),
    [(20.0, 59.0, "well"), (20.0, 60.0, "slow"), (1.0, SLOW_LEAST_S - 1, "well"), (1.0, SLOW_LEAST_S, "slow")],
)
def test_slow_when_its_task_usually_takes_much_less(
    store: Store, clock: FakeClock, usual_s: float, ran_s: float, word: str
) -> None:
    usually(store, clock, "send", usual_s, jobs=5)
    usually(store, clock, "other", 1000.0, jobs=5)
    job = start(store, task="send", lease_s=600.0)
    clock.advance(ran_s)
    beat(store, job)
    seen, sentence = told(store, job)
    assert seen == word
    if word == "slow":
        assert "It is slow: its worker beats, but it has run for " in sentence
        assert sentence.endswith(" Nothing stops it but a person: it has no timeout_s and no stall_s.")


def test_few_jobs_do_not_say_what_is_usual(store: Store, clock: FakeClock) -> None:
    usually(store, clock, "send", 1.0, jobs=4)
    job = start(store, task="send", lease_s=36_000.0)
    clock.advance(3600)
    beat(store, job)
    assert told(store, job)[0] == "well"


# ------------------------------------------------------------------------------------------- it was ended


@pytest.mark.parametrize(
    ("outcome", "word", "sentence"),
    [
        (Lost("exit", "c"), "dead", "Died: its worker's process ended, and the supervisor saw it."),
        (Lost("exit", "c", {"isolated": True}), "dead", "Died: its own process ended, and its worker saw it."),
        (Lost("vanished", "c"), "dead", "Died: its worker's process died or was cut off from the store."),
        (
            Lost("vanished", "c", {"evidence": "lock"}),
            "dead",
            "Died: the host shows that its worker's process has ended.",
        ),
        (
            Lost("vanished", "c", {"evidence": "session"}),
            "dead",
            "Died: its worker's session with the server ended: its process died or was cut off from the server.",
        ),
        (Lost("restart", "c"), "dead", "Died: its worker was started again, so the process before it has ended."),
        (Lost("expired", "c", {"seconds_since_beat": 31.5}), "dead", "Died: no beat for 31 s, and its lease ran out."),
        (Stalled("c"), "hung", "Hung: its worker lived, but it made no progress within its stall_s and was stopped."),
        (
            TimedOut("c"),
            "slow",
            "Too slow: its worker lived, but it still ran when its timeout_s was over and was stopped.",
        ),
    ],
)
def test_what_an_attempt_was_ended_for(store: Store, outcome: Lost, word: str, sentence: str) -> None:
    job = start(store, on_crash="hold")
    settle(store, job, outcome)
    story = insight.job_story(store, row(store, job.id))
    [ending] = story["endings"]
    assert set(ending) == {"at", "fence", "word", "sentence"}
    assert (ending["fence"], ending["word"]) == (1, word)
    assert ending["sentence"] == f"{sentence} Then it was held."
    assert (ending["at"], story["health"]) == (story["events"][0]["at"], None)


@pytest.mark.parametrize("outcome", [Lost("exit", "c"), Stalled("c"), TimedOut("c")])
def test_nobody_says_that_it_was_run_again_before_it_was(store: Store, clock: FakeClock, outcome: Lost) -> None:
    job = start(store)

    def then() -> list[str]:
        found = insight.endings(row(store, job.id), store.journal(job.id))
        return [ending.sentence.rpartition("Then ")[2] for ending in found]

    clock.advance(1)
    settle(store, job, outcome)
    assert then() == ["it went back to its queue."]
    clock.advance(60)
    second = again(store, row(store, job.id))
    assert then() == ["it was run again."]
    clock.advance(1)
    settle(store, second, outcome)
    assert then() == ["it was run again.", "it went back to its queue."]


def test_one_that_is_lost_as_soon_as_it_was_claimed_went_back_to_its_queue(store: Store) -> None:
    job = start(store)
    settle(store, job, Lost("exit", "c"))
    events = store.journal(job.id)
    for seen in (row(store, job.id), replace(row(store, job.id), claimed_at=None)):
        assert [ending.sentence.endswith("it went back to its queue.") for ending in insight.endings(seen, events)] == [
            True
        ]


def test_moving_a_waiting_job_does_not_run_it_again(store: Store) -> None:
    job = start(store)
    settle(store, job, Lost("exit", "c"))
    moved = Event(99, job.id, 0.0, "moved", job.fence + 1, None, None, {})
    [ending] = insight.endings(row(store, job.id), [*store.journal(job.id), moved])
    assert ending.sentence.endswith("Then it went back to its queue.")


@pytest.mark.parametrize(
    ("kind", "detail", "since"),
    [
        ("moved", {"rolling_back": True}, "it began to roll back"),
        ("moved", {}, None),
        ("added", {"rolling_back": True}, None),
        ("failed", {"decision": "undo"}, "it began to roll back"),
        ("failed", {"decision": "retry"}, None),
        ("revived", {}, "a person brought it back"),
        ("resolved", {}, "a person brought it back"),
    ],
)
def test_budgets_are_counted_from_a_rollback_or_from_a_persons_decision(
    kind: str, detail: dict[str, object], since: str | None
) -> None:
    assert fresh_since([Event(1, "j", 0.0, kind, 1, None, None, detail)]) == since


def test_one_that_came_back_was_not_dead(store: Store, clock: FakeClock) -> None:
    job = start(store)
    settle(store, job, EXPIRED)
    beat(store, job)
    second = again(store, row(store, job.id))
    settle(store, second, EXPIRED)
    words = [
        (ending.word, ending.sentence[:15]) for ending in insight.endings(row(store, job.id), store.journal(job.id))
    ]
    assert words == [("silent", "Taken for dead,"), ("dead", "Died: no beat c")]


def test_a_failure_is_an_ending_of_its_own_making(store: Store) -> None:
    job = start(store)
    settle(store, job, Failed("no luck"))
    assert insight.endings(row(store, job.id), store.journal(job.id)) == []


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_the_command_shows_it(store: PostgresStore, clock: FakeClock, postgres: str) -> None:
    job = start(store, lease_s=30.0, stall_s=10.0)
    settle(store, job, Stalled("no progress for stall_s=10"))
    clock.advance(60)
    again(store, row(store, job.id))
    shown = CliRunner().invoke(cli, ["--db", postgres, "jobs", "show", job.id], prog_name="holdfast")
    assert shown.exit_code == 0, shown.stderr
    text = re.sub(r"\s+", " ", shown.stdout)
    assert re.search(
        r"its lease ran out .* ago\. No worker is alive to settle it: .* recover it now holdfast scan --fix", text
    )
    assert "Hung: its worker lived, but it made no progress within its stall_s and was stopped. Then it was" in text
