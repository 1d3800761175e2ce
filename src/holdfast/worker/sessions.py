"""Sessions of an ORM for `ctx.session()`, on the connection of `ctx.transaction()`; an integration makes them.

It declares them as a resource of the app: `app.resource(Sessions, …)`.
"""

from __future__ import annotations

import abc
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from holdfast.errors import UsageError


class Sessions(abc.ABC):
    """Makes sessions whose writes are part of a transaction that Holdfast commits."""

    @abc.abstractmethod
    def session(self, connection: object) -> AbstractContextManager[Any]:
        """Return a block with a session on this connection; its end writes what is pending, and commits nothing."""

    @abc.abstractmethod
    def asession(self, connection: object) -> AbstractAsyncContextManager[Any]:
        """Do the same with a session that is awaited."""


def check_kind(session: object, kind: type, call: str) -> None:
    """Raise UsageError if the task asked for another class of sessions than the app has."""
    if not isinstance(session, kind):
        made = f"{type(session).__module__}.{type(session).__qualname__}"
        raise UsageError(
            f"{call}({kind.__module__}.{kind.__qualname__}): the sessions of this app are {made}; "
            "give the class or its maker to install_sessions(app, …)"
        )
