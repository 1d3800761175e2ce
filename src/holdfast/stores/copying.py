"""The tables of a store as rows that every store can read and write: for copies from one store to another.

A row is a dict of column names, the same for all stores, with plain values: text, integers, floats. A boolean is 0 or
1, and JSON is its text in one form. Columns of one store alone are left out: its identity, its migrations,
locks, the ends of leases, and columns that follow from others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from holdfast.core.machine import State
from holdfast.core.text import is_storable
from holdfast.errors import Refused

Row = dict[str, Any]
Key = tuple[Any, ...]


class Table(NamedTuple):
    """A table that is copied. `key`: the columns that name a row, or all lines that count as one.

    `in_pages`: it may have millions of rows, and the store reads it in the order of its key.
    `settings`: programs that look at the copy before it is complete may add rows; they stay.
    """

    name: str
    key: Key
    in_pages: bool = False
    settings: bool = False

    def key_of(self, row: Mapping[str, Any]) -> Key:
        """Return the key of a row."""
        return tuple(row[column] for column in self.key)


# In the order of copying: an incarnation first, because a doubt belongs to one; the journal before the counts of it.
TABLES = (
    Table("incarnation", ("number",), settings=True),
    Table("queue", ("name",), settings=True),
    Table("paused_group", ("queue", "grp"), settings=True),
    Table("turn", ("queue", "priority"), settings=True),
    Table("schedule", ("key",), settings=True),
    Table("task", ("name",), settings=True),
    Table("token", ("name",), settings=True),
    Table("order", ("name",), settings=True),
    Table("duty", ("name",), settings=True),
    Table("batch", ("id",), in_pages=True),
    Table("batch_removed", ("batch", "state")),
    Table("key", ("key",), in_pages=True),
    Table("job", ("seq",), in_pages=True),
    Table("step", ("job_id", "aside", "position"), in_pages=True),
    Table("signal", ("seq",), in_pages=True),
    Table("journal", ("seq",), in_pages=True),
    Table("tally", ("queue", "state")),
    Table("error", ("slot", "task", "fingerprint", "release")),
    Table("crash", ("slot", "kind", "task", "queue", "detector", "decision")),
    Table("rollup", ("span", "slot", "queue"), in_pages=True, settings=True),
    Table("worker", ("id",), settings=True),
    Table("recent", ("worker",), settings=True),
)
# The tables that are not copied: they say what a store is itself, or what its living workers do. `delta` has what no
# program has folded into rollups yet, that of the last half minute of the workers: charts miss it.
NOT_COPIED = frozenset({"meta", "migration", "doubt", "published", "beat_aside", "delta"})
# The columns that are not copied, with the reason.
_LEFT_OUT: dict[str, frozenset[str]] = {
    "worker": frozenset({"lock_inode", "server", "claim_try", "limits_seen", "schema"}),  # of a living process
    "queue": frozenset({"by_turns", "running_max", "group_running_max", "rate_step_s", "burst"}),  # follow from others
    "duty": frozenset({"boot_id"}),
    "crash": frozenset({"folded"}),
    "error": frozenset({"folded"}),
}
_JSON: dict[str, frozenset[str]] = {
    "worker": frozenset({"queues"}),
    "job": frozenset({"awaits", "in_steps", "tags", "meta"}),
    "journal": frozenset({"detail"}),
}


class Tables(Protocol):
    """Reads rows, and writes each lot of them in one commit."""

    def columns(self) -> dict[str, list[str]]:
        """Return the columns of every table that the store has, those that are never copied too."""
        ...

    def count(self, table: Table) -> int:
        """Return how many rows a table has."""
        ...

    def rows(
        self, table: Table, after: Key | None = None, upto: Key | None = None, limit: int | None = None
    ) -> list[Row]:
        """Return the rows after this key, up to that one, at most `limit`; all of a table that is not read in pages."""
        ...

    def write(self, table: Table, gone: Sequence[Key], rows: Sequence[Row], source: str) -> None:
        """Delete rows and store others, in one commit. Raises `Refused` if no copy from this source is under way."""
        ...

    def finish(self) -> None:
        """Bring up to date what follows from the rows: the next numbers, and the limits of queues."""
        ...


@runtime_checkable
class HasTables(Protocol):
    """A store that can be copied."""

    @property
    def tables(self) -> Tables: ...


def json_columns(table: str) -> frozenset[str]:
    """Return the columns of a table that hold JSON."""
    return _JSON.get(table, frozenset())


def one_form(value: Any) -> str:
    """Return JSON in the form that rows have it: equal values are equal texts."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text if is_storable(text) else json.dumps(value, separators=(",", ":"))


def neutral(table: str, row: Mapping[str, Any]) -> Row:
    """Return a row without what belongs to one store alone."""
    out = _LEFT_OUT.get(table, frozenset())
    kept = {name: value for name, value in row.items() if name not in out}
    if table == "job" and kept["state"] == State.RUNNING.value:
        kept["lease_until"] = None  # on the clock of the store; a copy has no leases
    elif table == "duty":
        kept |= {"holder": None, "until": 0.0}
    elif table == "worker" and kept["gone_at"] is None:
        kept |= {"gone_at": kept["beat_at"], "gone_cause": "the store was copied", "stopping": 1}
    return kept


def check_open(is_open: bool) -> None:
    """Raise unless a copy into the store is under way."""
    if not is_open:
        raise Refused("no copy into this store is under way: another program has ended it, or accepted the store")
