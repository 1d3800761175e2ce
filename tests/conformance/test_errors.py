"""errors: how often attempts ended with which error, by task and fingerprint."""

import pytest

from holdfast.core.error_fingerprint import KEPT_S, SLOT_S
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job
from holdfast.core.settlement import settlement
from holdfast.core.verdict import (
    Cancelled,
    Diverged,
    Failed,
    Lost,
    Outcome,
    Released,
    Snoozed,
    Stalled,
    Succeeded,
    TimedOut,
    judge,
)
from holdfast.stores.protocol import Reply, Store
from holdfast.testing import FakeClock
from tests.factory import again, enrol, row, settle, start, start_flow

NO_LUCK = Failed("ValueError: no luck with order 42", error_kind="ValueError", origin="shop.pay")


def ends(store: Store, outcome: Outcome = NO_LUCK, release: str | None = None, **given: object) -> Job:
    """Add a job, start it, and let its attempt end like this."""
    job = start(store, **{"task": "t", "attempts_max": 1} | given)  # type: ignore[arg-type]
    verdict = judge(outcome, job, store.now().wall, chance=0.5, release=release)
    assert store.settle([settlement(job, verdict)]) == [Reply.ACCEPTED]
    return row(store, job.id)


def test_attempts_with_the_same_error_are_one_group(store: Store, clock: FakeClock) -> None:
    first = clock.wall()
    for number in (42, 43):
        ends(store, Failed(f"ValueError: no luck with order {number}", error_kind="ValueError", origin="shop.pay"))
        clock.advance(90)
    last = ends(store, release="2.4.1")
    [group] = store.errors(0.0)
    assert (group.task, group.kind, group.origin) == ("t", "ValueError", "shop.pay")
    assert group.message == "ValueError: no luck with order #"
    assert (group.attempts, group.releases, group.job_id) == (3, ["2.4.1"], last.id)
    assert (group.first_at, group.last_at) == (pytest.approx(first), pytest.approx(clock.wall()))
    assert group.fingerprint == last.fingerprint


def test_another_error_and_another_task_are_other_groups(store: Store) -> None:
    for _ in range(3):
        ends(store)
    for _ in range(2):
        ends(store, Failed("KeyError: 'a'", error_kind="KeyError", origin="shop.pay"))
    ends(store, task="u", queue="other")
    assert [(group.task, group.kind, group.attempts) for group in store.errors(0.0)] == [
        ("t", "ValueError", 3),
        ("t", "KeyError", 2),
        ("u", "ValueError", 1),
    ]
    assert [group.task for group in store.errors(0.0, "u")] == ["u"]
    assert [group.attempts for group in store.errors(0.0, limit=2)] == [3, 2]


def test_only_errors_of_the_time_asked_for_are_counted_and_its_first_minute_counts_whole(
    store: Store, clock: FakeClock
) -> None:
    clock.advance(SLOT_S - clock.wall() % SLOT_S)
    ends(store)
    clock.advance(SLOT_S / 2)
    middle = clock.wall()
    clock.advance(SLOT_S)
    ends(store)
    assert [group.attempts for group in store.errors(middle)] == [2]
    assert [group.attempts for group in store.errors(middle + SLOT_S / 2)] == [1]
    assert store.errors(clock.wall() + SLOT_S) == []


def test_the_releases_of_a_group_come_sorted_and_once(store: Store) -> None:
    for release in ("b", None, "a", "b"):
        ends(store, release=release)
    assert [group.releases for group in store.errors(0.0)] == [["a", "b"]]


def test_of_several_at_one_instant_the_largest_id_is_the_example(store: Store) -> None:
    ids = [ends(store, release=release, id=f"job-{number}").id for number, release in enumerate("abba")]
    assert [group.job_id for group in store.errors(0.0)] == [max(ids)]


@pytest.mark.parametrize(
    ("outcome", "kind", "origin", "message"),
    [
        (TimedOut("too long: 30 s"), "timed out", None, "too long: # s"),
        (Stalled("no progress"), "stalled", None, "no progress"),
        (Lost("exit", "it died", {"signal": "SIGKILL"}), "crash", "exit", "killed by SIGKILL"),
        (Lost("exit", "it died", {"exit_code": 3}), "crash", "exit", "exited with code 3"),
        (Lost("vanished", "the lock is free"), "crash", "vanished", "the lock is free"),
    ],
)
def test_endings_by_force_and_crashes_are_errors(
    store: Store, outcome: Outcome, kind: str, origin: str | None, message: str
) -> None:
    job = ends(store, outcome)
    [group] = store.errors(0.0)
    assert (group.kind, group.origin, group.message, group.attempts) == (kind, origin, message, 1)
    assert job.fingerprint == group.fingerprint


def test_a_workflow_whose_code_has_changed_is_an_error(store: Store) -> None:
    job = start_flow(store)
    settle(store, job, Diverged("it asks for another step"))
    assert [group.kind for group in store.errors(0.0)] == ["diverged"]


