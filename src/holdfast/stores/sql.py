"""SQL is source code: it lives in files, has names, and is loaded once.

A query file holds statements under `-- name: verb` headers, in the order of the protocol's verbs. Parameters are
named; nothing is ever put together from strings.
"""

from __future__ import annotations

import re
from importlib import resources

_HEADER = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
_MIGRATION = re.compile(r"(\d{4})_[a-z_]+\.sql")


def load_queries(package: str, file: str = "queries.sql") -> dict[str, str]:
    """Return the statements of a query file by name, in their order."""
    text = (resources.files(package) / file).read_text("utf-8")
    parts = _HEADER.split(text)[1:]
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{package}/{file}: a name occurs twice")
    return {name: body.strip() for name, body in zip(names, bodies, strict=True)}


def load_migrations(package: str) -> list[tuple[int, str]]:
    """Return the numbered migrations of a package, in order, without gaps."""
    found = []
    for file in (resources.files(package) / "migrations").iterdir():
        if match := _MIGRATION.fullmatch(file.name):
            found.append((int(match[1]), file.read_text("utf-8")))
    found.sort()
    if [number for number, _ in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"{package}/migrations: the numbers have gaps")
    return found
