"""Tokens in a table of the file."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.access import Token
from holdfast.stores import row_json
from holdfast.stores.sqlite.connection import Connections
from holdfast.stores.sqlite.rows import Q, text_of


class SqliteTokens:
    """See `stores/protocol.py: Tokens`."""

    def __init__(self, db: Connections) -> None:
        self._db = db

    def add(self, token: Token) -> bool:
        with self._db.writing() as db:
            return db.execute(Q["add_token"], row_json.token(token)).rowcount == 1

    def all(self) -> list[Token]:
        with self._db.reading() as db:
            return row_json.tokens_from(text_of(db, "all_tokens", None))

    def revoke(self, name: str) -> bool:
        with self._db.writing() as db:
            return db.execute(Q["revoke_token"], {"name": name}).rowcount == 1

    def used(self, at: Mapping[str, float]) -> None:
        with self._db.writing() as db:
            db.execute(Q["tokens_used"], {"at": row_json.encode(at).decode()})
