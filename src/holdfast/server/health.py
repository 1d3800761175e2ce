"""Health checks: whether this process lives, and whether its store does."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.server.call import Call
from holdfast.server.problems import Problem
from holdfast.version import __version__


class Health(msgspec.Struct):
    """The state of a server."""

    status: str
    version: str


async def live(call: Call) -> dict[str, Any]:
    """Answer without asking the store: to restart the server would not mend the store."""
    return msgspec.to_builtins(Health("live", __version__))  # type: ignore[no-any-return]


def ready(call: Call) -> dict[str, Any]:
    """Ask the store for its schema."""
    if call.server.stopping.is_set():
        raise Problem("overloaded", "the server is stopping")
    schema = call.store.schema()
    if schema.is_stale or schema.is_too_new:
        raise Problem(
            "schema_stale",
            f"the store has schema {schema.found}, and this program wants {schema.wanted}; run `holdfast db migrate`",
        )
    return msgspec.to_builtins(Health("ready", __version__))  # type: ignore[no-any-return]
