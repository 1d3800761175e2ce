"""Tokens of the HTTP API, as people are shown them."""

from __future__ import annotations

from typing import Any

from holdfast.core.access import Token
from holdfast.core.durations import iso


def token_view(token: Token, now: float) -> dict[str, Any]:
    """Show a token; nobody can show its secret again."""
    return {
        "name": token.name,
        "role": token.role,
        "queues": None if token.queues is None else list(token.queues),
        "created_at": iso(token.created_at),
        "used_at": iso(token.used_at),
        "expires_at": iso(token.expires_at),
        "expired": not token.is_valid(now),
    }
