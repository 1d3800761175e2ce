"""The map: which columns and values of a table of another program mean what. Validated once."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

from holdfast.core.policy import SECONDS_MAX
from holdfast.errors import UsageError

Value = str | int
OnCrash = Literal["retry", "hold", "fail"]
Counted = Literal["at_end", "at_start"]

_COLUMNS = ("id", "status", "started", "attempts", "error")
_OPTIONAL_COLUMNS = ("updated", "worker")
ATTEMPTS_MAX = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """The description of a table. Columns are `id`, `status`, `started`, `attempts`, `error`, `updated` and `worker`;
    `running`, `ready`, `dead` and `held` are values of the column `status`.

    attempts_max: a number, or the column that has it. stale_after_s: a row without a sign of life for this long has
    lost its worker. updated: the column that a living worker renews; without it `started` is the last sign of life.
    concurrency: how many rows the application lets run at once. attempts_counted: `at_start` if the application counts
    an attempt when it begins, so that a rescue need not. on_crash: as for tasks of Holdfast; `hold` needs `held`.
    clear: columns that become NULL when a row is rescued. time_zone: that of times without one. journal: the table
    that a rescue writes to.
    """

    table: str
    id: str
    status: str
    running: Value
    ready: Value
    dead: Value
    started: str
    attempts: str
    attempts_max: int | str
    error: str
    stale_after_s: float
    updated: str | None = None
    worker: str | None = None
    concurrency: int | None = None
    on_crash: OnCrash = "retry"
    held: Value | None = None
    attempts_counted: Counted = "at_end"
    clear: Sequence[str] = ()
    time_zone: str | None = None
    journal: str = "holdfast_rescues"

    def __post_init__(self) -> None:
        for name in ("table", "journal", *_COLUMNS):
            _check_name(name, getattr(self, name))
        for name in _OPTIONAL_COLUMNS:
            if getattr(self, name) is not None:
                _check_name(name, getattr(self, name))
        if isinstance(self.clear, str) or not isinstance(self.clear, list | tuple):
            raise UsageError(f'clear={self.clear!r} must be a list of columns, such as ["locked_by", "locked_at"]')
        object.__setattr__(self, "clear", tuple(self.clear))
        self._check_columns()
        self._check_values()
        self._check_numbers()
        if self.time_zone is not None:
            _zone(self.time_zone)

    def _check_columns(self) -> None:
        """Refuse a map with which a rescue would write one column twice, or one that it reads as something else."""
        for name in self.clear:
            _check_name("clear", name)
            if self.clear.count(name) > 1:
                raise UsageError(f"clear names {name!r} twice; remove one of them")
        named = self.columns
        written = {key: named[key] for key in ("id", "status", "attempts", "error")}
        for key, column in written.items():
            for other, column_of_other in named.items():
                if key != other and column == column_of_other:
                    raise UsageError(f"{key} and {other} are both the column {column!r}; a rescue would spoil it")
        if needed := {*written.values(), named.get("attempts_max")} & set(self.clear):
            raise UsageError(
                f"clear names {min(map(str, needed))!r}, which a rescue writes or needs; remove it from clear"
            )
        if self.journal == self.table:
            raise UsageError(f"journal={self.journal!r} is the table itself; name another table for the journal")

    def _check_values(self) -> None:
        wanted = ["running", "ready", "dead"] + (["held"] if self.held is not None else [])
        for name in wanted:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
                raise UsageError(f"{name}={value!r} must be a value of the column {self.status!r}: a text or a number")
            if name != "running" and str(value) == str(self.running):
                raise UsageError(f"{name} and running are both {value!r}: a rescued row would stay a running one")
            if name in ("dead", "held") and str(value) == str(self.ready):
                raise UsageError(f"{name} and ready are both {value!r}: the row would run again for ever")
        for name, kinds in (("on_crash", OnCrash), ("attempts_counted", Counted)):
            if getattr(self, name) not in get_args(kinds):
                choices = ", ".join(map(repr, get_args(kinds)))
                raise UsageError(f"{name}={getattr(self, name)!r} is not known; choose one of {choices}")
        if self.on_crash == "hold" and self.held is None:
            raise UsageError(
                f'on_crash="hold" needs held, the value of {self.status!r} for rows that wait for a person'
            )

    def _check_numbers(self) -> None:
        if isinstance(self.attempts_max, str):
            _check_name("attempts_max", self.attempts_max)
        elif isinstance(self.attempts_max, bool) or not 1 <= self.attempts_max <= ATTEMPTS_MAX:
            raise UsageError(
                f"attempts_max={self.attempts_max!r} must be a number from 1 to {ATTEMPTS_MAX}, or a column"
            )
        number = isinstance(self.stale_after_s, int | float) and not isinstance(self.stale_after_s, bool)
        if not number or not 0 < self.stale_after_s <= SECONDS_MAX:
            raise UsageError(f"stale_after_s={self.stale_after_s!r} must be a number of seconds above 0")
        limit = self.concurrency
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
            raise UsageError(f"concurrency={limit!r} must be how many rows the application lets run at once")

    @property
    def zone(self) -> ZoneInfo | None:
        """Return the zone of times without one."""
        return None if self.time_zone is None else _zone(self.time_zone)

    @property
    def columns(self) -> dict[str, str]:
        """Return the columns of the table that the map names, by key."""
        named = {name: getattr(self, name) for name in (*_COLUMNS, *_OPTIONAL_COLUMNS)}
        if isinstance(self.attempts_max, str):
            named["attempts_max"] = self.attempts_max
        return {name: column for name, column in named.items() if column is not None}

    @classmethod
    def of(cls, given: Map | Mapping[str, Any] | str | Path) -> Map:
        """Return the map from a mapping, or from the TOML file at a path."""
        if isinstance(given, Map):
            return given
        return cls.read(given) if isinstance(given, str | Path) else cls._made(given, "the map")

    @classmethod
    def read(cls, path: str | Path, **more: Any) -> Map:
        """Read a map from a TOML file; `more` overrides what is there. Raises `UsageError` for a map that is wrong."""
        try:
            with Path(path).open("rb") as file:
                found = tomllib.load(file)
        except OSError as error:
            raise UsageError(f"the map {path} cannot be read: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"the map {path} is not TOML: {error}") from None
        return cls._made({**found, **more}, f"the map {path}")

    @classmethod
    def _made(cls, found: Mapping[str, Any], where: str) -> Map:
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name in found:
            if name not in fields:
                close = get_close_matches(name, fields)
                meant = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(fields)}"
                raise UsageError(f"{where} has the unknown key {name!r}{meant}")
        missing = [name for name, field in fields.items() if name not in found and field.default is dataclasses.MISSING]
        if missing:
            raise UsageError(f"{where} lacks {', '.join(missing)}; `holdfast rescue init` proposes a whole one")
        try:
            return cls(**found)
        except TypeError as error:
            raise UsageError(f"{where}: {error}") from None
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None


def _check_name(key: str, name: object) -> None:
    if not isinstance(name, str) or not name.strip() or "\0" in name:
        raise UsageError(f"{key}={name!r} must be the name of a table or column")


def _zone(name: object) -> ZoneInfo:
    try:
        return ZoneInfo(str(name))
    except (KeyError, ValueError, OSError):
        raise UsageError(f"time_zone={name!r} is not a time zone; write UTC, or one such as Europe/Berlin") from None
