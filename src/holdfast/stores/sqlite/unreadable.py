"""Name the rows that another program has damaged: text that is not UTF-8, and infinite numbers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from holdfast.stores import row_json
from holdfast.stores.sqlite.connection import Connections
from holdfast.stores.sqlite.rows import text_of

_PAGE = 500
_NAMED = 20


class UnreadableRow(msgspec.Struct, frozen=True):
    """A row that cannot be read, and what becomes of it or removes it."""

    row: str
    cause: str
    fix: str

    def __str__(self) -> str:
        return f"{self.row} cannot be read: {self.cause}; {self.fix}"


def find(db: Connections) -> list[UnreadableRow]:
    """Read all rows, page by page, because no reader may stay for long. Return the first that cannot be read."""
    rows = (row for kind in (_jobs, _steps, _journal, _workers) for row in kind(db))
    return list(islice(rows, _NAMED))


def _jobs(db: Connections) -> Iterator[UnreadableRow]:
    for seq, job_id, damage in _by_number(db, "check_jobs", row_json.damaged_jobs):
        fix = f"holdfast jobs delete {job_id} removes it" if row_json.is_whole(job_id) else "delete the row by its seq"
        yield UnreadableRow(f"job {job_id} (row {seq} of holdfast_job)", damage, fix)


def _journal(db: Connections) -> Iterator[UnreadableRow]:
    for seq, row, damage in _by_number(db, "check_journal", row_json.damaged_rows("seq")):
        where = f"row {seq} of holdfast_journal, about job {row['job_id']},"
        yield UnreadableRow(where, damage, "what can be read of it is shown")


def _by_number(db: Connections, query: str, read: Any) -> Iterator[tuple[int, Any, str]]:
    after, page = -sys.maxsize, "[0]"
    while page != "[]":
        with db.reading() as connection:
            page = text_of(connection, query, {"after": after, "limit": _PAGE})
        for seq, row, damage in read(page):
            after = max(after, seq)
            if damage is not None:
                yield seq, row, damage


def _steps(db: Connections) -> Iterator[UnreadableRow]:
    after: dict[str, Any] = {"job_id": "", "aside": -1, "position": -1}
    while True:
        with db.reading() as connection:
            page = text_of(connection, "check_steps", {**after, "limit": _PAGE})
        rows = list(row_json.damaged_rows("position")(page))
        for position, row, damage in rows:
            job_id = row["job_id"]
            fix = f"the workflow fails when it needs the step; holdfast jobs delete {job_id} removes both"
            if damage is not None:
                yield UnreadableRow(f"step {row['name']} of job {job_id} (position {position})", damage, fix)
        if not rows or not row_json.is_whole(rows[-1][1]["job_id"]):
            return
        after = {name: rows[-1][1][name] for name in after}


def _workers(db: Connections) -> Iterator[UnreadableRow]:
    with db.reading() as connection:
        page = text_of(connection, "check_workers")
    for worker, row, damage in row_json.damaged_rows("id")(page):
        if damage is not None:
            fix = "its jobs are found when their leases end; once it has ended, delete the row from holdfast_worker"
            yield UnreadableRow(f"worker {row['name']} ({worker})", damage, fix)
