"""Tokens in a table of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.access import Token
from holdfast.stores import row_json
from holdfast.stores.postgres.connection import Connections


class PostgresTokens:
    """See `stores/protocol.py: Tokens`."""

    def __init__(self, db: Connections) -> None:
        self._db = db

    def add(self, token: Token) -> bool:
        return self._changed("add_token", row_json.token(token)) == 1

    def all(self) -> list[Token]:
        return row_json.tokens_from(self._db.one("all_tokens")[0])

    def revoke(self, name: str) -> bool:
        return self._changed("revoke_token", {"name": name}) == 1

    def used(self, at: Mapping[str, float]) -> None:
        self._changed("tokens_used", {"at": row_json.encode(at).decode()})

    def _changed(self, query: str, values: dict[str, Any]) -> int:
        return self._db.run(lambda db: db.execute(self._db[query], values, prepare=False).rowcount)
