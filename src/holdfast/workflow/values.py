"""Names and results of steps, between the code and the record."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from holdfast.core.json_types import JsonType
from holdfast.core.payload import Codec, StepSignature, result_shape
from holdfast.core.row_text import ANSWER
from holdfast.core.text import clean
from holdfast.errors import UsageError
from holdfast.workflow.effects import Operation

NAME_MAX = 200
SHOWN_MAX = 200
FUNCTIONS_MAX = 1_000  # functions of steps whose signatures are kept; lambdas are new ones in every run
NOTHING: Any = object()  # no default was given


def name_of(fn: Any, given: str | None = None) -> str:
    """Return what a step is called: as the code says, or else by the name of its function."""
    if given is not None:
        return checked_name(given)
    while isinstance(fn, functools.partial):
        fn = fn.func
    name = getattr(fn, "name", None) if hasattr(fn, "enqueue") else None
    found = name or getattr(fn, "__name__", None) or type(fn).__name__
    return checked_name(str(found))


def checked_name(name: Any) -> str:
    """Return the name if it can be recorded."""
    if not isinstance(name, str) or not 1 <= len(name) <= NAME_MAX or clean(name, NAME_MAX) != name:
        raise UsageError(f"{name!r} cannot be the name of a step: use text of 1 to {NAME_MAX} characters")
    return name


def signal_name(name: Any) -> str:
    """Return the name if a signal can have it. Answers to `flow.approve` are signals too, and not for anybody to send:
    they are given once, under the fence of the question."""
    if isinstance(name, str) and name.strip().lower().startswith(ANSWER):
        raise UsageError(
            f"{name!r} is not a name for a signal: names that begin with {ANSWER!r} are for answers to questions; ask "
            "with flow.approve(…), and let a person approve the job"
        )
    return checked_name(name)


def shown(text: str | None) -> str:
    """Return the beginning of a stored value, for a sentence."""
    value = text or "null"
    return value if len(value) <= SHOWN_MAX else f"{value[:SHOWN_MAX]}…"


def nothing_to_do(value: Any) -> Operation[Any]:
    """Return an operation that only returns this."""
    yield from ()
    return value


def shape_of(fn: Callable[..., Any]) -> JsonType | None:
    """Return how a result of the function is read; None: as plain JSON."""
    shape: JsonType | None = _kept(_shape_of, getattr(fn, "fn", fn))  # the function of a task
    return shape


def signature_of(fn: Callable[..., Any], codec: Codec) -> StepSignature:
    """Return what the function of a step can be called with."""
    signature: StepSignature = _kept(_signature_of, getattr(fn, "fn", fn), codec)
    return signature


def _kept(cached: Any, *arguments: Any) -> Any:
    """Call a cached function; without its cache if an argument has no hash, such as a codec of the user's."""
    try:
        return cached(*arguments)
    except TypeError:
        return cached.__wrapped__(*arguments)


@lru_cache(maxsize=FUNCTIONS_MAX)
def _shape_of(fn: Callable[..., Any]) -> JsonType | None:
    return result_shape(fn, name_of(fn))


@lru_cache(maxsize=FUNCTIONS_MAX)
def _signature_of(fn: Callable[..., Any], codec: Codec) -> StepSignature:
    return StepSignature(fn, name_of(fn), codec=codec)
