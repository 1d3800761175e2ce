"""SQL is source code: it lives in files, has names, and is loaded once.

A query file holds statements under `-- name: verb` headers, in the order of the protocol's verbs. Parameters are
named; nothing is ever put together from strings. Text that several statements share stands above them, once, under a
header `-- fragment: wall`, and `{wall}` stands for it. Lines of a fragment that begin with `--` are about the fragment.

A migration is a numbered file. A program's version, in the eyes of a store, is the last migration that it knows. The
first line says which programs may go on working on the new schema:

    -- works with: 8

Programs that know migration 8 may go on, older ones may not. A migration that only adds (a column with a default, a
table, a view) repeats the number of the migration before it. One that programs of today cannot live with names its own
number: then the store refuses the claims of older workers, waits until nothing runs under them, and only then begins.

A migration is one transaction, unless it is cut into pieces, each a transaction of its own. A line `-- piece` begins
another one. A line `-- pages of job` (or `journal`) begins a piece that changes the rows of that table page by page:
one statement, with the parameters `after` and `upto`, for the rows with `after < seq <= upto`. A page has a number of
rows, however far apart they are. On PostgreSQL jobs have an index on (state, seq) only, so name every state there. The
store remembers which pieces and pages are done, so a migration that was killed goes on where it stood. No piece may
hold a lock on a table with a million rows for longer than a beat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any, NamedTuple, Protocol

from holdfast.clock import SystemClock, pause
from holdfast.errors import StoreLocked, StoreTimeout, StoreUnavailable
from holdfast.failpoints import point
from holdfast.stores import row_json
from holdfast.stores.protocol import Schema

LATER = ("schema", "channel")  # in braces, too, but put in when a store is opened
PAGE = 5_000  # how many rows of a table one transaction of a migration changes
WAIT_S = 60.0  # how long a piece is tried while others hold locks on its tables, or run jobs
RETRY_S = 0.25
REST_S = 0.02  # after each page, so that others can write in between

_HEADER = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
_BLOCK = re.compile(r"^(?=-- (?:name|fragment): )", re.MULTILINE)
_FRAGMENT = re.compile(r"-- fragment: ([a-z_]+)\n(?:--.*\n)*")
_USE = re.compile(r"\{([a-z_]+)\}")
_MIGRATION = re.compile(r"(\d{4})_[a-z_]+\.sql")
_WORKS_WITH = re.compile(r"-- works with: (\d+)\n")
_PIECE = re.compile(r"^-- (?:piece|pages of ([a-z]+))$", re.MULTILINE)

_MADE = re.compile(r"^CREATE TABLE (?:\{schema\}\.)?([a-z_]+)", re.MULTILINE)
_DROPPED = re.compile(r"^DROP TABLE (?:\{schema\}\.)?([a-z_]+)", re.MULTILINE)


class Piece(NamedTuple):
    """One transaction of a migration; with `table`, one for each page of its rows."""

    script: str
    table: str | None = None


class Migration(NamedTuple):
    """One numbered migration. `works_with`: the last migration that a program must know to go on working after it."""

    number: int
    works_with: int
    pieces: tuple[Piece, ...]
    shuts_out: bool = False  # programs that could work on the schema before


class MigrationProgress(NamedTuple):
    """The progress of a migration: the pieces that are done, and the last row of the piece that goes by pages."""

    pieces: int = 0
    after: int = 0

    def page(self, last: int | None, is_full: bool) -> tuple[int, MigrationProgress]:
        """Return the last row of this page, and the progress after it; a page that is not full is the last one."""
        upto = self.after if last is None else last
        return upto, MigrationProgress(self.pieces, upto) if is_full else MigrationProgress(self.pieces + 1)


@dataclass(slots=True)
class Pages:
    """The number of rows that a migration changes in one transaction; it falls after one that took too long."""

    size: int = field(default_factory=lambda: PAGE)
    tried: bool = False  # the last step was a page

    def halve(self) -> bool:
        """Make pages half as large; return whether that helps."""
        helps = self.tried and self.size > 1
        self.size = max(1, self.size // 2)
        return helps


def expand(text: str) -> str:
    """Return a query file without its fragments, each put where statements use it."""
    fragments = {name: f"{{{name}}}" for name in LATER}
    unused: set[str] = set()
    statements = []

    def put(use: re.Match[str]) -> str:
        if use[1] not in fragments:
            raise ValueError(f"there is no fragment {use[1]!r} above its use")
        unused.discard(use[1])
        return fragments[use[1]]

    for block in _BLOCK.split(text):
        whole = _USE.sub(put, block)
        if header := _FRAGMENT.match(whole):
            if header[1] in fragments:
                raise ValueError(f"there are two fragments {header[1]!r}")
            fragments[header[1]] = whole[header.end() :].strip()
            unused.add(header[1])
        else:
            statements.append(whole)
    if unused:
        raise ValueError(f"nothing uses the fragments {sorted(unused)}")
    return "".join(statements)


def load_queries(package: str, file: str = "queries.sql") -> dict[str, str]:
    """Return the statements of a query file by name, in their order."""
    text = expand((resources.files(package) / file).read_text("utf-8"))
    parts = _HEADER.split(text)[1:]
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{package}/{file}: a name occurs twice")
    return {name: body.strip() for name, body in zip(names, bodies, strict=True)}


def load_migrations(package: str) -> list[Migration]:
    """Return the numbered migrations of a package, in order, without gaps."""
    found = []
    for file in (resources.files(package) / "migrations").iterdir():
        if match := _MIGRATION.fullmatch(file.name):
            found.append(parse_migration(int(match[1]), file.read_text("utf-8")))
    found.sort()
    if [each.number for each in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"{package}/migrations: the numbers have gaps")
    return found


def parse_migration(number: int, text: str) -> Migration:
    """Read one migration. Without a first line that says so, no older program may work after it."""
    header = _WORKS_WITH.match(text)
    works_with = int(header[1]) if header else number
    parts = _PIECE.split(text)
    pieces = [Piece(parts[0]), *(Piece(script, table) for table, script in zip(parts[1::2], parts[2::2], strict=True))]
    return Migration(number, works_with, tuple(pieces), header is not None and works_with == number)


def tables_of(migrations: Sequence[Migration]) -> tuple[str, ...]:
    """Return the names of the tables that these migrations make, without the schema's name."""
    scripts = "".join(piece.script for migration in migrations for piece in migration.pieces)
    return tuple(sorted({*_MADE.findall(scripts)} - {*_DROPPED.findall(scripts)}))


