"""The hands of a migration: its questions and its scripts on a connection."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from holdfast.stores.postgres.connection import Connections, Cursor, in_its_own_time


class Editor:
    """See `stores/sql.py: Editor`."""

    def __init__(self, q: Connections, db: Cursor) -> None:
        self._q = q
        self._db = db

    def ask(self, query: str, values: Mapping[str, Any] | None = None) -> Any:
        answer = self._db.execute(self._q[query], values)
        return answer.fetchone() if answer.description else None

    def run(self, script: str, values: Mapping[str, Any] | None = None) -> None:
        with in_its_own_time(self._db) if values is None else contextlib.nullcontext():
            self._db.execute(self._q.script(script), values)
