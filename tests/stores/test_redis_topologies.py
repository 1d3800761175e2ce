"""Where the server is: behind TLS, named by Sentinels, or a node of a Cluster. Real servers on loopback."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis

from holdfast import App
from holdfast.clock import pause
from holdfast.errors import StoreUnavailable
from holdfast.stores import open_store
from tests.factory import make_job
from tests.forwarder import Forwarder, certificate
from tests.server.fleet import Load
from tests.servers import CLOCK, PATIENCE_S, RedisServer, free_port

pytestmark = pytest.mark.slow  # servers are started, killed and replaced
NODE_TIMEOUT_MS = 1000
# A primary otherwise waits for five seconds before it sends its data to a replica, and ack=1 needs one.
AT_ONCE = ("--repl-diskless-sync-delay", "0", "--appendonly", "yes")


def until(condition: Callable[[], object], what: str) -> None:
    give_up_at = CLOCK.lease() + PATIENCE_S
    while True:
        try:
            if condition():
                return
        except (redis.RedisError, StoreUnavailable):
            pass
        assert CLOCK.lease() < give_up_at, f"waited in vain: {what}"
        pause(0.02)


def until_more(load: Load, number: int) -> float:
    """Wait until so many more jobs are done, although the store may be away; return how long that took."""
    began, wanted = CLOCK.lease(), len(load.ran) + number
    until(lambda: len(load.ran) >= wanted or load.failed, f"{number} more jobs are started")
    assert load.failed is None, load.failed
    return CLOCK.lease() - began


# ------------------------------------------------------------------------------------------------ TLS


@pytest.fixture
def tls(tmp_path: Path, redis_server: RedisServer, redis: str) -> Iterator[tuple[int, Path]]:
    known = certificate(tmp_path)
    proxy = Forwarder(redis_server.port, known)
    yield proxy.port, known.with_name("cert.pem")
    proxy.close()


def test_a_store_is_reached_over_tls(tls: tuple[int, Path]) -> None:
    port, known = tls
    with App(f"rediss://localhost:{port}?ssl_ca_certs={known}") as app:
        job = app.task(name="t")(lambda: 7).enqueue()
        app.tick(budget_s=20)
        assert job.result(timeout=60) == 7


def test_a_certificate_that_nobody_trusts_is_refused(tls: tuple[int, Path]) -> None:
    port, _ = tls
    with closing(open_store(f"rediss://localhost:{port}")) as store, pytest.raises(StoreUnavailable) as found:
        store.migrate()
    assert "certificate verify failed" in str(found.value)
    with closing(open_store(f"rediss://localhost:{port}?ssl_verify=none")) as store:
        store.migrate()


# ------------------------------------------------------------------------------------------- Sentinel


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[tuple[str, RedisServer, RedisServer]]:
    """A primary and a replica, watched by three Sentinels; with the address of the service."""
    with ExitStack() as stack:
        primary = RedisServer(*AT_ONCE)
        stack.callback(primary.close)
        replica = RedisServer("--replicaof", "127.0.0.1", str(primary.port), *AT_ONCE)
        stack.callback(replica.close)
        ports = [free_port() for _ in range(3)]
        for number, port in enumerate(ports):
            file = tmp_path / f"sentinel-{number}.conf"
            file.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\nsentinel monitor main 127.0.0.1 {primary.port} 2\n"
                "sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n"
            )
            log = stack.enter_context((tmp_path / f"sentinel-{number}.log").open("wb"))
            process = subprocess.Popen([primary.binary, file, "--sentinel"], stdout=log, stderr=log)
            stack.callback(process.wait, PATIENCE_S)
            stack.callback(process.kill)

        def knows_all(port: int) -> bool:
            with closing(redis.Redis(port=port, protocol=2)) as client:
                found = client.execute_command("SENTINEL", "MASTER", "main")
                said = found if isinstance(found, dict) else dict(zip(found[::2], found[1::2], strict=True))
                known = {str(name, "ascii") if isinstance(name, bytes) else name: value for name, value in said.items()}
                return int(known["num-slaves"]) == 1 and int(known["num-other-sentinels"]) == 2

        for port in ports:
            until(lambda: knows_all(port), "the Sentinel knows the others")  # noqa: B023
        hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
        yield f"redis://{hosts}?sentinel=main", primary, replica


def test_workers_follow_the_sentinels_to_the_new_primary(sentinels: tuple[str, RedisServer, RedisServer]) -> None:
    """Under ack=1 nothing that was acknowledged is lost, and nobody is taken for dead."""
    url, primary, replica = sentinels
    behind = App(url)
    try:
        behind.store.migrate()
        with Load(f"{url}&ack=1", behind) as load:
            until_more(load, 20)
            primary.stop(signal.SIGKILL)
            until(lambda: _role(replica) == "master", "the replica is promoted")
            primary.start("--replicaof", "127.0.0.1", str(replica.port))
            away_s = until_more(load, 20)
            load.end()
        load.check()
        print(f"\nSentinel: jobs ran {away_s:.2f} s after the promotion")
    finally:
        behind.close()


def _role(server: RedisServer) -> str:
    with closing(server.client()) as client:
        return str(client.info("replication")["role"])


def test_sentinels_that_do_not_know_the_service_are_named(sentinels: tuple[str, RedisServer, RedisServer]) -> None:
    url = sentinels[0].replace("sentinel=main", "sentinel=other")
    with (
        closing(open_store(url)) as store,
        pytest.raises(StoreUnavailable, match="no Sentinel knows the service 'other'"),
    ):
        store.migrate()


# -------------------------------------------------------------------------------------------- Cluster


class Cluster:
    """Three primaries with a replica each."""

    def __init__(self) -> None:
        settings = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(NODE_TIMEOUT_MS), *AT_ONCE)
        self.nodes = [RedisServer(*settings) for _ in range(6)]
        self.url = "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes) + "?cluster=yes"
        first, *others = self.nodes
        spans = [(0, 5460), (5461, 10922), (10923, 16383)]
        for node, (start, end) in zip(self.nodes, spans, strict=False):
            self.ask(node, "CLUSTER", "ADDSLOTSRANGE", start, end)
        for number, node in enumerate(self.nodes):
            self.ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in others:
            self.ask(first, "CLUSTER", "MEET", "127.0.0.1", node.port)
        until(lambda: all(self._knows(node) == 6 for node in self.nodes), "the nodes know each other")
        for primary, replica in zip(self.nodes[:3], self.nodes[3:], strict=True):
            name = self.ask(primary, "CLUSTER", "MYID").decode()
            until(lambda: self.ask(replica, "CLUSTER", "REPLICATE", name), "it is a replica")  # noqa: B023
        self.until_whole()

    def ask(self, node: RedisServer, *words: object) -> object:
        with closing(node.client()) as client:
            return client.execute_command(*words)  # type: ignore[no-untyped-call]

    def until_whole(self) -> None:
        def is_whole(node: RedisServer) -> bool:
            with closing(node.client()) as client:
                known = client.info("replication")
                synced = known["role"] == "master" and known["connected_slaves"] >= 1
                return b"cluster_state:ok" in self._info(node) and (synced or known.get("master_link_status") == "up")

        until(lambda: all(is_whole(node) for node in self.nodes), "the Cluster is whole")

    def owner(self, slot: int) -> RedisServer:
        """Return the living node that has the slot."""
        for node in self.nodes:
            try:
                for first, last, (_, port, *_), *_ in self.ask(node, "CLUSTER", "SLOTS"):  # type: ignore[attr-defined]
                    if first <= slot <= last:
                        return next(each for each in self.nodes if each.port == port)
            except redis.RedisError:
                continue
        raise AssertionError("nobody has the slot")

    def _info(self, node: RedisServer) -> bytes:
        with closing(redis.Redis(port=node.port, protocol=2)) as client:
            client.response_callbacks.clear()
            found = client.execute_command("CLUSTER INFO")
            return found if isinstance(found, bytes) else str(found).encode()

    def _knows(self, node: RedisServer) -> int:
        return int(self._info(node).split(b"cluster_known_nodes:")[1].split()[0])

    def close(self) -> None:
        for node in self.nodes:
            node.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
def load(cluster: Cluster) -> Iterator[Load]:
    """Workers and a producer over a store of their own in the Cluster, with ack=1."""
    cluster.until_whole()
    url = f"{cluster.url}&prefix=p{free_port()}"
    behind = App(url)
    behind.store.migrate()
    with Load(f"{url}&ack=1", behind) as load:
        until_more(load, 10)
        yield load
    behind.close()


def slot_of(load: Load) -> int:
    from redis.crc import key_slot

    return int(key_slot(f"{{{load.url.partition('prefix=')[2].partition('&')[0]}}}:".encode()))


def test_the_primary_of_our_slot_dies(cluster: Cluster, load: Load) -> None:
    victim = cluster.owner(slot_of(load))
    killed_at = CLOCK.lease()
    victim.stop(signal.SIGKILL)
    until(lambda: cluster.owner(slot_of(load)) is not victim, "the replica is promoted")
    victim.start()  # ack=1 needs a replica
    until_more(load, 20)
    away_s = CLOCK.lease() - killed_at
    load.end()
    load.check()
    print(f"\nCluster: jobs ran {away_s:.2f} s after the primary of our slot was killed")


@pytest.mark.parametrize("coverage", ["yes", "no"])
def test_another_primary_dies(cluster: Cluster, load: Load, coverage: str) -> None:
    for node in cluster.nodes:
        cluster.ask(node, "CONFIG", "SET", "cluster-require-full-coverage", coverage)
    ours = cluster.owner(slot_of(load))
    victim = next(each for slot in (0, 8000, 16383) if (each := cluster.owner(slot)) is not ours)
    victim.stop(signal.SIGKILL)
    away_s = until_more(load, 20)
    victim.start()
    load.end()
    load.check()
    print(f"\nCluster: jobs ran {away_s:.2f} s after another primary was killed, full coverage {coverage}")


def test_our_slot_moves_under_load(cluster: Cluster, load: Load) -> None:
    slot = slot_of(load)
    source = cluster.owner(slot)
    target = next(each for other in (0, 8000, 16383) if (each := cluster.owner(other)) is not source)
    ids = {node.port: cluster.ask(node, "CLUSTER", "MYID").decode() for node in (source, target)}  # type: ignore[attr-defined]
    began = CLOCK.lease()
    cluster.ask(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source.port])
    cluster.ask(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target.port])
    while names := cluster.ask(source, "CLUSTER", "GETKEYSINSLOT", slot, 100):
        cluster.ask(source, "MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, "KEYS", *names)  # type: ignore[misc]
    for node in (target, source, *cluster.nodes):
        if _role(node) == "master":
            cluster.ask(node, "CLUSTER", "SETSLOT", slot, "NODE", ids[target.port])
    moved_s = CLOCK.lease() - began
    away_s = until_more(load, 20)
    load.end()
    load.check()
    assert cluster.owner(slot) is target
    print(f"\nCluster: our slot moved in {moved_s:.2f} s; jobs ran {away_s:.2f} s after that")


def test_a_store_in_a_cluster_has_all_its_keys_in_one_slot(cluster: Cluster) -> None:
    from redis.crc import key_slot

    cluster.until_whole()
    url = f"{cluster.url}&prefix=one"
    with closing(open_store(url)) as store:
        store.migrate()
        store.add([make_job(queue="a{b}c", group="}x{", key="{k}")])
        owner = cluster.owner(key_slot(b"{one}:"))
        with closing(owner.client()) as client:
            keys = [key for key in client.scan_iter(count=1000) if key.startswith(b"{one}:")]
        assert len(keys) > 5
        assert {key_slot(key) for key in keys} == {key_slot(b"{one}:")}
