"""Mutants written by hand, in areas/*.toml: one table for each, under the name of its file.

[["worker/settler.py"]]
name = "an outage loses endings"
in = "Settler._settle_for_good"       # the function, or the name of an SQL statement; left out: anywhere in the file
replace = "self._clock.wait(stop, s)"   # an expression or statements; layout and comments do not matter
by = "return"                           # nothing removes it
nth = 2                                 # which one, if it stands there several times
tests = ["tests/worker/test_outage.py"]   # if others than `[tests]` gives for this file
"""

from __future__ import annotations

import ast
import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.stores.sql import expand
from tests.mutants.mutant import PACKAGE, Mutant
from tests.mutants.sql import span

AREAS = Path(__file__).parent / "areas"
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


class Unfit(Exception):
    """A mutant that does not fit the tree any more."""


def hand_mutants() -> Iterator[Mutant]:
    for path in sorted(AREAS.glob("*.toml")):
        area = tomllib.loads(path.read_text())
        usual: dict[str, list[str]] = area.pop("tests")
        for file, entries in area.items():
            for entry in entries:
                try:
                    text = mutate(file, entry)
                except Unfit as error:
                    raise SystemExit(f"mutant {entry['name']!r} in {path.name}: {error}; mend the mutant") from None
                yield Mutant(f"hand {entry['name']}", file, text, tuple(entry.get("tests") or usual[file]))


def mutate(file: str, entry: dict[str, Any]) -> str:
    """Return the text of the file with the change that the entry describes."""
    if not (PACKAGE / file).exists():
        raise Unfit(f"there is no {file}")
    source = (PACKAGE / file).read_text()
    source = expand(source) if file.endswith("queries.sql") else source
    change = {"sql": _change_sql, "lua": _change_lua}.get(file.rpartition(".")[2], _change_python)
    return change(source, entry.get("in", ""), entry["replace"], entry.get("by", ""), entry.get("nth", 0))


def _only(found: list[Any], nth: int, what: str) -> Any:
    if nth and nth <= len(found):
        return found[nth - 1]
    if nth or len(found) != 1:
        raise Unfit(f"{what!r} stands there {len(found)} times")
    return found[0]


# ----------------------------------------------------------------------------------------------- SQL


def _change_sql(source: str, statement: str, old: str, new: str, nth: int) -> str:
    start, end = span(source, statement) if statement else (0, len(source))
    words = r"\s+".join(re.escape(word) for word in old.split())
    match = _only(list(re.finditer(words, source[start:end])), nth, old)
    return source[: start + match.start()] + new + source[start + match.end() :]


# ----------------------------------------------------------------------------------------------- Lua


def _change_lua(source: str, function: str, old: str, new: str, nth: int) -> str:
    start, end = _span_of_lua(source, function) if function else (0, len(source))
    words = r"\s+".join(re.escape(word) for word in old.split())
    match = _only(list(re.finditer(words, source[start:end])), nth, old)
    return source[: start + match.start()] + new + source[start + match.end() :]


def _span_of_lua(source: str, function: str) -> tuple[int, int]:
    head = rf"^( *)(?:local )?function {re.escape(function)}\(.*?(?:^\1end$|\bend$)"
    found = _only(list(re.finditer(head, source, re.MULTILINE | re.DOTALL)), 0, f"function {function}")
    whole = re.compile(rf"^{found.group(1)}end$", re.MULTILINE).search(source, found.start())
    line_end = source.index("\n", found.start())
    is_short = source[found.start() : line_end].rstrip().endswith(" end")
    return found.start(), line_end if is_short or whole is None else whole.end()


# -------------------------------------------------------------------------------------------- Python


def _change_python(source: str, function: str, old: str, new: str, nth: int) -> str:
    scopes: list[ast.AST] = [ast.parse(source)]
    for name in filter(None, function.split(".")):
        scopes = [inner for scope in scopes for inner in _scopes_in(scope) if inner.name == name]
    wanted = _parsed(old, new)
    found = [piece for scope in scopes for piece in _pieces(scope, wanted)]
    found.sort(key=lambda piece: (piece[0].lineno, piece[0].col_offset))
    first, last = _only(found, nth, old)
    lines = source.splitlines(keepends=True)
    start = _offset(lines, first.lineno, first.col_offset)
    end = _offset(lines, last.end_lineno, last.end_col_offset)
    if isinstance(first, ast.stmt):
        by = textwrap.indent(new or "pass", " " * first.col_offset).lstrip()
    else:
        by = f"({new})" if isinstance(first, ast.expr) else new.removeprefix("case ")
    changed = source[:start] + by + source[end:]
    ast.parse(changed)
    return changed


def _scopes_in(node: ast.AST) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, SCOPES):
            yield child
        else:
            yield from _scopes_in(child)


def _parsed(old: str, new: str) -> list[Any]:
    """Return statements, or one expression if both texts are one, or the pattern behind `case`."""
    if old.startswith("case "):
        [match] = ast.parse(f"match _:\n    {old}:\n        pass").body
        return [match.cases[0].pattern]  # type: ignore[attr-defined]
    found, other = ast.parse(old).body, ast.parse(new).body
    if len(found) == len(other) == 1 and isinstance(found[0], ast.Expr) and isinstance(other[0], ast.Expr):
        return [found[0].value]
    return list(found)


def _pieces(scope: ast.AST, wanted: list[ast.AST]) -> Iterator[tuple[Any, Any]]:
    """Find what equals the wanted nodes, whatever its layout: the first and the last node of each place."""
    shapes = [ast.dump(node) for node in wanted]
    if not isinstance(wanted[0], ast.stmt):
        yield from ((node, node) for node in ast.walk(scope) if ast.dump(node) == shapes[0])
        return
    for node in ast.walk(scope):
        for body in (getattr(node, field, None) for field in ("body", "orelse", "finalbody")):
            for at in range(len(body) if isinstance(body, list) else 0):
                if [ast.dump(each) for each in body[at : at + len(shapes)]] == shapes:
                    yield body[at], body[at + len(shapes) - 1]


def _offset(lines: list[str], line: int, column: int) -> int:
    before = sum(map(len, lines[: line - 1]))
    return before + len(lines[line - 1].encode()[:column].decode())
