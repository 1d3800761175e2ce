"""A worker that runs while a newer program changes the schema (issue 11, number 44)."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from holdfast.core.machine import State
from tests.crash.world import World, on_every_store, until
from tests.proxy import Proxy

pytestmark = pytest.mark.slow  # a beat of the worker has to pass

TABLE = {"sqlite": "holdfast_meta", "postgres": "meta"}


@on_every_store
def test_a_worker_goes_on_and_says_so_when_the_newer_schema_only_has_more_in_it(world: World) -> None:
    worker = world.worker("w").until_ready()
    with world.connect() as db:
        db.execute(f"UPDATE {TABLE[world.kind]} SET value = '98' WHERE name = 'schema'")
    db.close()
    until(lambda: worker.said("the store has schema 98 now"), "it says so")
    job = world.tasks.quick.enqueue().id
    world.until_state(job, "done")


@on_every_store
def test_a_worker_that_is_too_old_finishes_what_it_runs_and_leaves_with_exit_code_4(world: World) -> None:
    worker = world.worker("w", processes=2).until_ready(2)
    job = world.tasks.wait.enqueue().id
    world.until_started(job)
    with world.connect() as db:
        db.execute(f"UPDATE {TABLE[world.kind]} SET value = '99' WHERE name IN ('schema', 'works_with')")
    db.close()
    until(lambda: worker.log.read_text().count("this worker finishes what it runs, and leaves") == 2, "both notice")
    late = world.tasks.quick.enqueue().id
    world.go()
    assert worker.wait() == 4
    assert world.row(job).state is State.DONE
    assert world.row(late).attempt == 0, "nothing new is claimed"
    assert worker.members() == []


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_a_worker_that_starts_while_its_store_is_away_waits_for_it(world: World, postgres_server: str) -> None:
    proxy = Proxy(postgres_server)
    try:
        door = urlsplit(proxy.url)
        world.env["HOLDFAST_DB"] = urlsplit(world.url)._replace(netloc=door.netloc).geturl()
        with proxy.down():
            worker = world.worker("w")
            until(lambda: worker.said("the worker starts when it is back"), "it waits")
            assert worker.popen.poll() is None
        worker.until_ready()
        job = world.tasks.quick.enqueue().id
        world.until_state(job, "done")
    finally:
        worker.kill()
        proxy.close()


@pytest.mark.parametrize("address", ["sqlite:////no/such/folder/jobs.db", "nonsense://", "postgresql://nobody@{}/no"])
def test_an_address_that_can_never_work_ends_a_worker(world: World, address: str, postgres_server: str) -> None:
    host = urlsplit(postgres_server).netloc.rpartition("@")[2]
    worker = world.worker("w", "--db", address.format(host))
    assert worker.wait() in (2, 3)


def test_a_lock_folder_that_others_may_write_ends_a_worker_when_it_starts(world: World) -> None:
    open_to_others(world)
    worker = world.worker("w")
    assert worker.wait() == 3
    assert worker.said(f"run `chmod go-w {world.db}-workers`") == 1
    assert not worker.said("trying again")
    assert not worker.said(" is ready: ")
    assert worker.members() == []


def test_a_lock_folder_that_others_may_write_ends_a_worker_that_must_enrol_again(world: World) -> None:
    worker = world.worker("w").until_ready()
    open_to_others(world)
    [enrolled] = world.store.workers()
    world.store.retire(enrolled.id, "a mistake")
    assert worker.wait() == 3
    assert not worker.said("trying again")
    assert worker.members() == []


def open_to_others(world: World) -> None:
    folder = world.db.with_name(f"{world.db.name}-workers")
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
