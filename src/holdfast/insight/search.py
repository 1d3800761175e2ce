"""The search in the texts of jobs: plain words, and typed conditions on arguments such as `args.order.id:42`.

A value matches a number, true, false or null of the same meaning, and the same text; in quotes it matches text only.
A number in a path is the place in a list: `args.items.0:cat`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.core.records import Job
from holdfast.insight.format import parsed

_CONDITION = re.compile(r'(?:^|(?<=\s))args\.([^\s:]+):("(?:[^"\\]|\\.)*"|\S+)')
_MISSING = object()


@dataclass(frozen=True, slots=True)
class _Condition:
    path: tuple[str, ...]
    value: str
    data: Any  # what the value says as JSON; `_MISSING`: it is text only

    def holds(self, arguments: Any) -> bool:
        for name in self.path:
            arguments = _part(arguments, name)
        if isinstance(arguments, str):
            return arguments == self.value
        if isinstance(arguments, bool) or isinstance(self.data, bool) or arguments is None:
            return arguments is self.data
        return isinstance(arguments, int | float) and bool(arguments == self.data)


class TextSearch:
    """A search as a person typed it, read once."""

    def __init__(self, text: str) -> None:
        self._conditions = [_condition(*found.groups()) for found in _CONDITION.finditer(text)]
        self._words = " ".join(_CONDITION.sub("", text).split()).casefold() if self._conditions else text.casefold()

    def matches(self, job: Job) -> bool:
        """Say whether the words are in an id, key, task, arguments or error, and all conditions hold."""
        if self._words and not any(self._words in each.casefold() for each in _texts(job)):
            return False
        arguments = parsed(job.payload) if self._conditions else None
        return all(each.holds(arguments) for each in self._conditions)


def _condition(path: str, value: str) -> _Condition:
    if value.startswith('"'):
        try:
            return _Condition((*path.split("."),), str(json.loads(value)), _MISSING)
        except ValueError:
            return _Condition((*path.split("."),), value, _MISSING)
    try:
        data = json.loads(value)
    except (ValueError, RecursionError):
        data = _MISSING
    return _Condition((*path.split("."),), value, data)


def _part(data: Any, name: str) -> Any:
    if isinstance(data, dict):
        return data.get(name, _MISSING)
    if isinstance(data, list) and name.isdecimal() and len(name) < 10 and int(name) < len(data):
        return data[int(name)]
    return _MISSING


def _texts(job: Job) -> Iterator[str]:
    yield from (each for each in (job.id, job.task, job.key, job.payload, job.error) if each)
    if "\\u" in job.payload:
        yield msgspec.json.encode(parsed(job.payload)).decode()
