"""The machine with PostgreSQL as the second store."""

from __future__ import annotations

from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from tests.agreement.machine import Stores
from tests.conftest import empty


def stores_at(address: str, sql: dict[str, bytes] | None = None) -> type[Stores]:
    """Return the machine over the database at this address; `sql` has statements that stand in for the store's own."""

    class PostgresStores(Stores):
        rounding = 0.0

        def open_second(self) -> Store:
            empty(address)
            store = PostgresStore(address, clock=self.clock)
            store._db._sql |= sql or {}
            return store

    return PostgresStores
