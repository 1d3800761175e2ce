"""Ready jobs whose rows contradict a CHECK of the table, because another program has written them.

SQLite refuses every statement that would claim one of them, together with all others. Such a job is held, and the claim
is made again.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.errors import StoreDamaged
from holdfast.stores import row_json
from holdfast.stores.protocol import Reply
from holdfast.stores.sqlite.rows import Q, text_of

log = logging.getLogger("holdfast.store")

Hold = Callable[[sqlite3.Connection, Sequence[Move], float], list[Reply]]


def claim(db: sqlite3.Connection, query: str, values: Mapping[str, Any], hold: Hold) -> int:
    """Claim with this statement, and return how many jobs. Jobs that SQLite refuses to change are held by `hold`.

    values: as for `claim`; with `seqs` for `claim_these`.
    """
    while True:
        try:
            return db.execute(Q[query], values).rowcount
        except sqlite3.IntegrityError as error:
            if not _is_check(error):  # such as the trigger that shuts out programs older than the schema
                raise
            seqs = values.get("seqs") or text_of(db, "claim_first", values)
            refused = [(seq, why) for seq in json.loads(seqs) if (why := _refusal(db, seq, values))]
            if not refused:
                raise
            for seq, why in refused:
                _set_aside(db, seq, why, values["wall"], hold)


def _is_check(error: sqlite3.IntegrityError) -> bool:
    return error.sqlite_errorname == "SQLITE_CONSTRAINT_CHECK"


def _refusal(db: sqlite3.Connection, seq: Any, values: Mapping[str, Any]) -> str | None:
    """Try to claim one job; return why SQLite refuses to, or None. Changes nothing."""
    db.execute("SAVEPOINT claim_one")
    try:
        db.execute(Q["claim_these"], {"counted": 0, **values, "seqs": f"[{seq}]"})
    except sqlite3.IntegrityError as error:
        if not _is_check(error):
            raise
        return str(error)
    finally:
        db.execute("ROLLBACK TO claim_one")
        db.execute("RELEASE claim_one")
    return None


def _set_aside(db: sqlite3.Connection, seq: Any, why: str, wall: float, hold: Hold) -> None:
    found = row_json.jobs_from(text_of(db, "claim_refused", {"seq": seq}))
    if not found:
        raise StoreDamaged(f"the job with seq {seq} can be neither claimed nor read: {why}")
    [job] = found
    error = f"its row was damaged by another program ({why}); `holdfast jobs delete {job.id}` removes it"
    log.error("job %s cannot be claimed, and is held: %s", job.id, error)
    with _without_checks(db):
        held = hold(db, [Move(job.seen, acts.set_aside(job, error))], wall)
    if held != [Reply.ACCEPTED]:  # the claim would be made again for ever, inside its transaction
        raise StoreDamaged(f"job {job.id} can be neither claimed nor held: {why}")


@contextmanager
def _without_checks(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("PRAGMA ignore_check_constraints = ON")
    try:
        yield
    finally:
        db.execute("PRAGMA ignore_check_constraints = OFF")
