"""The store over Redis: addresses, users, settings of the server, and what is refused when it is opened."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import App, Context, Job
from holdfast.clock import pause
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.errors import (
    BadURL,
    OutcomeUnknown,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreLost,
    StoreMissing,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsupported,
)
from holdfast.stores import open_store
from holdfast.stores.redis import reading
from holdfast.stores.redis.address import Options
from holdfast.stores.redis.store import RedisStore
from tests.factory import a_worker, add, claim, enrol, make_job
from tests.servers import CLOCK, PATIENCE_S, RedisServer

# docs/redis.md has the same line.
RIGHTS = "~{holdfast}:* &{holdfast}:* +@read +@write +@pubsub +@scripting +@connection +time"
MORE_RIGHTS = "+info +config|get"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server that the tests of this module may spoil, with a socket and users."""
    server = RedisServer("--unixsocket", "redis.sock", "--appendonly", "no")
    with closing(server.client()) as client:
        client.execute_command("ACL", "SETUSER", "narrow", "on", ">pass word", *RIGHTS.split())
        client.execute_command("ACL", "SETUSER", "wider", "on", ">s3cret", *RIGHTS.split(), *MORE_RIGHTS.split())
        client.execute_command("ACL", "SETUSER", "blind", "on", ">s3cret", "~*", "&*", "+@read", "+@connection")
    yield server
    server.close()


@pytest.fixture(autouse=True)
def _emptied(server: RedisServer) -> Iterator[None]:
    yield
    with closing(server.client()) as client:
        client.execute_command("CLIENT", "UNPAUSE")
        client.execute_command("REPLICAOF", "NO", "ONE")
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("min-replicas-to-write", 0)
        client.flushall()


def holdfast(url: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "holdfast", "--db", url, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_an_address_says_which_server_has_the_store() -> None:
    known = Options.parse("redis://ann:p%40ss@db.example:7000/3?prefix=jobs&ack=2&epoch=abc")
    assert known.hosts == (("db.example", 7000),)
    assert (known.settings["username"], known.settings["password"], known.settings["db"]) == ("ann", "p@ss", 3)
    assert (known.prefix, known.ack, known.epoch) == ("{jobs}:", 2, "abc")
    assert "p%40ss" not in known.shown
    several = Options.parse("redis://:pw@a:1,b,[::1]:3?sentinel=main&sentinel_password=hidden")
    assert several.hosts == (("a", 1), ("b", 26379), ("::1", 3))
    assert (several.sentinel, several.sentinel_login) == ("main", (None, "hidden"))
    assert "hidden" not in several.shown
    assert Options.parse("redis://a,b:2?cluster=yes").hosts == (("a", 6379), ("b", 2))
    tls = Options.parse("rediss://a?ssl_ca_certs=/ca.pem").settings
    assert (tls["ssl"], tls["ssl_cert_reqs"], tls["ssl_ca_certs"]) == (True, "required", "/ca.pem")
    assert Options.parse("rediss://a?ssl_verify=none").settings["ssl_check_hostname"] is False
    assert Options.parse("unix:///run/redis.sock?db=1&password=pw").settings["unix_socket_path"] == "/run/redis.sock"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis://a?colour=red", "has the option 'colour'; known are ack, cluster, db"),
        ("redis://a?ssl_verify=none", "has the option 'ssl_verify'"),
        ("redis://a?prefix=x{y", "must be printable text without braces"),
        ("redis://a?ack=0", "ack= of the store address must be aof, or the number of replicas"),
        ("redis://a?ack=all", "ack= of the store address must be aof"),
        ("redis://a:b", "the port of the store address must be a number"),
        ("redis://a/jobs", "the db of the store address must be a number"),
        ("redis://a/1?db=2", "names a database twice"),
        ("redis://", "does not name a server"),
        ("redis://a,b", "names several servers; add ?sentinel=SERVICE or ?cluster=yes"),
        ("redis://a?cluster=perhaps", "cluster= of the store address must be yes or no"),
        ("redis://a?cluster=yes&sentinel=main", "does not go with cluster=yes"),
        ("redis://a/1?cluster=yes", "a Cluster has only database 0"),
        ("redis://a?prefix", "are not written NAME=VALUE"),
        ("rediss://a?ssl_verify=maybe", "ssl_verify= of the store address must be full or none"),
        ("unix://", "must name a socket"),
        ("unix:///a.sock?cluster=yes", "has the option 'cluster'"),
    ],
)
def test_an_address_that_cannot_be_read_says_why(url: str, said: str) -> None:
    with pytest.raises(BadURL) as found:
        open_store(url)
    assert said in str(found.value)


