"""The machine with PostgreSQL as the second store."""

from __future__ import annotations

from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from tests.agreement.machine import Stores
from tests.conftest import empty


def stores_at(address: str, machine: type[Stores] = Stores) -> type[Stores]:
    """Return the machine over the database at this address."""

    class PostgresStores(machine):  # type: ignore[misc, valid-type]
        rounding = 0.0

        def open_second(self) -> Store:
            empty(address)
            return PostgresStore(address, clock=self.clock)

    return PostgresStores
