"""The machine with Redis as the second store."""

from __future__ import annotations

from contextlib import closing

from holdfast.stores.protocol import Store
from holdfast.stores.redis.store import RedisStore
from tests.agreement.machine import Stores
from tests.servers import RedisServer


def stores_on(server: RedisServer, machine: type[Stores] = Stores) -> type[Stores]:
    """Return the machine over this server."""

    class RedisStores(machine):  # type: ignore[misc, valid-type]
        rounding = 0.0

        def open_second(self) -> Store:
            with closing(server.client()) as client:
                client.flushall()
            return RedisStore(server.url, clock=self.clock)

    return RedisStores
