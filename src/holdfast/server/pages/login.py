"""Log in with a token, and log out."""

from __future__ import annotations

import msgspec

from holdfast.server import sessions
from holdfast.server.call import Call
from holdfast.server.pages.page import Form, Page, see
from holdfast.server.problems import Problem
from holdfast.server.routes import OPEN, Answer


class Next(msgspec.Struct):
    """The page that was asked for."""

    next: str | None = None


class Login(msgspec.Struct):
    """A token, in exchange for a cookie."""

    token: str = ""
    next: str | None = None


class Nothing(msgspec.Struct):
    """A form without fields."""


def show(call: Call) -> Answer:
    """Ask for a token."""
    if not call.server.has_login:
        raise Problem("not_found", "the application that mounts these pages has its own login")
    return call.server.pages.bare("login", call.base, call.headers, {"error": None, "next": _path(call.query.next)})


def log_in(call: Call) -> Answer:
    """Set the cookie and lead to the page that was asked for; say what is wrong with a token on the page itself."""
    wanted = _path(call.body.next)
    try:
        answer = sessions.login(call)
    except Problem as problem:
        given = {"error": problem, "next": wanted}
        return call.server.pages.bare(
            "login", call.base, call.headers, given, problem.kind.status, **_retry_after(problem)
        )
    return see(call, wanted, headers=answer.headers)


def log_out(call: Call) -> Answer:
    """End the session."""
    return see(call, "/login", headers=sessions.logout(call).headers)


def _path(text: str | None) -> str:
    """Return a path of this server: a link to a login must not lead to another host."""
    plain = text is not None and text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable()
    return text if plain and text is not None and "\\" not in text else "/"


def _retry_after(problem: Problem) -> dict[str, str]:
    return {name: value for name, value in problem.headers.items() if name == "retry-after"}


ROUTES = (
    Page("login", "/login", show, query=Next, roles=OPEN, scope="none"),
    Form("login", "/login", log_in, Login, roles=OPEN, scope="none", while_read_only=True),
    Form("login", "/logout", log_out, Nothing, roles=OPEN, scope="none", while_read_only=True),
)
