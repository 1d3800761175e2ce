"""A Redis server that loses what it had: each loss is noticed, named, and never taken for an empty store (P14)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from holdfast import App
from holdfast.clock import SystemClock, pause
from holdfast.continuity import Continuity
from holdfast.core.records import Pulse
from holdfast.core.verdict import Succeeded
from holdfast.errors import StoreLost, StoreUnavailable
from holdfast.stores.protocol import Reply
from holdfast.stores.redis.store import RedisStore
from tests.factory import a_worker, add, claim, enrol, make_job, settle
from tests.forwarder import Forwarder
from tests.server.fleet import Load
from tests.servers import RedisServer

RESTARTS = 10
CLOCK = SystemClock()


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """A server that writes snapshots when it is told to, and no append-only file."""
    server = RedisServer()
    yield server
    server.close()


@pytest.mark.slow  # ten restarts of a real server under load
def test_a_server_that_is_killed_and_restarted_ten_times_loses_nothing_that_its_file_has() -> None:
    """With everysec the server delays its writes while the disk is slow; the store then says what is missing."""
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always")
    behind = App(server.url)
    try:
        behind.store.migrate()
        with Load(server.url, behind) as load:
            for _ in range(RESTARTS):
                load.until_more(10)
                server.stop(signal.SIGKILL)
                server.start()
            load.until_more(10)
            load.end()
        load.check()
        assert len(load.acknowledged) >= RESTARTS * 10
    finally:
        behind.close()
        server.close()


@pytest.mark.slow  # nobody may be taken for dead in the seconds after a restart
def test_a_restart_with_fifty_workers_makes_no_zombie() -> None:
    server = RedisServer("--appendonly", "yes", "--appendfsync", "always")
    try:
        with ExitStack() as stack:
            stores = [stack.enter_context(closing(RedisStore(server.url))) for _ in range(50)]
            stores[0].migrate()
            for number, store in enumerate(stores):
                store.enroll(a_worker(id=f"w{number}"))
            assert stores[0].vanished() == []
            server.stop(signal.SIGKILL)
            server.start()
            give_up_at, judge = CLOCK.lease() + 6.0, stores[0]
            newcomer = stack.enter_context(closing(RedisStore(server.url)))  # was never cut itself
            while CLOCK.lease() < give_up_at:
                for each in (judge, newcomer):
                    try:
                        assert each.vanished() == []
                    except StoreUnavailable:
                        continue
            until_proved(judge, 50)
            stores[7]._liveness.close()  # its process dies
            until_vanished(judge, "w7")
    finally:
        server.close()


def until_proved(store: RedisStore, workers: int) -> None:
    """Wait until the rows of all workers name the run of the server."""
    give_up_at = CLOCK.lease() + 60
    while store.condition().unlocked:
        assert CLOCK.lease() < give_up_at, "some have no lock"
        pause(0.05)
    assert len(store.workers()) == workers


def until_vanished(store: RedisStore, worker: str) -> None:
    give_up_at = CLOCK.lease() + 60
    while [each.worker.id for each in store.vanished()] != [worker]:
        assert CLOCK.lease() < give_up_at, "nobody sees it"
        pause(0.05)


def test_a_restart_without_data_is_never_an_empty_store(server: RedisServer) -> None:
    with closing(RedisStore(server.url)) as store:
        store.migrate()
        enrol(store, id="w")
        job = add(store)
        [job] = claim(store, "w")
        server.stop(signal.SIGKILL)
        server.start()
        for verb in (
            store.counts,
            lambda: claim(store, "w"),
            lambda: settle(store, job, Succeeded()),
            lambda: store.beat("w", [Pulse(job.lease)]),
            lambda: store.add([make_job()]),
            lambda: store.standing("w", [], None),
        ):
            with pytest.raises(StoreLost, match="was emptied: what Holdfast had stored there is gone"):
                verb()
        with pytest.raises(StoreLost, match="was emptied"):
            store.migrate()


def rewind(server: RedisServer) -> None:
    """Restart the server from the snapshot that it has."""
    server.stop(signal.SIGKILL)
    server.start()


def test_an_older_snapshot_is_noticed_at_the_first_write(server: RedisServer) -> None:
    with closing(RedisStore(server.url)) as store, closing(server.client()) as client:
        store.migrate()
        watched = Continuity(store, CLOCK, "p", "")
        enrol(store, id="w")
        watched.look("w")
        client.save()
        lost = add(store)
        [lost] = claim(store, "w")
        rewind(server)
        store.add([make_job()])
        assert watched.is_outdated, "it looks at once"
        watched.look("w")
        assert [(doubt.kind, doubt.evidence) for doubt in store.doubts()] == [("rewound", "writes")]
        assert watched.in_doubt
        assert settle(store, lost, Succeeded()) is Reply.REFUSED
        store.accept(1, "ann", "looked")
        watched.look("w")
        watched.look("w")
        assert not watched.in_doubt


def test_a_rewind_that_other_writes_have_hidden_is_noticed_by_the_beats_of_a_worker(server: RedisServer) -> None:
    with closing(RedisStore(server.url)) as store, closing(server.client()) as client:
        store.migrate()
        watched = Continuity(store, CLOCK, "p", "")
        enrol(store, id="w")
        client.save()
        for _ in range(3):
            store.beat("w", [])
            watched.beaten("w")
        watched.look("w")
        store._liveness.close()  # else it writes first, and sees that the number of writes fell
        rewind(server)
        with closing(RedisStore(server.url)) as other:
            other.migrate()
            for _ in range(20):
                other.add([make_job()])
        watched.look("w")
        assert [(doubt.kind, doubt.evidence) for doubt in store.doubts()] == [("rewound", "beats")]


def test_claim_ids_refuse_the_attempts_of_a_forgotten_stretch(server: RedisServer) -> None:
    """The fence repeats after a rewind, and the claim id does not."""
    with closing(RedisStore(server.url)) as store, closing(server.client()) as client:
        store.migrate()
        enrol(store, id="w")
        add(store, id="a")
        client.save()
        [forgotten] = claim(store, "w")
        rewind(server)
        [again] = claim(store, "w")
        assert (again.id, again.fence) == (forgotten.id, forgotten.fence)
        assert settle(store, forgotten, Succeeded("stale")) is Reply.REFUSED
        assert settle(store, again, Succeeded("new")) is Reply.ACCEPTED


def test_a_stale_replica_that_was_promoted_is_noticed(server: RedisServer) -> None:
    server.set("repl-diskless-sync-delay", 0)
    replica = RedisServer("--replicaof", "127.0.0.1", str(server.port))
    address = Forwarder(server.port)
    try:
        with closing(RedisStore(f"redis://127.0.0.1:{address.port}")) as store, closing(replica.client()) as client:
            store.migrate()
            watched = Continuity(store, CLOCK, "p", "")
            enrol(store, id="w")
            with closing(server.client()) as primary:
                primary.set("mine", 1)
                assert primary.execute_command("WAIT", 1, 60_000) == 1
            watched.look("w")
            assert client.exists("{holdfast}:meta")
            client.execute_command("REPLICAOF", "NO", "ONE")
            lost = add(store)
            store.beat("w", [])
            watched.beaten("w")
            address.target = replica.port
            address.cut()
            while True:
                try:
                    watched.look("w")
                    break
                except StoreUnavailable:
                    pause(0.05)
            assert watched.in_doubt
            assert [doubt.kind for doubt in store.doubts()] == ["rewound"]
            assert store.get(lost.id) is None
    finally:
        address.close()
        replica.close()


def test_a_split_primary_stops_writes_when_replicas_are_required(server: RedisServer) -> None:
    """With min-replicas-to-write 1 a primary that is cut off acknowledges nothing after min-replicas-max-lag."""
    server.set("repl-diskless-sync-delay", 0)
    replica = RedisServer("--replicaof", "127.0.0.1", str(server.port))
    try:
        with closing(RedisStore(server.url)) as store, closing(server.client()) as client:
            store.migrate()
            client.set("mine", 1)
            assert client.execute_command("WAIT", 1, 60_000) == 1
            client.config_set("min-replicas-max-lag", 1)
            client.config_set("min-replicas-to-write", 1)
            store.add([make_job()])
            replica.stop(signal.SIGKILL)
            stops_by = CLOCK.lease() + 60
            while True:
                try:
                    store.add([make_job()])
                except StoreUnavailable as error:
                    assert "too few replicas" in str(error)  # noqa: PT017 - it takes until the lag is too long
                    break
                assert CLOCK.lease() < stops_by, "it still acknowledges"
    finally:
        replica.close()