@pytest.mark.parametrize(
    "outcome", [Succeeded('"r"'), Released(True, "stopping"), Snoozed(1.0), Cancelled(), Failed("cut off", outage=True)]
)
def test_other_endings_are_not(store: Store, outcome: Outcome) -> None:
    job = ends(store, outcome, attempts_max=5)
    assert store.errors(0.0) == []
    assert (job.fingerprint, job.release, job.erred_at) == (None, None, None)


def test_the_row_keeps_the_last_error_with_its_release_and_instant(store: Store, clock: FakeClock) -> None:
    job = ends(store, release="2.4.1", attempts_max=5)
    failed_at = clock.wall()
    assert (job.fingerprint is not None, job.release, job.erred_at) == (True, "2.4.1", pytest.approx(failed_at))
    clock.advance(100)
    second = again(store, job)
    settle(store, second, Succeeded())
    done = row(store, job.id)
    assert (done.state, done.fingerprint, done.release) == (State.DONE, job.fingerprint, "2.4.1")
    assert done.erred_at == pytest.approx(failed_at)


def test_the_release_of_an_earlier_error_does_not_stay_for_a_later_one(store: Store, clock: FakeClock) -> None:
    job = ends(store, release="2.4.1", attempts_max=5)
    clock.advance(100)
    settle(store, again(store, job), Failed("KeyError: 1", error_kind="KeyError"))
    later = row(store, job.id)
    assert later.fingerprint != job.fingerprint
    assert (later.release, later.erred_at) == (None, pytest.approx(clock.wall()))


def test_an_error_that_was_refused_or_repeated_is_not_counted_again(store: Store) -> None:
    job = start(store)
    given = settlement(job, judge(NO_LUCK, job, store.now().wall, chance=0.5))
    assert [store.settle([given]) for _ in range(2)] == [[Reply.ACCEPTED], [Reply.ALREADY]]
    other = start(store)
    store.settle([settlement(other, judge(Lost("exit", "died"), other, store.now().wall, chance=0.5))])
    late = settlement(other, judge(NO_LUCK, other, store.now().wall, chance=0.5))
    assert store.settle([late]) == [Reply.REFUSED]
    assert sorted((group.kind, group.attempts) for group in store.errors(0.0)) == [("ValueError", 1), ("crash", 1)]


def test_a_batch_counts_each_of_its_errors(store: Store) -> None:
    worker = enrol(store)
    jobs = [start(store, worker, task="t", attempts_max=1) for _ in range(4)]
    endings = [NO_LUCK, NO_LUCK, Succeeded(), TimedOut("slow")]
    wall = store.now().wall
    batch = [settlement(job, judge(ending, job, wall, chance=0.5)) for job, ending in zip(jobs, endings, strict=True)]
    assert store.settle(batch) == [Reply.ACCEPTED] * 4
    assert [(group.kind, group.attempts) for group in store.errors(0.0)] == [("ValueError", 2), ("timed out", 1)]


def test_errors_are_kept_when_their_jobs_are_deleted(store: Store, clock: FakeClock) -> None:
    ends(store, on_crash="fail", attempts_max=1)
    clock.advance(10)
    assert store.purge([State.DEAD], clock.wall()) == 1
    assert store.find(Filter()) == []
    assert [group.attempts for group in store.errors(0.0)] == [1]


def test_text_of_any_kind_comes_back(store: Store) -> None:
    said = 'Ünïcode {} %s \\ "quoted" \t end'
    ends(store, Failed(said, error_kind="Odd{}%s", origin="größe.füge"), release='r"{}%s')
    [group] = store.errors(0.0)
    assert (group.kind, group.origin, group.releases) == ("Odd{}%s", "größe.füge", ['r"{}%s'])
    assert group.message == "Ünïcode {} %s \\ … end"


@pytest.fixture
def folding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where settlements add lines of their own, let each settlement add up those that are there."""
    monkeypatch.setattr("holdfast.stores.postgres.statements.FOLD_EVERY", 1)


@pytest.mark.usefixtures("folding")
def test_errors_older_than_those_that_are_kept_are_forgotten(store: Store, clock: FakeClock) -> None:
    ends(store)
    clock.advance(KEPT_S + 2 * SLOT_S)
    for _ in range(2):
        ends(store, Failed("KeyError: 1", error_kind="KeyError"))
    assert [(group.kind, group.attempts) for group in store.errors(0.0)] == [("KeyError", 2)]


@pytest.mark.usefixtures("folding")
def test_adding_up_changes_no_count(store: Store, clock: FakeClock) -> None:
    for release in ("b", None, "a", "b"):
        for _ in range(3):
            ends(store, release=release)
            clock.advance(20)
    clock.advance(SLOT_S)
    later = [ends(store, Succeeded()) for _ in range(2)]
    [group] = store.errors(0.0)
    assert (group.attempts, group.releases) == (12, ["a", "b"])
    assert group.last_at == pytest.approx(clock.wall() - SLOT_S - 20)
    assert group.first_at == pytest.approx(clock.wall() - SLOT_S - 12 * 20)
    assert group.job_id not in [job.id for job in later]