class Editor(Protocol):
    """The operations that a migration needs of a store, inside one transaction."""

    def ask(self, query: str, values: Mapping[str, Any] | None = None) -> Any:
        """Run a statement of queries.sql; return its first row, or None."""

    def run(self, script: str, values: Mapping[str, Any] | None = None) -> None:
        """Run a piece of a migration; with `values`, one page of it."""


class Waiting(StoreUnavailable):
    """A migration cannot begin yet: workers that cannot live with it still run jobs."""


def still_running(migration: Migration, running: Mapping[str, int]) -> Waiting:
    """Say, for every store with the same words, whom a migration waits for."""
    who = ", ".join(f"{name} ({jobs})" for name, jobs in running.items())
    return Waiting(
        f"migration {migration.number} waits for jobs that run under workers of an older version: {who}; those workers "
        "claim nothing more, and it begins when their jobs have ended"
    )


def advance(
    migrations: Sequence[Migration], found: Schema, editor: Editor, instants: Mapping[str, Any], pages: Pages
) -> float:
    """Do one piece of the next migration, or one page of it; return how long to rest after it.

    Raise `Waiting` while something runs under workers that are too old for it. `instants`: what the statements about
    such workers need to know of the time.
    """
    migration = migrations[found.found]
    versions = {"version": str(migration.number), "works_with": str(migration.works_with)}
    progress = MigrationProgress()
    if len(migration.pieces) > 1 and (row := editor.ask("migrate_progress")) is not None:
        progress = MigrationProgress(*row)
    if migration.shuts_out and progress == MigrationProgress():
        if found.works_with < migration.works_with:
            editor.ask("migrate_shut")
            editor.ask("migrate", {**versions, "version": str(found.found)})
            return 0.0
        _let_older_workers_go(migration, editor, instants)
    piece = migration.pieces[progress.pieces]
    pages.tried = piece.table is not None
    if piece.table is None:
        editor.run(piece.script)
        after = MigrationProgress(progress.pieces + 1)
    else:
        last, rows = editor.ask(f"migrate_page_{piece.table}", {"after": progress.after, "page": pages.size})
        upto, after = progress.page(last, rows == pages.size)
        editor.run(piece.script, {"after": progress.after, "upto": upto})
    point("migrate.middle")
    ended = after.pieces == len(migration.pieces)
    if ended:
        editor.ask("migrate", versions)
        if migration.shuts_out:
            editor.ask("migrate_open")
    if len(migration.pieces) > 1:
        values = {"number": migration.number, "pieces": after.pieces, "after": after.after}
        editor.ask("migrate_done" if ended else "migrate_on", values)
    return 0.0 if piece.table is None else REST_S


def _let_older_workers_go(migration: Migration, editor: Editor, instants: Mapping[str, Any]) -> None:
    values = {"works_with": migration.works_with, **instants}
    if running := row_json.counts_from(editor.ask("migrate_running", values)[0]):
        raise still_running(migration, running)
    editor.ask("migrate_retire", values)


def migrate_by(step: Callable[[Pages], float | None]) -> None:
    """Take one step after the other, resting as long as it says, until there is none left (None).

    Wait, but not for ever, while others are in the way. A page that takes too long is repeated in halves.
    """
    clock, pages = SystemClock(), Pages()
    moved_at = clock.lease()
    while True:
        try:
            if (rest_s := step(pages)) is None:
                return
            pause(rest_s)
            moved_at = clock.lease()
        except (Waiting, StoreLocked):
            if clock.lease() - moved_at >= WAIT_S:
                raise
            pause(RETRY_S)
        except StoreTimeout:
            if not pages.halve():
                raise
