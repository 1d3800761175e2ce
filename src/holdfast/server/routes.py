"""Routes, and their answers. `table.py` has all routes; tests and the OpenAPI document are made from it, too."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from holdfast.core.access import Role
from holdfast.server.problems import Problem

if TYPE_CHECKING:
    from holdfast.server.call import Call

# The effect of a token's queues on a route:
#   filter  rows of other queues are left out
#   refuse  an object or a body of another queue is not found
#   whole   it is about all queues, so a token with a scope does not find it
#   none    it tells nothing about queues
Scope = Literal["filter", "refuse", "whole", "none"]
OPEN: frozenset[Role] = frozenset()
SAFE = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer other than 200 with JSON."""

    data: Any = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None  # sent as it is, instead of the data
    media_type: str = "application/json"


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer of many pieces, made on the event loop."""

    pieces: AsyncGenerator[bytes, None]
    media_type: str
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    roles: those that may use it; `OPEN`: everybody. repeat: how a repeated call is safe. body, query: the types that
    decode the request. reply: the type of the answer, for the document. A coroutine function runs on the event loop,
    other handlers in the thread pool. bulk: the body may be larger.
    """

    method: str
    path: str
    summary: str
    handler: Callable[[Call], Any]
    roles: frozenset[Role]
    scope: Scope
    body: Any = None
    query: Any = None
    reply: Any = None
    statuses: tuple[int, ...] = (200,)
    problems: tuple[str, ...] = ()
    repeat: str = ""
    bulk: bool = False
    optional_body: bool = False
    while_read_only: bool = False  # an unsafe method that a read-only server still answers, such as login
    media_type: str = "application/json"
    body_max: int | None = None  # bytes, if other than most routes have
    internal: bool = False  # between programs of Holdfast: the document and its page leave it out
    form: Any = None  # the type that decodes a form, instead of a JSON body
    is_page: bool = False  # people look at the answer, also at one that refuses

    @property
    def is_safe(self) -> bool:
        """Say whether it changes nothing."""
        return self.method in SAFE

    @property
    def is_for_people(self) -> bool:
        """Say whether no worker and no producer uses it: nothing that must be in time waits for it."""
        return self.roles is not OPEN and not self.roles & {"worker", "producer"}

    @property
    def operation(self) -> str:
        """Return its name in the OpenAPI document."""
        words = re.sub(r"[^A-Za-z0-9]+", "_", self.path.removeprefix("/v1")).strip("_")
        return f"{self.method.lower()}_{words or 'root'}"


_PARAMETER = re.compile(r"\{(\w+)\}")


def _pattern(path: str) -> re.Pattern[str]:
    parts = _PARAMETER.split(path)
    texts = (re.escape(part) if at % 2 == 0 else f"(?P<{part}>[^/]+)" for at, part in enumerate(parts))
    return re.compile("".join(texts))


class Router:
    """Finds the route of a request."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._fixed: dict[str, dict[str, Route]] = {}
        self._patterns: dict[str, tuple[re.Pattern[str], dict[str, Route]]] = {}
        for route in routes:
            if "{" in route.path:
                _, methods = self._patterns.setdefault(route.path, (_pattern(route.path), {}))
            else:
                methods = self._fixed.setdefault(route.path, {})
            if route.method in methods:
                raise ValueError(f"{route.method} {route.path} is there twice")
            methods[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """Return the route and the values of its parameters. Raises `Problem`."""
        allowed: set[str] = set()
        for methods, parameters in self._candidates(path):
            route = methods.get(method) or (methods.get("GET") if method == "HEAD" else None)
            if route is not None:
                return route, parameters
            allowed |= methods.keys()
        if allowed:
            names = ", ".join(sorted(allowed | ({"HEAD"} if "GET" in allowed else set())))
            raise Problem("method_not_allowed", f"{method} is not allowed here; use {names}", headers={"allow": names})
        raise Problem("not_found", "there is nothing at this path; /v1/openapi.json lists every path")

    def _candidates(self, path: str) -> Iterator[tuple[dict[str, Route], dict[str, str]]]:
        if path in self._fixed:
            yield self._fixed[path], {}
        for pattern, methods in self._patterns.values():
            if found := pattern.fullmatch(path):
                yield methods, found.groupdict()
