"""Retention by real processes: a worker and the daemon prune; one that was stopped meanwhile deletes nothing."""

import os
import signal
from functools import partial

import pytest

from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.stores import open_store
from holdfast.testing import FakeClock
from tests.crash.world import Process, World, is_stopped, now, on_every_store
from tests.crash.world import until as patiently
from tests.factory import job_in

AGO_S = 100 * 86_400.0
until = partial(patiently, timeout_s=60.0)  # less than a mutant is given: what it leaves running is ended with the test


def old_jobs(world: World, *states: State) -> list[str]:
    """Jobs that ended a hundred days ago, as far as the store can tell."""
    store = open_store(world.url, clock=FakeClock(wall=world.store.now().wall - AGO_S, boot_id="long ago"))
    try:
        ids = [job_in(store, state).id for state in states]
        for worker in store.workers():
            store.retire(worker.id, "it was long ago")
    finally:
        store.close()
    return ids


def left(world: World) -> list[str]:
    return sorted(job.id for job in world.store.find(Filter()))


def reaper(world: World, name: str, *flags: str) -> Process:
    command = ["-m", "holdfast", "--db", world.url, "reaper", "--name", name, "--interval", "50ms", *flags]
    return world.run(name, command)


def lone_pruner(world: World, name: str, point: str) -> Process:
    """A program that does nothing else: on SQLite a daemon might be stopped while its reaper writes (DESIGN 14)."""
    code = (
        "import logging, threading; logging.basicConfig(level='INFO')\n"
        "from holdfast import App; from holdfast.upkeep.pruner import Pruner\n"
        f"app = App({world.url!r}, keep={{'done': '7d', 'cancelled': '7d'}})\n"
        f"with Pruner(app.store, app.clock, app.keep, hooks=app.hooks, name={name!r}, interval_s=0.5):\n"
        "    threading.Event().wait()\n"
    )
    return world.run(name, ["-c", code], {"HOLDFAST_POINT": point})


@on_every_store
def test_a_worker_prunes_as_its_app_says_and_gives_the_duty_back(world: World) -> None:
    done, dead = old_jobs(world, State.DONE, State.DEAD)
    (world.folder / "pruning.py").write_text(
        "import holdfast\n"
        f"app = holdfast.App({world.url!r}, keep={{'done': '7d'}})\n"
        "app.task(name='nothing')(lambda: None)\n"
        "for kind in ('duty_acquired', 'duty_lost'):\n"
        "    app.on(kind, lambda event: print(event['kind'], event['duty'], event['term'], flush=True))\n"
    )
    worker = world.run("ann", ["-m", "holdfast", "worker", "pruning:app", "--name", "ann"])
    until(lambda: left(world) == [dead], "the done job is gone, and the dead one is not")
    worker.until_ready()
    worker.signal_leader(signal.SIGTERM)
    assert worker.wait() == 0
    for line in ("deleted 1 jobs", "duty_acquired pruner 1", "duty_lost pruner 1"):
        assert worker.said(line) == 1, worker.log.read_text()
    duty = world.store.acquire("pruner", "the next one", 1.0)
    assert duty is not None
    assert duty.term == 2
    assert world.store.get(done) is None


@on_every_store
def test_a_stopped_holder_that_goes_on_after_another_took_over_deletes_nothing(world: World) -> None:
    """It has checked its duty and is stopped before its batch. Who takes over keeps jobs longer, so that only the one
    that was stopped could delete them."""
    jobs = sorted(old_jobs(world, State.DONE, State.DONE, State.CANCELLED))
    first = lone_pruner(world, "first", "prune.before=stop")
    until(lambda: is_stopped(first.pid), "the first one is about to delete")
    second = reaper(world, "second", "--keep", "1000d")
    until(lambda: second.said("took the duty 'pruner', term 2"), "the second one took over")
    os.kill(first.pid, signal.SIGCONT)
    refused = "no longer has the duty 'pruner' of term 1: the store refused its term"
    until(lambda: first.said(refused), "the delete of the first one was refused")
    assert left(world) == jobs
    second.signal_leader(signal.SIGTERM)
    assert second.wait() == 0
    until(lambda: left(world) == [], "the first one has the duty again, and a term of its own")
    assert first.said("took the duty 'pruner', term") > 1


@pytest.mark.slow  # a duty has to run out
@on_every_store
def test_another_prunes_after_the_holder_was_killed(world: World) -> None:
    world.store.ping()  # it is made
    victim = reaper(world, "victim", "--keep", "7d", "--keep-dead", "60d")
    until(lambda: victim.said("took the duty 'pruner', term"), "it has the duty")
    heir = reaper(world, "heir", "--keep", "7d", "--keep-dead", "60d")
    until(lambda: heir.said("ended jobs are kept: "), "the next one stands by")
    victim.kill()
    killed_at = now()
    old_jobs(world, State.DONE, State.DEAD, State.ROLLED_BACK)
    until(lambda: left(world) == [], "the heir deletes")
    print(f"\ndeleted {now() - killed_at:.2f} s after the death; the duty lasts 1.5 s")
    assert heir.said("took the duty 'pruner', term")
