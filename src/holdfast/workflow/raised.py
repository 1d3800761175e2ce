"""Exceptions of steps on record. The code of a workflow gets what the record says, at once and in every replay.

    exception ──written()──▶ {"kinds": […], "text": …, "args": […], "attributes": {…}} ──raised()──▶ exception

The record has the message, and of the arguments and attributes those that are plain values. An exception that can be
built from its record exactly as it was is raised as it is; the code gets a rebuilt one otherwise, with what the record
has. So code that reads what a replay cannot know fails the first time it is run.
"""

from __future__ import annotations

import base64
import builtins
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from types import MemberDescriptorType
from typing import Any

from holdfast.core.text import clean
from holdfast.errors import StepFailed

DEPTH_MAX = 16
VALUES_MAX = 1_000  # in the record of one exception: errors that wrap each other twice would double it at each level
TEXT_MAX = 2_000  # characters of a message whose exception is too large for the record
_ITERATION = (StopIteration, StopAsyncIteration)  # generators and coroutines cannot pass these on
_PLAIN = (str, int, float, bool, type(None))
_AS_TEXT: dict[type, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    bytes: ("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    Decimal: ("decimal", str, Decimal),
    datetime: ("datetime", datetime.isoformat, datetime.fromisoformat),
    date: ("date", date.isoformat, date.fromisoformat),
}
_FROM_TEXT = {tag: read for tag, _, read in _AS_TEXT.values()}


class _NotPlain(Exception):
    """A value that the record cannot hold."""


def written(error: Exception) -> tuple[dict[str, Any], bool]:
    """Return an exception as it is recorded, and whether that is all of it."""
    writer = _Writer()
    said = writer.error(error)
    return said, writer.whole


def shortened(said: dict[str, Any]) -> dict[str, Any]:
    """Return the record of an exception that the store cannot take as it is: only its class and its message."""
    return {"kinds": said["kinds"], "text": clean(said["text"][:TEXT_MAX], TEXT_MAX)}


def raised(step: str, said: dict[str, Any]) -> Exception:
    """Return the exception that is recorded: of its own class, or of the nearest base class that is known here by its
    name, which nothing is imported for; `StepFailed` if there is none."""
    for kind in said["kinds"]:
        found = _class_named(kind)
        if found is not None:
            with suppress(Exception):  # it cannot be built: perhaps its base class can
                return _built(found, said)
    return StepFailed(step, said["kinds"][0], said["text"])


def as_recorded(error: Exception, step: str, said: dict[str, Any], whole: bool) -> Exception:
    """Return what the code gets now: the exception itself if a replay raises the same, and that one otherwise."""
    again = raised(step, said)
    if whole and type(again) is type(error) and _text_of(again) == said["text"]:
        return error
    again.__cause__, again.__suppress_context__ = error.__cause__, True
    return again.with_traceback(error.__traceback__)


class _Writer:
    """Turns an exception into plain JSON types; `whole` says whether nothing was left out or changed."""

    def __init__(self) -> None:
        self.whole = True
        self._values = 0

    def error(self, error: BaseException, depth: int = 0) -> dict[str, Any]:
        bases = [each for each in type(error).__mro__ if issubclass(each, Exception) and each is not Exception]
        kinds = [name_of_class(each) for each in bases] or ["Exception"]
        self.whole &= not bases or _class_named(kinds[0]) is type(error)
        text = _text_of(error)
        said: dict[str, Any] = {"kinds": kinds, "text": text if text is not None else "(its text could not be read)"}
        try:  # a value that is not plain, or whose own code fails
            said["args"] = [self._value(each, depth + 1) for each in error.args]
        except Exception:
            self.whole = False
        said["attributes"] = attributes = {}
        for name, value in _attributes(error):
            try:
                attributes[name] = self._value(value, depth + 1)
            except Exception:
                self.whole = False
        return said

    def _value(self, value: Any, depth: int) -> Any:
        self._values += 1
        if depth > DEPTH_MAX or self._values > VALUES_MAX:
            raise _NotPlain
        kind = type(value)
        if kind in _PLAIN:
            if kind is float and not math.isfinite(value):
                raise _NotPlain
            return value
        if kind in _AS_TEXT:
            tag, write, _ = _AS_TEXT[kind]
            return {tag: write(value)}
        if isinstance(value, Exception):
            return {"error": self.error(value, depth)}
        self.whole &= kind in (dict, list, tuple)
        if isinstance(value, dict) and all(type(key) is str for key in value):
            return {"dict": {key: self._value(each, depth + 1) for key, each in value.items()}}
        if isinstance(value, list | tuple):
            items = [self._value(each, depth + 1) for each in value]
            return items if isinstance(value, list) else {"tuple": items}
        match value:  # of a class that derives from one of these, such as an enum
            case int():
                return int.__int__(value)
            case float():
                return self._value(float.__float__(value), depth + 1)
            case str():
                return str.__str__(value)
            case _:
                raise _NotPlain


def _read(value: Any) -> Any:
    """Return a value of the record as it was."""
    if isinstance(value, list):
        return [_read(each) for each in value]
    if not isinstance(value, dict):
        return value
    ((tag, inner),) = value.items()
    match tag:
        case "dict":
            return {key: _read(each) for key, each in inner.items()}
        case "tuple":
            return tuple(_read(each) for each in inner)
        case "error":
            return raised("", inner)
        case _:
            return _FROM_TEXT[tag](inner)


def _built(found: type[Exception], said: dict[str, Any]) -> Exception:
    args = tuple(_read(each) for each in said["args"]) if "args" in said else (said["text"],)
    attributes = {name: _read(value) for name, value in said.get("attributes", {}).items()}
    error = _new(found, args, attributes)
    name: str = said["kinds"][0]
    if name_of_class(found) != name or _text_of(error) != said["text"]:
        module, _, short = name.rpartition(".")
        own = {"__module__": module, "__str__": lambda _: said["text"]}
        error = _new(type(short, (found,), own), args, attributes)
    return error


def _new(kind: type[Exception], args: tuple[Any, ...], attributes: dict[str, Any]) -> Exception:
    """Make an exception without the code of its class: what that was called with is not known."""
    base: Any = next(each for each in kind.__mro__ if each.__module__ == "builtins")
    error: Exception = base.__new__(kind, *args)
    base.__init__(error, *args)
    error.args = args
    for name, value in attributes.items():
        if not isinstance(getattr(kind, name, None), MemberDescriptorType):
            error.__dict__[name] = value
        elif getattr(error, name, None) != value:
            object.__setattr__(error, name, value)
    return error


def _attributes(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Yield what the exception knows beside its arguments, also where it is not in its dictionary."""
    for each in type(error).__mro__:
        for name, member in vars(each).items():
            if isinstance(member, MemberDescriptorType) and not name.startswith("__"):
                value = getattr(error, name, None)
                if value is not None and not isinstance(error, BaseExceptionGroup):
                    yield name, value
    yield from vars(error).items()


def _text_of(error: BaseException) -> str | None:
    try:
        return str(error)
    except Exception:
        return None


def name_of_class(kind: type) -> str:
    """Return what an exception is recorded by: the name of its class."""
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _class_named(kind: str) -> type[Exception] | None:
    """Return the class of that name, if it is loaded and can be raised here. No code of the user's is run for it."""
    parts = kind.split(".")
    if len(parts) == 1:
        places: list[tuple[Any, list[str]]] = [(builtins, parts)]
    else:
        places = [(sys.modules.get(".".join(parts[:count])), parts[count:]) for count in range(len(parts) - 1, 0, -1)]
    for place, rest in places:
        for part in rest:
            place = getattr(place, "__dict__", {}).get(part)
        if isinstance(place, type) and issubclass(place, Exception) and name_of_class(place) == kind:
            return None if issubclass(place, _ITERATION) else place
    return None
