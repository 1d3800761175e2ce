"""The tokens of the HTTP API, in a hash."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from holdfast.core.access import Token
from holdfast.stores import row_json
from holdfast.stores.redis.connection import Connections
from holdfast.stores.redis.work import Work, committed, decode, pairs

TOKENS = "tokens"


class RedisTokens:
    """See `stores/protocol.py: Tokens`."""

    def __init__(self, db: Connections) -> None:
        self._db = db

    def add(self, token: Token) -> bool:
        def add(work: Work) -> bool:
            is_new = work.field(TOKENS, token.name) is None
            if is_new:
                work.set(TOKENS, token.name, replace(token, used_at=None))
            return is_new

        return committed(self._db, add)

    def all(self) -> list[Token]:
        found = []
        for name, text in pairs(self._db.ask(("HGETALL", TOKENS))[0]):
            try:
                found.append(decode(text, Token))
            except msgspec.DecodeError as error:
                row_json.log_once(f"token {name!r} cannot be read and is left out: {error}")
        return sorted(found, key=lambda token: token.name)

    def revoke(self, name: str) -> bool:
        def revoke(work: Work) -> bool:
            is_there = work.field(TOKENS, name) is not None
            if is_there:
                work.set(TOKENS, name, None)
            return is_there

        return committed(self._db, revoke)

    def used(self, at: Mapping[str, float]) -> None:
        def used(work: Work) -> None:
            for name in at:
                token = work.field(TOKENS, name, Token)
                if token is not None:
                    work.set(TOKENS, name, replace(token, used_at=max(at[name], token.used_at or 0.0)))

        committed(self._db, used)
