"""A worker that runs while a newer program changes the schema (issue 11, number 44)."""

from __future__ import annotations

from urllib.parse import urlsplit

import psycopg
import pytest

from holdfast.core.machine import State
from tests.crash.world import World, on_sql_stores, until
from tests.proxy import Proxy
from tests.servers import PostgresServer

pytestmark = pytest.mark.slow  # a beat of the worker has to pass

TABLE = {"sqlite": "holdfast_meta", "postgres": "meta"}


@on_sql_stores
def test_a_worker_goes_on_and_says_so_when_the_newer_schema_only_has_more_in_it(world: World) -> None:
    worker = world.worker("w").until_ready()
    [row] = world.worker_rows("w")
    with world.connect() as db:
        db.execute(f"UPDATE {TABLE[world.kind]} SET value = '98' WHERE name = 'schema'")
    db.close()
    until(lambda: world.worker_rows("w")[0].beats >= row.beats + 3, "it beats")
    assert worker.said("the store has schema 98 now"), "it has looked after a beat that came later"
    job = world.tasks.quick.enqueue().id
    world.until_state(job, "done")


@on_sql_stores
def test_a_worker_that_is_too_old_finishes_what_it_runs_and_leaves_with_exit_code_4(world: World) -> None:
    worker = world.worker("w", processes=2).until_ready(2)
    job = world.tasks.wait.enqueue().id
    world.until_started(job)
    with world.connect() as db:
        db.execute(f"UPDATE {TABLE[world.kind]} SET value = '99' WHERE name IN ('schema', 'works_with')")
    db.close()
    until(lambda: worker.log.read_text().count("this worker finishes its running jobs and exits") == 2, "both notice")
    late = world.tasks.quick.enqueue().id
    world.go()
    assert worker.wait() == 4
    assert world.row(job).state is State.DONE
    assert world.row(late).attempt == 0, "nothing new is claimed"
    assert worker.members() == []


@pytest.mark.parametrize("db", ["postgres"], indirect=True)
def test_a_worker_that_starts_while_its_store_is_away_waits_for_it(world: World, postgres_server: str) -> None:
    proxy, worker = Proxy(postgres_server), None
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
        if worker is not None:
            worker.kill()
        proxy.close()


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("sqlite:////no/such/folder/jobs.db", 3, "the folder /no/such/folder does not exist; create it first"),
        ("nonsense://", 2, "the store address begins with 'nonsense:', which no store does"),
        ("postgresql://{server}/no", 3, 'database "no" does not exist; create the database first'),
        ("postgresql://nobody@{host}/postgres", 3, "the server refused this user"),
    ],
)
def test_an_address_that_can_never_work_ends_a_worker(
    world: World, address: str, code: int, words: str, postgres_server: str
) -> None:
    server = urlsplit(postgres_server).netloc
    worker = world.worker("w", "--db", address.format(server=server, host=server.rpartition("@")[2]))
    assert worker.wait() == code
    assert worker.said(words), worker.log.read_text()


def test_a_wrong_password_ends_a_worker(world: World) -> None:
    server = PostgresServer()
    try:
        server.execute("CREATE ROLE clerk LOGIN PASSWORD 'right'")
        rules = server.folder / "data" / "pg_hba.conf"
        rules.write_text("host all clerk 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
        server.execute("SELECT pg_reload_conf()")
        place = f"127.0.0.1:{server.port}/postgres"
        until(lambda: not can_connect(f"postgresql://clerk:wrong@{place}"), "the server asks for the password")
        assert can_connect(f"postgresql://clerk:right@{place}")
        world.env["HOLDFAST_DB"] = f"postgresql://clerk:wrong@{place}"
        worker = world.worker("w")
        assert worker.wait() == 3
        assert worker.said("the server refused this user"), worker.log.read_text()
        assert not worker.said("trying again")
        assert not worker.said("wrong"), "the password is not in the log"
    finally:
        server.close()


def can_connect(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


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