def test_a_program_without_the_driver_says_how_to_install_it() -> None:
    code = "import sys; sys.modules['redis'] = None\nfrom holdfast.stores import open_store\nopen_store('redis://a')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "StoreUnsupported" in found.stderr
    assert "install the Redis driver: pip install 'redis" in found.stderr


def test_a_store_is_reached_through_a_socket(server: RedisServer) -> None:
    with App(f"unix://{server.folder}/redis.sock") as app:
        job = app.task(name="t")(lambda: None).enqueue()
        assert app.store.get(job.id) is not None


@pytest.mark.parametrize("user", ["narrow:pass%20word", "wider:s3cret"])
def test_a_narrow_user_may_do_everything(server: RedisServer, user: str) -> None:
    with App(server.url.replace("//", f"//{user}@"), journal="full") as app:
        task = app.task(name="t", lease_s=3)(lambda: 7)
        workflow = app.workflow(name="w")(lambda flow: flow.step(str, 1))
        jobs = [task.enqueue(), task.using(group="a", key="k", tags=["x"]).enqueue(), workflow.enqueue()]
        app.tick(budget_s=20)
        assert [job.result(timeout=60) for job in jobs] == [7, 7, "1"]
        assert app.store.check() == []
        assert app.store.vanished() == []
        app.store.ping(durably=True)


def test_a_wrong_password_and_a_missing_right_are_named(server: RedisServer) -> None:
    with closing(open_store(server.url.replace("//", "//narrow:wrong@"))) as store, pytest.raises(StoreDenied) as found:
        store.migrate()
    assert "check the user and password of the address" in str(found.value)
    assert "wrong" not in str(found.value)
    with closing(open_store(server.url)) as store:
        store.migrate()
    with closing(open_store(server.url.replace("//", "//blind:s3cret@"))) as store, pytest.raises(StoreDenied) as found:
        store.add([make_job()])
    assert "docs/redis.md lists it" in str(found.value)


def test_a_server_that_is_not_there_is_named_at_once(server: RedisServer) -> None:
    with closing(open_store("redis://:s3cret@127.0.0.1:1")) as store, pytest.raises(StoreUnavailable) as found:
        store.migrate()
    assert not isinstance(found.value, OutcomeUnknown)
    assert "redis://:***@127.0.0.1:1: " in str(found.value)


def test_nothing_is_created_where_only_an_existing_store_is_wanted(server: RedisServer) -> None:
    with closing(open_store(server.url, create=False)) as store:
        with pytest.raises(StoreMissing, match="run holdfast db init"):
            store.migrate()
        with pytest.raises(StoreMissing, match="run holdfast db init"):
            store.counts()
    with closing(server.client()) as client:
        assert client.dbsize() == 0
    assert holdfast(server.url, "db", "status").returncode == 3


