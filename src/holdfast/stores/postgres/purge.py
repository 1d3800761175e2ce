"""Deletes ended jobs, and skips jobs that are locked or referenced.

A job whose history is locked is left for the next time. A job that a table of the user's refers to by a foreign key
cannot be deleted at all: the server refuses the page that it is in. The page is halved until that job is alone; it is
left alone for an hour, and named in the log once a day.
"""

from __future__ import annotations

import logging
from typing import Any

from psycopg import errors

from holdfast.clock import Clock
from holdfast.errors import StoreError, StoreLocked, StoreTimeout
from holdfast.stores import row_json
from holdfast.stores.postgres.connection import BULK, Connections

log = logging.getLogger("holdfast.stores")

LEAVE_ALONE_S = 3600.0
SAY_EVERY_S = 86_400.0
NAMED_MAX = 1_000  # jobs that the log names in a day


class Purge:
    """The purges of one process, with the memory of what could not be deleted."""

    def __init__(self, db: Connections, clock: Clock) -> None:
        self._db = db
        self._clock = clock
        self._kept: dict[str, float] = {}  # jobs that something refers to -> since when that is known
        self._named: dict[str, float] = {}  # those of them that the log has named -> when

    def page(self, values: dict[str, Any]) -> tuple[bool, int]:
        """Delete up to `limit` jobs; say whether the duty still is ours, and how many they were."""
        now = self._clock.lease()
        self._kept = {job_id: since for job_id, since in self._kept.items() if now - since < LEAVE_ALONE_S}
        limit, deleted, known = values["limit"], 0, -1
        while known < len(self._kept) and deleted < limit:  # those that are left alone must not hide the others
            known = len(self._kept)
            allowed, further = self._delete(values | {"besides": [*self._kept], "ids": None, "limit": limit - deleted})
            deleted += further
            if not allowed:
                return False, deleted
        return True, deleted

    def _delete(self, values: dict[str, Any]) -> tuple[bool, int]:
        while True:
            try:
                allowed, deleted = self._db.one("purge", values, BULK)
                return bool(allowed), int(deleted)
            except StoreLocked:
                busy = set(row_json.names_from(self._db.one("purge_busy", values, BULK)[0])) - {*values["besides"]}
                if not busy:  # another transaction has the duty's row, or the lock is gone by now
                    raise
                values["besides"] += busy
            except StoreTimeout:
                limit = values["limit"]
                if limit < 2:
                    raise
                return self._both(values | {"limit": limit // 2}, values | {"limit": limit - limit // 2})
            except StoreError as error:
                if not isinstance(error.__cause__, errors.ForeignKeyViolation):
                    raise
                return self._apart(values, error.__cause__)

    def _apart(self, values: dict[str, Any], error: errors.ForeignKeyViolation) -> tuple[bool, int]:
        """Delete these jobs in halves, until the one that something refers to is alone."""
        ids = values["ids"] or row_json.names_from(self._db.one("purge_next", values, BULK)[0])
        if len(ids) < 2:
            self._keep(ids, error)
            return True, 0
        half = len(ids) // 2
        first, second = ({"ids": part, "limit": len(part)} for part in (ids[:half], ids[half:]))
        return self._both(values | first, values | second)

    def _both(self, first: dict[str, Any], second: dict[str, Any]) -> tuple[bool, int]:
        allowed, deleted = self._delete(first)
        if not allowed:
            return False, deleted
        allowed, further = self._delete(second)
        return allowed, deleted + further

    def _keep(self, ids: list[str], error: errors.ForeignKeyViolation) -> None:
        now = self._clock.lease()
        self._kept |= dict.fromkeys(ids, now)
        self._named = {job_id: at for job_id, at in self._named.items() if now - at < SAY_EVERY_S}
        for job_id in set(ids) - self._named.keys():
            if len(self._named) < NAMED_MAX:
                self._named[job_id] = now
                log.warning("job %s ended long ago, but is kept: %s", job_id, referred_to(error))
                if len(self._named) == NAMED_MAX:
                    log.warning("%d kept jobs were logged within a day; further ones are not logged", NAMED_MAX)


def referred_to(error: errors.ForeignKeyViolation) -> str:
    """Say what refers to a job that cannot be deleted."""
    about = error.diag
    return (
        f"a row of the table {about.schema_name}.{about.table_name} refers to it (constraint {about.constraint_name}); "
        "delete that row first, or declare the reference with ON DELETE CASCADE or ON DELETE SET NULL"
    )
