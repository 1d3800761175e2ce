"""Finds the server that has the store: the one of the address, the primary that Sentinels name, or the primary of the
store's slot in a Cluster.

All keys of a store are in one slot, so one server has them all, in a Cluster too. A client speaks to that server
directly. When the server says that the store is elsewhere, or cannot be reached, it is looked for again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from holdfast.errors import BadURL
from holdfast.stores.redis.address import Host, Options

ANSWER_S = 10.0  # the longest wait for an answer
CONNECT_S = 3.0
CLOSE_S = 5.0  # the longest wait of `close` for answers that other threads wait for
_LOOK_S = 1.0  # the longest wait for a Sentinel, or for a node of a Cluster
_NEVER = Retry(NoBackoff(), 0)
_ELSEWHERE = (exceptions.MovedError, exceptions.ReadOnlyError)  # the command was not carried out
_PERHAPS = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ClusterDownError, exceptions.AskError)


class Topology:
    """See the module's docstring."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.can_move = options.sentinel is not None or options.is_cluster
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._busy = 0  # threads that wait for answers
        self._client: redis.Redis | None = None
        self._is_closed = False
        self._nodes = list(options.hosts)  # of the Cluster, as far as they are known
        self._slot = key_slot(options.prefix.encode())

    @property
    def client(self) -> redis.Redis:
        """Return a client of the server that has the store. Each command is sent once: callers repeat."""
        client = self._client
        if client is not None:
            return client
        with self._lock:
            return self._opened()

    def _opened(self) -> redis.Redis:
        if self._is_closed:
            raise exceptions.ConnectionError("the store is closed")
        if self._client is None:
            self._client = self._found()
        return self._client

    def is_elsewhere(self, client: redis.Redis, error: exceptions.RedisError) -> bool:
        """Look again before the next command if the error says so; return whether to repeat this one at once."""
        surely = isinstance(error, _ELSEWHERE)
        if not surely and not isinstance(error, _PERHAPS):
            return False
        if self.can_move:
            with self._lock:
                if self._client is client:
                    self._client = None
        if self.can_move or surely:
            client.connection_pool.disconnect(inuse_connections=False)  # a name may stand for another server by now
        return surely

    def close(self) -> None:
        """Refuse further commands, and close every connection, those that wait for an answer a moment later."""
        with self._lock:
            self._is_closed, client, self._client = True, self._client, None
            self._idle.wait_for(lambda: not self._busy, CLOSE_S)
        if client is not None:
            client.close()
            client.connection_pool.disconnect()

    @contextmanager
    def used(self) -> Iterator[redis.Redis]:
        """Lend a client until the answers to its commands have come."""
        with self._lock:
            client = self._opened()
            self._busy += 1
        try:
            yield client
        finally:
            with self._lock:
                self._busy -= 1
                self._idle.notify_all()

    def _found(self) -> redis.Redis:
        options = self._options
        host: Host | None
        if options.sentinel is not None:
            host = self._named_by_sentinels(options.sentinel)
        elif options.is_cluster:
            host = self._primary_of_slot()
        else:
            host = options.hosts[0] if options.hosts else None
        return self._open(host, **options.settings)

    def _named_by_sentinels(self, service: str) -> Host:
        user, password = self._options.sentinel_login
        login = {"username": user, "password": password, "db": 0}
        said: exceptions.RedisError | None = None
        for host in self._options.hosts:
            try:
                with closing(self._open(host, **{**self._options.settings, **login}, look_s=_LOOK_S)) as sentinel:
                    found: Any = sentinel.execute_command("SENTINEL", "get-master-addr-by-name", service)  # type: ignore[no-untyped-call]
            except exceptions.RedisError as error:
                said = error
                continue
            if found is not None:
                return found[0].decode(), int(found[1])
        raise said or exceptions.ConnectionError(f"no Sentinel knows the service {service!r}")

    def _primary_of_slot(self) -> Host:
        said: exceptions.RedisError | None = None
        for host in list(self._nodes):
            try:
                with closing(self._open(host, **self._options.settings, look_s=_LOOK_S)) as node:
                    slots: Any = node.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
            except exceptions.RedisError as error:
                said = error
                continue
            ranges = [(first, last, _hosts_of(owners, host)) for first, last, *owners in slots]
            known = [each for _, _, owners in ranges for each in owners]
            self._nodes = list(dict.fromkeys([*known, *self._nodes, *self._options.hosts]))
            for first, last, owners in ranges:
                if first <= self._slot <= last:
                    return owners[0]
        raise said or exceptions.ClusterDownError(f"CLUSTERDOWN no node of the Cluster has slot {self._slot}")

    def _open(self, host: Host | None, look_s: float | None = None, **settings: Any) -> redis.Redis:
        more: dict[str, Any] = {}
        if host is not None:
            more = {"host": host[0], "port": host[1], "socket_keepalive": True}
        try:
            return redis.Redis(
                **settings,
                **more,
                retry=_NEVER,
                socket_timeout=look_s or ANSWER_S,
                socket_connect_timeout=look_s or CONNECT_S,
                protocol=2,
                health_check_interval=0,
            )
        except (ValueError, TypeError) as error:
            raise BadURL(f"the store address cannot be read: {error}") from None


def _hosts_of(owners: Any, asked: Host) -> list[Host]:
    """Return the primary of a range of slots, then its replicas. A node may leave out its own name."""
    return [(name.decode() if name else asked[0], int(port)) for name, port, *_ in owners]
