"""Login and logout with a cookie, for browsers. Programs send the token with each request instead."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.core.access import User
from holdfast.server.call import Call
from holdfast.server.problems import Problem
from holdfast.server.routes import Answer
from holdfast.server.security import cookie_of

LOGIN_MAX = 4 << 10  # bytes: strangers may send it


class Login(msgspec.Struct, forbid_unknown_fields=True):
    """A token, in exchange for a cookie."""

    token: str


class Me(msgspec.Struct):
    """The user of the request."""

    name: str
    role: str
    queues: list[str] | None


def login(call: Call) -> Answer:
    """Set the cookie. It ends after 12 hours, or when the token is revoked."""
    origin = call.origin
    if not origin.is_https and not call.server.is_plain_allowed(origin):
        raise Problem("forbidden", "a login over plain HTTP would send the token in clear; use https")
    user, cookie = call.server.gate.login(call.body.token, origin, call.base)
    return Answer(_view(user), headers={"set-cookie": cookie})


def logout(call: Call) -> Answer:
    """Take the cookie back: this server refuses it from now on, and ends its streams."""
    if call.cookie is not None:
        call.server.gate.end_session(call.cookie)
    return Answer({}, headers={"set-cookie": cookie_of("", call.origin.is_https, call.base, 0)})


def me(call: Call) -> dict[str, Any]:
    """Show the user of this request."""
    return _view(call.user)


def _view(user: User) -> dict[str, Any]:
    queues = None if user.queues is None else list(user.queues)
    return {"name": user.name, "role": user.role, "queues": queues}
