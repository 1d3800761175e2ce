"""A schema of its own for each test on a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from urllib.parse import parse_qs, urlsplit

from holdfast.ids import new_id


@contextmanager
def own_schema(url: str) -> Iterator[str]:
    """Yield the address of a store in a new schema of this database, and drop the schema afterwards.

    An address that names a schema stays as it is, and nothing of it is dropped.
    """
    if "schema" in parse_qs(urlsplit(url).query):
        yield url
        return
    schema = f"holdfast_test_{new_id()[:12]}"
    try:
        yield f"{url}{'&' if urlsplit(url).query else '?'}schema={schema}"
    finally:
        import psycopg
        from psycopg import sql

        text = resources.files("holdfast.testing").joinpath("drop_schema.sql").read_text("utf-8")
        drop = sql.SQL(text).format(schema=sql.Identifier(schema))  # pyright: ignore[reportArgumentType]
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(drop)
