"""add: store jobs, all or none; the same id or live key is stored once."""

from typing import Any

import pytest

from holdfast.core.machine import ENDED, LIVE, State
from holdfast.core.records import Filter
from holdfast.core.transitions import first_row
from holdfast.stores.protocol import Added, Store
from holdfast.testing import FakeClock
from tests.factory import add, add_many, job_in, make_job, picture, row

AWKWARD = {
    "letters of many scripts": "žluťoučký кот 猫 ねこ قطة",
    "emoji, also joined ones": "🐈 👩‍🚀 🏳️‍🌈",
    "quotes and backslashes": """it's "quoted" \\ back\\\\slash `tick` %s ? :name $1 {}""",
    "SQL that closes a string": "'); DROP TABLE holdfast_job; --",
    "line ends and tabs": "one\ntwo\r\nthree\tfour\u2028five",
    "control characters": "\x01\x1b[31m\x7f",
    "text that looks like JSON": '{"a": [1, null], "b": "\\u0000"}',
    "nothing": "",
    "only spaces": "   ",
    "a number": "0012",
    "the last characters of Unicode": "\ue000\ufffd\uffff\U0010ffff",
    "combining marks in both orders": "e\u0301 \u00e9",
}


def test_a_new_job_is_ready_now_and_has_never_been_started(store: Store, clock: FakeClock) -> None:
    new = make_job(task="mail", queue="media", payload='{"to": 1}', key="k", priority=7)
    assert store.add([new]) == [Added(new.id, False)]
    job = row(store, new.id)
    assert (job.task, job.queue, job.payload, job.key, job.priority) == ("mail", "media", '{"to": 1}', "k", 7)
    assert (job.state, job.run_at, job.created_at) == (State.READY, clock.wall(), clock.wall())
    assert (job.attempt, job.fence, job.claim_id, job.worker, job.lease_until) == (0, 0, None, None, None)
    assert (job.claimed_at, job.started, job.ended_at) == (None, False, None)
    assert (job.failures, job.crashes, job.zombies, job.suspects) == (0, 0, 0, 0)
    assert (job.cancel_requested, job.rolling_back) == (False, False)
    assert (job.error, job.result, job.progress, job.note) == (None, None, None, None)


def test_the_policy_travels_on_the_row(store: Store) -> None:
    job = add(
        store,
        attempts_max=9,
        base_s=0.5,
        cap_s=77.0,
        jitter=False,
        crashes_max=4,
        on_crash="hold",
        lease_s=12.5,
        beat_s=0.25,
        timeout_s=60.0,
        stall_s=5.5,
    )
    assert (job.attempts_max, job.backoff_base_s, job.backoff_cap_s) == (9, 0.5, 77.0)
    assert (job.backoff_jitter, job.crashes_max, job.on_crash) == (False, 4, "hold")
    assert (job.lease_s, job.beat_s, job.timeout_s, job.stall_s) == (12.5, 0.25, 60.0, 5.5)


def test_without_a_beat_of_its_own_a_job_beats_three_times_per_lease(store: Store) -> None:
    job = add(store, lease_s=30.0)
    assert (job.beat_s, job.timeout_s, job.stall_s, job.backoff_jitter) == (10.0, None, None, True)


def test_a_job_with_a_run_at_waits_for_it(store: Store, clock: FakeClock) -> None:
    assert add(store, run_at=clock.wall() + 90.5).run_at == clock.wall() + 90.5


def test_a_run_at_in_the_past_is_kept(store: Store, clock: FakeClock) -> None:
    assert add(store, run_at=clock.wall() - 3600).run_at == clock.wall() - 3600


def test_a_delay_is_counted_by_the_stores_own_clock(store: Store, clock: FakeClock) -> None:
    new = make_job(delay_s=60.0)
    clock.advance(5)
    store.add([new])
    assert row(store, new.id).run_at == clock.wall() + 60


def test_run_at_wins_over_a_delay(store: Store, clock: FakeClock) -> None:
    assert add(store, run_at=clock.wall() + 1, delay_s=60.0).run_at == clock.wall() + 1


def test_an_add_whose_answer_was_lost_is_repeated_and_stores_one_job(store: Store, clock: FakeClock) -> None:
    new = make_job(key="k")
    store.add([new])
    before = picture(store)
    clock.advance(10)
    assert store.add([new]) == [Added(new.id, True)]
    assert picture(store) == before


@pytest.mark.parametrize("state", list(State))
def test_an_id_stays_taken_in_every_state_and_the_job_untouched(store: Store, state: State) -> None:
    job = job_in(store, state)
    assert store.add([make_job(id=job.id, task="other", payload="[]")]) == [Added(job.id, True)]
    assert row(store, job.id) == job


@pytest.mark.parametrize("state", sorted(LIVE))
def test_the_key_of_a_live_job_is_taken_and_the_answer_names_that_job(store: Store, state: State) -> None:
    job = job_in(store, state, key="order-42")
    new = make_job(key="order-42")
    assert store.add([new]) == [Added(job.id, True)]
    assert store.get(new.id) is None