def test_an_address_with_an_epoch_never_makes_another_store(server: RedisServer) -> None:
    with (
        closing(open_store(f"{server.url}?epoch=abc")) as store,
        pytest.raises(StoreLost, match="store abc is not"),
    ):
        store.migrate()
    with closing(open_store(server.url)) as store:
        store.migrate()
        epoch = store.standing("", [], None).identity
    with closing(open_store(f"{server.url}?epoch=abc")) as store, pytest.raises(StoreLost, match="was replaced"):
        store.migrate()
    with closing(open_store(f"{server.url}?epoch={epoch}")) as store:
        store.migrate()


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_server_that_evicts_jobs_is_refused(server: RedisServer, policy: str) -> None:
    with closing(server.client()) as client:
        client.config_set("maxmemory-policy", policy)
    with closing(open_store(server.url)) as store, pytest.raises(StoreUnsupported, match="set maxmemory-policy noevic"):
        store.migrate()


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl", "volatile-random"])
def test_a_server_that_evicts_keys_with_a_time_to_live_keeps_every_job(server: RedisServer, policy: str) -> None:
    with App(server.url) as app, closing(server.client()) as client:
        task = app.task(name="t")(lambda text: 1)
        for number in range(8):
            client.set(f"cache:{number}", "x" * 500_000, ex=3600)
        evicted = client.info("stats")["evicted_keys"]
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 100_000)
        jobs: list[Job[int]] = []

        def fill() -> None:
            while len(jobs) < 100:
                jobs.append(task.enqueue("y" * 100_000))

        with pytest.raises(StoreFull, match="maxmemory"):
            fill()
        assert len(jobs) > 5
        assert client.keys("cache:*") == []
        assert client.info("stats")["evicted_keys"] == evicted + 8
        assert app.store.check() == []
        app.tick(budget_s=20)
        assert [job.result(timeout=60) for job in jobs] == [1] * len(jobs)


def test_a_server_that_was_emptied_is_never_an_empty_store(server: RedisServer) -> None:
    with closing(open_store(server.url)) as store, closing(server.client()) as client:
        store.migrate()
        store.add([make_job()])
        client.flushall()
        verbs = (store.counts, store.workers, store.now, store.queues, lambda: store.add([make_job()]), store.ping)
        for verb in verbs[:2] + verbs[3:]:
            with pytest.raises(StoreLost, match="was emptied"):
                verb()
        with closing(open_store(server.url)) as other:
            other.migrate()
        with pytest.raises(StoreLost, match="was replaced"):
            store.counts()


def test_a_full_server_takes_no_jobs_and_lets_workers_end_theirs(server: RedisServer) -> None:
    with App(server.url) as app, closing(server.client()) as client:
        task = app.task(name="t")(lambda: 1)
        jobs = [task.enqueue() for _ in range(3)]
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreFull, match="maxmemory"):
            task.enqueue()
        app.tick(budget_s=20)
        assert [job.result(timeout=60) for job in jobs] == [1, 1, 1]
        client.config_set("maxmemory", 0)
        task.enqueue()


def test_a_replica_is_named_as_one_that_takes_no_writes(server: RedisServer) -> None:
    with closing(open_store(server.url)) as store, closing(server.client()) as client:
        store.migrate()
        client.execute_command("REPLICAOF", "127.0.0.1", "1")
        with pytest.raises(StoreReadOnly, match="takes no writes"):
            store.add([make_job()])
        with pytest.raises(StoreReadOnly, match="takes no writes"):
            store.ping(durably=True)


def test_a_server_with_too_few_replicas_takes_no_writes(server: RedisServer) -> None:
    with closing(open_store(server.url)) as store, closing(server.client()) as client:
        store.migrate()
        client.config_set("min-replicas-to-write", 1)
        with pytest.raises(StoreUnavailable, match="too few replicas"):
            store.add([make_job()])
        assert store.counts() == {}


def test_a_write_that_the_disk_must_confirm_needs_an_append_only_file(server: RedisServer) -> None:
    with closing(open_store(f"{server.url}?ack=aof")) as store, pytest.raises(StoreUnsupported, match="appendonly yes"):
        store.migrate()


