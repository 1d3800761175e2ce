"""People race too: with each other, and with the workers (DESIGN 15.8, 15.14)."""

import threading
import time

import pytest

from holdfast import Context, JobDead, KeyTaken, Refused, Retry
from holdfast.core import acts
from holdfast.core.machine import State
from tests.factory import move
from tests.worker.house import House, on_every_store, until


def held(house: House) -> str:
    """A job that is dangerous to repeat and was held; its second start returns at once."""

    @house.app.task(name="careful", on_crash="hold", timeout_s=2)
    def careful(ctx: Context) -> int:
        while ctx.attempt == 1:
            time.sleep(0.005)
        return ctx.attempt

    house.start()
    job = careful.enqueue()
    house.until_state(job.id, "held")
    return job.id


@on_every_store
def test_a_repeated_approval_cannot_start_a_second_run(house: House) -> None:
    """15.8, P7: both saw the same held job; the second one's approval finds another fence or state."""
    job = held(house)
    seen = house.row(job)
    first, second = (acts.revive(seen, time.time(), actor=name) for name in ("ann", "bob"))
    assert move(house.store, job, seen.state, seen.fence, first)
    house.until_state(job, "done")
    assert not move(house.store, job, seen.state, seen.fence, second)
    assert house.row(job).attempt == 2
    assert house.kinds(job).count("revived") == 1


def test_an_approval_that_comes_after_the_job_was_held_again_is_refused(house: House) -> None:
    """15.8: the state is the same as the one that the person saw, and the attempt is not."""
    started = threading.Semaphore(0)

    @house.app.task(name="careful", on_crash="hold", timeout_s=2)
    def careful() -> None:
        started.release()
        while True:
            time.sleep(0.005)

    house.start()
    job = careful.enqueue()
    seen = house.until_state(job.id, "held")
    house.app.resolve(job.id, "retry", by="ann")
    assert started.acquire(timeout=60)
    assert started.acquire(timeout=60)
    again = house.until_state(job.id, "held")
    assert again.fence > seen.fence
    assert not move(house.store, job.id, seen.state, seen.fence, acts.revive(seen, time.time(), actor="bob"))
    assert house.row(job.id).state is State.HELD


def test_a_cancel_of_a_job_that_was_claimed_meanwhile_says_so(house: House) -> None:
    """15.8: the person saw it ready; it runs by now. Nothing happens behind anybody's back."""
    go_on = threading.Event()

    @house.app.task
    def wait() -> str:
        go_on.wait(60)
        return "ran"

    job = wait.enqueue()
    seen = house.row(job.id)
    house.start()
    house.until_state(job.id, "running")
    assert not move(house.store, job.id, seen.state, seen.fence, acts.cancel(seen, actor="ann"))
    go_on.set()
    assert job.result(60) == "ran"


@on_every_store
def test_a_move_that_lost_the_race_is_refused_by_the_app(house: House) -> None:
    job = held(house)
    seen = house.row(job)

    def somebody_gives_up(*_: object) -> None:
        verdict = acts.resolve(seen, "fail", time.time(), actor="bob")
        move(house.store.real, job, seen.state, seen.fence, verdict)

    with house.store.before("move", somebody_gives_up), pytest.raises(Refused, match=r"was held .* and is dead"):
        house.app.revive(job)


def test_a_key_is_free_again_once_its_job_has_ended(house: House) -> None:
    """15.14: live means ready, running, waiting or held."""
    go_on = threading.Event()

    @house.app.task(key="the only one")
    def wait(n: int) -> int:
        go_on.wait(60)
        return n

    house.start()
    first = wait.enqueue(1)
    house.until_state(first.id, "running")
    assert wait.enqueue(2).id == first.id
    go_on.set()
    assert first.result(60) == 1
    second = wait.enqueue(2)
    assert (second.id != first.id, second.existed) == (True, False)
    assert second.result(60) == 2


@on_every_store
def test_reviving_onto_a_key_that_is_taken_is_refused(house: House) -> None:
    """15.14"""
    broken = [True]

    @house.app.task(key="the only one", retry=Retry(attempts_max=1))
    def fails_at_first() -> str:
        if broken:
            raise ValueError("not yet")
        return "fine"

    house.store.pause("default", False)
    runner = house.start()
    dead = fails_at_first.enqueue()
    with pytest.raises(JobDead):
        dead.result(60)
    house.stop(runner)
    broken.clear()
    live = fails_at_first.enqueue()
    with pytest.raises(KeyTaken):
        house.app.revive(dead.id)
    assert house.row(dead.id).state is State.DEAD
    house.start()
    assert live.result(60) == "fine"
    house.app.revive(dead.id)
    assert dead.result(60) == "fine"


def test_reviving_gives_fresh_budgets(house: House) -> None:
    """15.14"""
    starts: list[int] = []

    @house.app.task(retry=Retry(attempts_max=2, base_s=0.0, cap_s=0.0))
    def fails(ctx: Context) -> None:
        starts.append(ctx.attempt)
        raise ValueError("always")

    house.start()
    job = fails.enqueue()
    with pytest.raises(JobDead):
        job.result(60)
    assert starts == [1, 2]
    house.app.revive(job.id, by="ann")
    until(lambda: len(starts) == 4 and house.row(job.id).state is State.DEAD)
    assert starts == [1, 2, 3, 4]
    assert house.row(job.id).failures == 2
