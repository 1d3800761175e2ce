"""Roles and tokens of the HTTP API, and the queues that a token is limited to.

A token is 32 random bytes as text. The store keeps its SHA-256, so a reader of the store cannot use it.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable
from typing import Literal, get_args

import msgspec

Role = Literal["viewer", "operator", "worker", "producer", "admin"]
ROLES: tuple[Role, ...] = get_args(Role)
READERS: frozenset[Role] = frozenset({"viewer", "operator", "admin"})
OPERATORS: frozenset[Role] = frozenset({"operator", "admin"})
WORKERS: frozenset[Role] = frozenset({"worker", "admin"})
PRODUCERS: frozenset[Role] = frozenset({"producer", "operator", "admin"})
ADMINS: frozenset[Role] = frozenset({"admin"})

TOKEN_PREFIX = "hf_"  # noqa: S105  # so that scanners for leaked secrets can know one
SESSION_S = 12 * 3600.0
LEEWAY_S = 60.0  # clocks of two servers may differ
_HEX = re.compile(r"([0-9a-f]{2}){1,500}")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as the store keeps it. `queues`: None means all. Instants are wall time."""

    name: str
    role: Role
    queues: tuple[str, ...] | None = None
    sha256: str
    created_at: float
    used_at: float | None = None
    expires_at: float | None = None

    def is_valid(self, now: float) -> bool:
        """Say whether it has not expired."""
        return self.expires_at is None or now < self.expires_at


class User(msgspec.Struct, frozen=True):
    """The person or program behind a request. `queues`: the only ones that it sees; None means all."""

    name: str
    role: Role
    queues: tuple[str, ...] | None = None

    def has(self, roles: Collection[Role]) -> bool:
        """Say whether it has one of these roles."""
        return self.role in roles

    def sees(self, queue: str) -> bool:
        """Say whether the queue is in its scope."""
        return self.queues is None or queue in self.queues


def digest_of(secret: str) -> str:
    """Return the SHA-256 of a token."""
    return hashlib.sha256(secret.encode()).hexdigest()


def token_for(secret: str, tokens: Iterable[Token], now: float) -> Token | None:
    """Return the valid token with this secret. It compares with every token, each in constant time."""
    wanted, found = digest_of(secret), None
    for token in tokens:
        if hmac.compare_digest(wanted, token.sha256) and token.is_valid(now):
            found = token
    return found


def session_of(token: Token, secret: str, now: float) -> str:
    """Return the text of a login cookie: it is worthless once the token is revoked or replaced.

    It holds the secret, sealed with a key from its digest. So neither a reader of the store can make a cookie, nor a
    thief of one learn the secret or make it last longer.
    """
    issued = str(int(now))
    sealed = _sealed(token, issued, secret.encode()).hex()
    return f"{issued}.{sealed}.{_signature(token, issued, sealed)}.{token.name}"


def token_of_session(cookie: str, tokens: Iterable[Token], now: float) -> Token | None:
    """Return the valid token behind a login cookie that is not too old."""
    issued, _, rest = cookie.partition(".")
    sealed, _, rest = rest.partition(".")
    signature, _, name = rest.partition(".")
    if not (issued.isascii() and issued.isdigit() and len(issued) <= 12 and _HEX.fullmatch(sealed)):
        return None
    found = None
    for token in tokens:
        is_right = hmac.compare_digest(_signature(token, issued, sealed).encode(), signature.encode())
        if is_right and token.name == name and token.is_valid(now):
            secret = _sealed(token, issued, bytes.fromhex(sealed))
            if hmac.compare_digest(hashlib.sha256(secret).hexdigest(), token.sha256):
                found = token
    return found if -LEEWAY_S <= now - int(issued) < SESSION_S else None


def _signature(token: Token, issued: str, sealed: str) -> str:
    text = f"{token.name}\n{token.role}\n{issued}\n{sealed}"
    return hmac.new(_key(token, "signs"), text.encode(), hashlib.sha256).hexdigest()


def _sealed(token: Token, issued: str, text: bytes) -> bytes:
    """Seal the secret, or open it again. One key and instant seal only this one text, so the stream may come again."""
    blocks = -(-len(text) // 32)
    stream = b"".join(hmac.digest(_key(token, "seals"), f"{issued} {n}".encode(), "sha256") for n in range(blocks))
    return bytes(a ^ b for a, b in zip(text, stream, strict=False))


def _key(token: Token, what: str) -> bytes:
    return hashlib.sha256(f"holdfast session {what} {token.sha256}".encode()).digest()
