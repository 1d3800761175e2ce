"""Notices that a newer program has changed the schema of the store, and whether this worker may continue."""

from __future__ import annotations

import logging
from collections.abc import Callable

from holdfast.core.continuity import Standing
from holdfast.stores.protocol import Schema, Store, schema_too_new

log = logging.getLogger("holdfast.worker")


class SchemaChange:
    """See the module's docstring. `too_old` is called when the schema is not for this program any more."""

    def __init__(self, store: Store, too_old: Callable[[], None]) -> None:
        self._store = store
        self._too_old = too_old
        self._wanted: int | None = None  # the schema that this program knows
        self._spoken_of = 0

    def hear(self, now: Standing) -> None:
        if self._wanted is None:
            self._wanted = self._spoken_of = self._store.schema().wanted
        schema = Schema(now.schema, self._wanted, now.works_with)
        if schema.is_too_new:
            log.error("%s; this worker finishes its running jobs and exits", schema_too_new(self._store.url, schema))
            self._too_old()
        elif now.schema > self._spoken_of:
            log.warning(
                "the store has schema %d now; this worker knows %d, and continues: restart it with the new version",
                *(now.schema, self._wanted),
            )
        self._spoken_of = max(self._spoken_of, now.schema)
