"""Names of tables and columns in statements. Nothing else is ever put into a statement: values are parameters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources

from holdfast.errors import UsageError

_HEADER = re.compile(r"^-- name: ([a-z_]+)$", re.MULTILINE)
_NAME = re.compile(r"\{([a-z_]+)\}")
NAME_MAX = 128


def quoted(name: str) -> str:
    """Return the name of a column as an identifier of standard SQL, whatever characters it has."""
    if not name or len(name) > NAME_MAX or "\0" in name:
        raise UsageError(f"{name[:NAME_MAX]!r} cannot be the name of a table or column")
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """Return the name of a table; a dot divides the schema from the table."""
    return ".".join(quoted(part) for part in name.split("."))


def statements(file: str) -> dict[str, str]:
    """Return the statements of a file of this package, by name. `{word}` in them stands for a quoted name."""
    parts = _HEADER.split((resources.files("holdfast.rescue") / file).read_text("utf-8"))[1:]
    return {name: body.strip() for name, body in zip(parts[::2], parts[1::2], strict=True)}


def named(statement: str, names: Mapping[str, str]) -> str:
    """Put quoted names into a statement."""
    return _NAME.sub(lambda word: names[word[1]], statement)
