"""Tokens in a plain dict."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.core.access import Token


class MemoryTokens:
    """See `stores/protocol.py: Tokens`."""

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self._tokens: dict[str, Token] = {}

    def add(self, token: Token) -> bool:
        with self._lock:
            is_new = token.name not in self._tokens
            if is_new:
                self._tokens[token.name] = replace(token, used_at=None)
            return is_new

    def all(self) -> list[Token]:
        with self._lock:
            return [self._tokens[name] for name in sorted(self._tokens)]

    def revoke(self, name: str) -> bool:
        with self._lock:
            return self._tokens.pop(name, None) is not None

    def used(self, at: Mapping[str, float]) -> None:
        with self._lock:
            for name in at.keys() & self._tokens.keys():
                token = self._tokens[name]
                self._tokens[name] = replace(token, used_at=max(at[name], token.used_at or 0.0))