def test_a_write_that_no_replica_confirms_is_not_acknowledged(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("holdfast.stores.redis.connection.ACK_S", 0.05)
    new = make_job()
    with closing(open_store(f"{server.url}?ack=1")) as store:
        store.migrate()
        for _ in range(2):  # the second one finds the job, and must not take that for a confirmation
            with pytest.raises(OutcomeUnknown, match="0 of 1 replicas") as found:
                store.add([new])
            assert found.value.job_ids == (new.id,)
        replica = RedisServer("--replicaof", "127.0.0.1", str(server.port))
        try:
            monkeypatch.setattr("holdfast.stores.redis.connection.ACK_S", 60.0)
            assert store.add([new])[0].existed
            with closing(replica.client()) as client:
                assert client.exists(f"{{holdfast}}:j:{new.id}")
            with caplog.at_level(logging.WARNING), closing(open_store(server.url)) as plain:
                plain.migrate()
            assert "set min-replicas-to-write 1" in caplog.text
        finally:
            replica.close()


def test_the_disk_confirms_a_write() -> None:
    durable = RedisServer("--appendonly", "yes", "--appendfsync", "everysec")
    try:
        with closing(durable.client()) as client:
            if client.info("server")["redis_version"] < "7.2":
                with closing(open_store(f"{durable.url}?ack=aof")) as store, pytest.raises(StoreUnsupported):
                    store.migrate()
                return
        with closing(open_store(f"{durable.url}?ack=aof")) as store:
            store.migrate()
            assert not store.add([make_job()])[0].existed
        found = json.loads(holdfast(f"{durable.url}?ack=aof", "doctor", "--json").stdout)
        assert "Acknowledged jobs survive a power cut" in [each["title"] for each in found["findings"]]
    finally:
        durable.close()


def test_an_answer_that_is_lost_names_the_jobs(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server closes the connection instead of answering."""
    new = make_job()
    with closing(RedisStore(server.url)) as store, closing(server.client()) as client:
        store.migrate()
        client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
        monkeypatch.setattr("holdfast.stores.redis.topology.ANSWER_S", 0.2)
        with closing(RedisStore(server.url)) as hasty, pytest.raises(OutcomeUnknown) as found:
            hasty.add([new])
        client.execute_command("CLIENT", "UNPAUSE")
        assert found.value.job_ids == (new.id,)
        store.add([new])
        assert store.counts() == {"default": {"ready": 1}}


def test_the_command_line_works_over_it(server: RedisServer) -> None:
    assert holdfast(server.url, "db", "init").returncode == 0
    with App(server.url) as app:
        app.task(name="t")(lambda: None).enqueue()
    assert "1 ready" in holdfast(server.url, "db", "status").stdout
    assert holdfast(server.url, "db", "check").stdout.strip() == "ok"
    assert holdfast(server.url, "scan").returncode == 0
    found = holdfast(server.url, "doctor", "--json")
    titles = [each["title"] for each in json.loads(found.stdout)["findings"]]
    assert "A restart of the server loses acknowledged jobs" in titles
    assert "The rows are sound" in titles


def test_what_redis_cannot_do_is_refused_with_what_to_use_instead(server: RedisServer) -> None:
    with App(server.url) as app:
        task = app.task(name="t")(lambda: None)
        with pytest.raises(StoreError, match="enqueue after your commit"):
            task.using(connection=object()).enqueue()

        def handler(ctx: Context) -> None:
            with ctx.transaction():
                pass

        job = app.task(name="u")(handler).enqueue()
        app.tick(budget_s=20)
        row = app.store.get(job.id)
        assert row is not None
        assert "make the effect repeatable" in str(row.error)


def test_lists_of_a_few_and_rates_read_the_rows_of_no_other_jobs(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_store(server.url)) as store:
        assert isinstance(store, RedisStore)
        store.migrate()
        store.add([make_job() for _ in range(200)])
        flow, later = make_job(workflow=True), make_job(delay_s=60.0)
        store.add([flow, later])
        read: list[str] = []
        rows = reading.read_rows
        monkeypatch.setattr(reading, "read_rows", lambda db, ids: read.extend(ids) or rows(db, ids))
        assert [job.id for job in store.find(Filter(workflow=True))] == [flow.id]
        assert [job.id for job in store.find(Filter(states=(State.READY,), later=store.now().wall))] == [later.id]
        assert sorted(read) == sorted([flow.id, later.id])
        assert sum(each.jobs for each in store.figures.flow(0.0)) == 202
        assert len(read) == 2
        monkeypatch.setattr(reading, "LATER_MAX", 0)
        assert [job.id for job in store.find(Filter(states=(State.READY,), later=store.now().wall))] == [later.id]


def until(condition: Callable[[], object], what: str) -> None:
    give_up_at = CLOCK.lease() + PATIENCE_S
    while not condition():
        assert CLOCK.lease() < give_up_at, f"waited in vain: {what}"
        pause(0.02)


def test_an_attempt_that_no_replica_knows_does_not_begin(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a failover gives the job to another worker, and a job that may start once has started twice (P7)."""
    with closing(open_store(server.url)) as store:
        store.migrate()
        enrol(store, id="w")
        add(store, id="a", on_crash="hold")
        monkeypatch.setattr("holdfast.stores.redis.connection.ACK_S", 0.05)
        for _ in range(2):  # the second one finds the lease, and must not take that for a confirmation
            with closing(open_store(f"{server.url}?ack=1")) as careful:
                with pytest.raises(OutcomeUnknown, match="0 of 1 replicas"):
                    claim(careful, "w", claim_id="c")
                assert claim(careful, "w", claim_id="d") == []  # nothing was written: nothing needs a confirmation
        replica = RedisServer("--replicaof", "127.0.0.1", str(server.port))
        try:
            monkeypatch.setattr("holdfast.stores.redis.connection.ACK_S", 60.0)
            with closing(open_store(f"{server.url}?ack=1")) as other:
                assert [job.id for job in claim(other, "w", claim_id="c")] == ["a"]
            with closing(replica.client()) as client:
                assert client.zscore("{holdfast}:leases", "a") is not None
        finally:
            replica.close()


def test_a_claim_that_finds_nothing_waits_for_no_replica(server: RedisServer) -> None:
    with closing(open_store(server.url)) as store, closing(server.client()) as client:
        store.migrate()
        enrol(store, id="w")
        client.config_resetstat()
        with closing(open_store(f"{server.url}?ack=1")) as careful:
            assert claim(careful, "w") == []
        assert "cmdstat_wait" not in client.info("commandstats")


def test_jobs_that_were_evicted_are_named(server: RedisServer) -> None:
    with closing(open_store(server.url)) as store, closing(server.client()) as client:
        store.migrate()
        store.add([make_job(id=f"e{number:02}") for number in range(75)] + [make_job(id="kept")])
        for number in range(75):
            client.delete(f"{{holdfast}}:j:e{number:02}")
        for _ in range(2):
            assert store.check() == [
                *(f"job e{number:02} is stored, and has lost its row" for number in range(20)),
                "55 more jobs are stored, and have lost their rows",
            ]
            assert {job.id for job in claim(store, limit=30)} <= {"kept"}


def test_a_user_who_may_not_subscribe_any_more_is_named_once(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(server.client()) as client:
        client.execute_command("ACL", "SETUSER", "mute", "on", ">s3cret", *RIGHTS.split(), *MORE_RIGHTS.split())
        with closing(RedisStore(server.url.replace("//", "//mute:s3cret@"))) as store:
            store.migrate()
            store.enroll(a_worker(id="w"))
            with caplog.at_level(logging.WARNING, "holdfast.stores"):
                before = store.connections_made
                client.execute_command("ACL", "SETUSER", "mute", "resetchannels")
                until(lambda: store.connections_made >= before + 4, "it has tried several times")
            refused = [each for each in caplog.messages if "permissions" in each]
            assert len(refused) == 1
            client.execute_command("ACL", "SETUSER", "mute", "&{holdfast}:*")
            until(lambda: store.holds_lock("w") and store._liveness._heard, "it has the lock again")


def test_a_forked_process_does_not_keep_the_lock_of_its_parent(server: RedisServer, tmp_path: Path) -> None:
    script = """
import os, sys, time
from holdfast.stores.redis.store import RedisStore
from tests.factory import a_worker
store = RedisStore(sys.argv[1])
store.enroll(a_worker(id="w"))
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
time.sleep(600)
"""
    with closing(RedisStore(server.url)) as store:
        store.migrate()
        parent = subprocess.Popen([sys.executable, "-c", script, server.url], stdout=subprocess.PIPE, text=True)
        child = 0
        try:
            assert parent.stdout is not None
            child = int(parent.stdout.readline())
            assert store.vanished() == []
            parent.kill()
            parent.wait()
            until(lambda: [each.worker.id for each in store.vanished()] == ["w"], "the lock is free")
            os.kill(child, 0)  # it lives
        finally:
            parent.kill()
            if child:
                os.kill(child, signal.SIGKILL)  # it has the other end of the pipe, too
            parent.communicate()
