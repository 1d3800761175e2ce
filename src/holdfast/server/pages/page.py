"""The two kinds of routes that a section has: a page that shows, and a form that acts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from holdfast.core.access import OPERATORS, READERS, Role, User
from holdfast.core.machine import State
from holdfast.server.call import Call
from holdfast.server.pages.snapshot import Facts
from holdfast.server.problems import Problem
from holdfast.server.routes import OPEN, Answer, Route, Scope

HTML = "text/html; charset=utf-8"
NOTE_MAX = 10_000  # characters
STRANGERS_MAX = 8 << 10  # bytes of a form that everybody may send

Context = Mapping[str, Any]


class Detail(dict[str, Any]):
    """The detail of an event, for a template: a name that it does not have is None."""

    def __missing__(self, name: str) -> None:
        return None


@dataclass(frozen=True, slots=True)
class Page:
    """A page that shows something and changes nothing.

    name: of its template, its texts and its text `title`. view: returns what the template gets. nav: it stands in the
    navigation. key: pressed after `g` it leads here. badge: the number next to its name. shared_s: users with the same
    role and queues get the same live part for this long. dev: only with --dev.
    """

    name: str
    path: str
    view: Callable[[Call], Context | Answer]
    query: Any = None
    roles: frozenset[Role] = READERS
    scope: Scope = "filter"
    nav: bool = False
    key: str = ""
    badge: Callable[[Facts, User], int] | None = None
    shared_s: float = 0.0
    dev: bool = False

    def route(self) -> Route:
        """Return its route."""
        return Route(
            *("GET", self.path, f"Show the page {self.name}", self._show, self.roles, self.scope),
            query=self.query,
            media_type="text/html",
            internal=True,
            is_page=True,
        )

    def _show(self, call: Call) -> Answer:
        if self.dev and not call.server.options.dev:
            raise Problem("not_found", "this page is for developers of the pages; start the server with --dev")
        return call.server.pages.show(self, call)


@dataclass(frozen=True, slots=True)
class Form:
    """A form that acts, and then leads to a page. `name`: of the texts of its answers."""

    name: str
    path: str
    act: Callable[[Call], Answer]
    form: Any
    roles: frozenset[Role] = OPERATORS
    scope: Scope = "refuse"
    while_read_only: bool = False

    def route(self) -> Route:
        """Return its route."""
        return Route(
            *("POST", self.path, f"Act on the page {self.name}", self.act, self.roles, self.scope),
            form=self.form,
            body_max=STRANGERS_MAX if self.roles is OPEN else None,
            media_type="text/html",
            internal=True,
            is_page=True,
            while_read_only=self.while_read_only,
        )


def see(call: Call, path: str, *, headers: Mapping[str, str] | None = None, **query: Any) -> Answer:
    """Lead the browser to another page. `said`: the key of a text that is shown there once."""
    given = {name: value for name, value in query.items() if value is not None}
    location = f"{call.base}{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")
    return Answer(content=b"", status=303, headers={"location": location, **(headers or {})}, media_type=HTML)


def note_of(call: Call, note: str | None) -> str | None:
    """Return the note that a person gave. Raises `Problem` if the server wants one and there is none."""
    if not note and call.server.options.require_note:
        raise Problem("invalid", "this server was started with --require-note: say in the note why you do this")
    if note and len(note) > NOTE_MAX:
        raise Problem("invalid", f"the note is longer than {NOTE_MAX:,} characters")
    return note or None


def counted_in(*states: State) -> Callable[[Facts, User], int]:
    """Return a badge that counts the jobs in these states."""
    return lambda facts, user: facts.total(user, *states)
