"""The tables of a store as rows that every store can read and write: for copies from one store to another.

A row is a dict of column names, the same for all stores, with plain values: text, integers, floats. A boolean is 0 or
1, and JSON is its text in one form. Columns of one store alone are left out: its identity, its migrations,
locks, the ends of leases, and columns that follow from others. `neutral` makes such a row of one that SQL has, and
`for_sql` the other way round; Redis has no columns, and makes its rows by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import msgspec

from holdfast.core.limits import Setting
from holdfast.core.machine import State
from holdfast.core.published import PublishedTask
from holdfast.core.records import NewJob, Recent
from holdfast.core.rollups import Endings
from holdfast.core.text import is_storable, listed
from holdfast.errors import PolicyError, Refused

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
# program has folded into rollups yet: a copy folds it first.
NOT_COPIED = frozenset({"meta", "migration", "doubt", "published", "beat_aside", "delta"})
# The columns that are not copied, with the reason.
_LEFT_OUT: dict[str, frozenset[str]] = {
    "worker": frozenset({"lock_inode", "server", "claim_try", "limits_seen", "schema"}),  # of a living process
    "queue": frozenset({"by_turns", "running_max", "group_running_max", "rate_step_s", "burst"}),  # follow from others
    "duty": frozenset({"boot_id"}),
    "crash": frozenset({"folded"}),
    "error": frozenset({"folded"}),
    "job": frozenset({"scoped_key", "stop_fence", "counted"}),  # see `neutral`
}
_JSON: dict[str, frozenset[str]] = {
    "worker": frozenset({"queues"}),
    "job": frozenset({"awaits", "in_steps", "tags", "meta"}),
    "journal": frozenset({"detail"}),
}
# Text that holds a value of ours. An older version wrote it without the fields that have come since.
_VALUES: dict[tuple[str, str], Any] = {
    ("queue", "declared"): Setting,
    ("queue", "chosen"): Setting,
    ("schedule", "job"): NewJob,
    ("task", "task"): PublishedTask,
    ("recent", "recent"): Recent,
    ("rollup", "endings"): list[Endings],
    ("token", "queues"): list[str],
    ("batch", "counts"): dict[str, int],
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
        """Return the rows after this key, up to that one, at most `limit`; all of a table that is not read in pages.

        Fewer rows than `limit` mean that none follow.
        """
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
    """Return a row of SQL without what belongs to one store alone."""
    out = _LEFT_OUT.get(table, frozenset())
    kept = {name: value for name, value in row.items() if name not in out}
    if table == "job":
        kept["key"] = row["key"] if row["key"] is not None else row["scoped_key"]
        if kept["state"] == State.RUNNING.value:
            kept["lease_until"] = None  # on the clock of the store; a copy has no leases
        is_kept = kept["rolling_back"] or kept["state"] == State.ROLLED_BACK.value
        if not is_kept and row["stop_fence"] not in (None, row["fence"]):
            kept["stop_reason"] = None  # of an earlier attempt
    elif table == "duty":
        kept |= {"holder": None, "until": 0.0}
    elif table == "worker" and kept["gone_at"] is None:
        kept |= {"gone_at": kept["beat_at"], "gone_cause": "the store was copied", "stopping": 1}
    for (of, name), kind in _VALUES.items():
        if of == table:
            kept[name] = value_text(kept[name], kind)
    return kept


def for_sql(table: str, row: Row) -> Row:
    """Return the columns of SQL of a row."""
    if table != "job":
        return row
    is_scoped = row["key_scope"] is not None
    return {
        **row,
        "key": None if is_scoped else row["key"],
        "scoped_key": row["key"] if is_scoped else None,
        "stop_fence": None if row["stop_reason"] is None else row["fence"],
    }


def value_text(text: Any, kind: Any) -> Any:
    """Return the text of a value as this version writes it; text that is damaged stays."""
    try:
        return msgspec.json.encode(msgspec.json.decode(text, type=kind)).decode()
    except (msgspec.MsgspecError, PolicyError, TypeError, UnicodeError):
        return text


def check_kept(table: str, row: Row, kept: Mapping[str, Any]) -> None:
    """Raise `Refused` for a row that the target cannot keep as it is; `kept`: how it would come back."""
    if kept == row:
        return
    columns = listed(sorted(name for name in row if kept.get(name) != row[name]))
    whose = next((row[name] for name in ("id", "name", "key", "job_id", "queue") if row.get(name)), "")
    raise Refused(
        f"the target cannot keep {table} {whose!r} as it is: {columns} would change; holdfast db check on the source "
        "names damaged rows"
    )


def check_open(is_open: bool) -> None:
    """Raise unless a copy into the store is under way."""
    if not is_open:
        raise Refused("no copy into this store is under way: another program has ended it, or accepted the store")
