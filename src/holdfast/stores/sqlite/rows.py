"""Read the answer of a statement although another program may have stored text that is not UTF-8."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from holdfast.stores.sql import load_queries

Q = load_queries("holdfast.stores.sqlite")
Executes = sqlite3.Connection | sqlite3.Cursor  # what statements are run on; a caller's transaction lends a cursor


def row_of(db: sqlite3.Connection, query: str, values: Mapping[str, Any] | None = None) -> Any:
    """Return the only row that a query finds. Bytes that are not UTF-8 are surrogates in it, as `row_json` reads them.

    For queries that change nothing: one may be sent twice.
    """
    try:
        return db.execute(Q[query], values or {}).fetchone()
    except sqlite3.OperationalError as error:
        if "Could not decode to UTF-8" not in str(error):  # the driver's own error, which has no code
            raise
    with any_text(db, "surrogateescape"):
        return db.execute(Q[query], values or {}).fetchone()


def text_of(db: sqlite3.Connection, query: str, values: Mapping[str, Any] | None = None) -> str:
    """Return the only value of `row_of`, which is text."""
    return str(row_of(db, query, values)[0])


@contextmanager
def any_text(on: Executes, errors: str = "replace") -> Iterator[None]:
    """Let statements return text that is not UTF-8, as `bytes.decode` does with this way to handle errors."""
    db = on.connection if isinstance(on, sqlite3.Cursor) else on
    as_before = db.text_factory
    db.text_factory = partial(str, encoding="utf-8", errors=errors)
    try:
        yield
    finally:
        db.text_factory = as_before
