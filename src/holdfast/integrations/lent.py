"""Connections that `ctx.transaction()` has lent: told from all others, and by their kind."""

from __future__ import annotations

import sys
from typing import Literal

from holdfast.errors import UsageError
from holdfast.stores.sqlite.transaction import FencedConnection


def kind_of(db: object) -> Literal["sqlite", "postgresql"]:
    """Return whose connection it is; raise `UsageError` unless a transaction of Holdfast's has lent it."""
    if isinstance(db, FencedConnection):
        return "sqlite"
    postgres = sys.modules.get("holdfast.stores.postgres.transaction")
    if postgres is not None and isinstance(db, postgres.FencedConnection):
        return "postgresql"
    raise UsageError(f"db={type(db).__name__} must be the connection that ctx.transaction() or flow.transaction gives")
