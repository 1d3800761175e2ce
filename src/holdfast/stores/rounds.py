"""Several reads in one round trip, for stores that are far away.

A view needs a dozen reads, and most of them need nothing of each other. `together` runs them; where a store would have
to ask its server, it raises `NotYet` instead. When all have said what they need, the store asks for it in one message,
and the reads run again with the answers. Reads of a store that is near run once, as they are.

A read must give the same result however often it runs, and change nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from holdfast.errors import StoreError

ROUNDS_MAX = 50  # more means that a read asks for something else each time
T = TypeVar("T")


class Source(Protocol):
    """A pool of connections, which answers statements."""

    def rows(self, asked: Sequence[tuple[str, Mapping[str, Any] | None]]) -> list[Any]:
        """Return the only row of each statement."""
        ...


class NotYet(BaseException):
    """The answers to these are not there yet. No code of a read may catch it, so it is not an `Exception`."""

    def __init__(self, asked: Mapping[Hashable, tuple[Source, str, Mapping[str, Any] | None]]) -> None:
        super().__init__(*(query for _, query, _ in asked.values()))
        self.asked = asked


class _Look:
    """The answers that one call of `together` has by now."""

    def __init__(self) -> None:
        self.rows: dict[Hashable, Any] = {}
        self.made: dict[Hashable, Any] = {}

    def fetch(self, asked: Mapping[Hashable, tuple[Source, str, Mapping[str, Any] | None]]) -> None:
        """Ask each source once for all that is wanted of it."""
        sources = {id(source): source for source, _, _ in asked.values()}
        for name, source in sources.items():
            mine = [(key, query, values) for key, (where, query, values) in asked.items() if id(where) == name]
            rows = source.rows([(query, values) for _, query, values in mine])
            self.rows |= {key: row for (key, _, _), row in zip(mine, rows, strict=True)}


class _Thread(threading.local):
    look: _Look | None = None


_thread = _Thread()


def together(*reads: Callable[[], Any]) -> list[Any]:
    """Run reads that need nothing of each other, and return what each returned. Calls may be nested."""
    outer = _thread.look
    look = _thread.look = outer or _Look()
    try:
        for _ in range(ROUNDS_MAX):
            asked: dict[Hashable, tuple[Source, str, Mapping[str, Any] | None]] = {}
            answers = []
            for read in reads:
                try:
                    answers.append(read())
                except NotYet as missing:
                    asked.update(missing.asked)
            if not asked:
                return answers
            if outer is not None:
                raise NotYet(asked)
            try:
                look.fetch(asked)
            except StoreError:  # the one that failed says so in its own place
                break
    finally:
        _thread.look = outer
    return [read() for read in reads]


def row_of(source: Source, query: str, values: Mapping[str, Any] | None) -> tuple[bool, Any]:
    """Say whether reads are run together now, and return the answer to this statement. Raises `NotYet`."""
    if (look := _thread.look) is None:
        return False, None
    key = id(source), query, repr(values)
    if key not in look.rows:
        raise NotYet({key: (source, query, None if values is None else dict(values))})
    return True, look.rows[key]


def once(key: Hashable, make: Callable[[], T]) -> T:
    """Return what `make` makes: the same for all reads that are run together."""
    if (look := _thread.look) is None:
        return make()
    if key not in look.made:
        look.made[key] = make()
    made: T = look.made[key]
    return made