@pytest.mark.parametrize("state", sorted(ENDED))
def test_the_key_of_an_ended_job_is_free_again(store: Store, state: State) -> None:
    job_in(store, state, key="order-42")
    new = make_job(key="order-42")
    assert store.add([new]) == [Added(new.id, False)]


def test_jobs_without_a_key_never_stand_in_each_others_way(store: Store) -> None:
    answers = store.add([make_job(key=None) for _ in range(5)])
    assert not any(answer.existed for answer in answers)


def test_two_jobs_with_one_key_in_one_batch_are_one_job(store: Store) -> None:
    first, second = make_job(key="k"), make_job(key="k")
    assert store.add([first, second]) == [Added(first.id, False), Added(first.id, True)]
    assert store.get(second.id) is None


def test_one_job_twice_in_one_batch_is_one_job(store: Store) -> None:
    new, other = make_job(), make_job()
    assert store.add([new, other, new]) == [Added(new.id, False), Added(other.id, False), Added(new.id, True)]
    assert store.counts() == {"default": {State.READY: 2}}


def test_a_batch_answers_in_order_what_is_new_what_was_there_and_whose_key_was_taken(store: Store) -> None:
    known, keyed = add(store), add(store, key="taken")
    fresh, wants_key = make_job(), make_job(key="taken")
    again = make_job(id=known.id)
    answers = store.add([wants_key, fresh, again])
    assert answers == [Added(keyed.id, True), Added(fresh.id, False), Added(known.id, True)]


def test_a_known_id_is_answered_with_itself_even_if_its_key_belongs_to_another(store: Store) -> None:
    known = add(store)
    add(store, key="taken")
    assert store.add([make_job(id=known.id, key="taken")]) == [Added(known.id, True)]


def test_a_key_differs_from_another_by_case_and_space(store: Store) -> None:
    answers = store.add([make_job(key=key) for key in ("k", "K", "k ", " k", "k\u0301", "")])
    assert not any(answer.existed for answer in answers)


def test_adding_nothing_is_nothing(store: Store) -> None:
    assert store.add([]) == []


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD.keys())
def test_any_text_comes_back_as_it_was(store: Store, text: str) -> None:
    job = add(store, task=text or "t", queue=text or "q", payload=text, key=text)
    assert (job.task, job.queue, job.payload, job.key) == (text or "t", text or "q", text, text)
    assert store.add([make_job(key=text)]) == [Added(job.id, True)]


def test_any_text_comes_back_as_it_was_from_a_large_batch(store: Store, clock: FakeClock) -> None:
    """A store may send many jobs in another way than one."""
    texts = [text for text in AWKWARD.values() if text]
    policies: list[dict[str, Any]] = [{}, {"timeout_s": 2.5, "stall_s": 0.125, "on_crash": "hold", "jitter": False}]
    wanted = [
        make_job(
            task=text, queue=text, payload=text, key=f"{text}{number}", run_at=0.5 + number, **policies[number % 2]
        )
        for number in range(20)
        for text in texts
    ]
    assert store.add(wanted) == [Added(new.id, False) for new in wanted]
    assert [row(store, new.id) for new in wanted[::7]] == [first_row(new, clock.wall()) for new in wanted[::7]]


def test_a_payload_of_a_megabyte_comes_back_as_it_was(store: Store) -> None:
    payload = '{"text": "' + "ž€🐈\\n" * 100_000 + '"}'
    assert add(store, payload=payload).payload == payload


@pytest.mark.parametrize("priority", [-(2**31), -1, 0, 1, 2**31 - 1])
def test_priorities_of_any_size_are_kept(store: Store, priority: int) -> None:
    assert add(store, priority=priority).priority == priority


@pytest.mark.parametrize("run_at", [0.0, 0.1 + 0.2, 1_700_000_000.123456, 4_102_444_800.0])
def test_instants_are_kept_to_a_hundred_thousandth_of_a_second(store: Store, run_at: float) -> None:
    assert add(store, run_at=run_at).run_at == pytest.approx(run_at, rel=0, abs=1e-5)


def test_a_batch_of_two_thousand_is_stored_in_its_order(store: Store) -> None:
    jobs = [make_job(key=f"key-{number}", priority=number % 3) for number in range(2000)]
    assert add_many(store, jobs) == [Added(job.id, False) for job in jobs]
    assert store.counts() == {"default": {State.READY: 2000}}
    found = store.find(Filter(limit=3000))
    assert [job.id for job in reversed(found)] == [job.id for job in jobs]
    assert add_many(store, jobs) == [Added(job.id, True) for job in jobs]


def test_in_a_batch_the_key_of_an_ended_job_is_as_free_as_alone(store: Store) -> None:
    there = add(store)
    job_in(store, State.DEAD, key="k")
    job_in(store, State.DONE, key="k")
    new = make_job(key="k")
    assert store.add([make_job(id=there.id), new]) == [Added(there.id, True), Added(new.id, False)]
    assert store.add([new, make_job(id=there.id)]) == [Added(new.id, True), Added(there.id, True)]
