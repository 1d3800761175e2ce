"""Tracebacks and stacks as the author of a task wants to read them: without Holdfast's own frames."""

from __future__ import annotations

import asyncio
import sysconfig
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from holdfast.core.text import clean, escaped
from holdfast.errors import HoldfastError, Interrupted

F = TypeVar("F", bound=Callable[..., Any])

ERROR_MAX = 8_000  # characters of an error's text
LOGGED_MAX = 1_000  # the same in the log
FRAMES_MAX = 5  # of its author's code in the log: the innermost
FRAME_MAX = 300  # characters of one frame in the log

_HOUSE = f"{Path(__file__).parents[1]}/"
_GUESTS = (f"{_HOUSE}demo/", f"{_HOUSE}testing/")  # these are written as users would
_MACHINERY = (threading.__file__, f"{Path(asyncio.__file__).parent}/")  # what calls us

_INSTALLED = ("/site-packages/", "/dist-packages/")
_STANDARD = ("<frozen ", *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")))

_NAME: Any = type.__dict__["__name__"]
_CAUSE: Any = BaseException.__dict__["__cause__"]
_CONTEXT: Any = BaseException.__dict__["__context__"]

_callers: set[tuple[str, str]] = set()


def calls_user_code(fn: F) -> F:
    """Mark one of our functions that does nothing below its author's code but call it: no traceback ends there."""
    _callers.add((fn.__code__.co_filename, fn.__code__.co_name))
    return fn


def trace_of(error: BaseException) -> str:
    """Write the traceback of what left a handler. Above its author's functions, and between them, our own frames are
    left out; below them only where they may tell something: not where we call a function that has no frame, being
    written in C, and not where the error is our answer to what he did."""
    trace = traceback.TracebackException.from_exception(error)
    for each in _chained(trace):
        each.stack = _without_ours(each.stack, answers=each is trace and isinstance(error, HoldfastError))
    return "".join(trace.format())


def kind_of(error: BaseException) -> str:
    """Name the class of an error, without running code of its author's."""
    name: str = _NAME.__get__(type(error))
    return name


def came_from(error: BaseException) -> BaseException | None:
    """Return the cause or the context of an error, without running code of its author's."""
    cause: BaseException | None = _CAUSE.__get__(error)
    context: BaseException | None = _CONTEXT.__get__(error)
    return context if cause is None else cause


def describe(error: BaseException) -> str:
    """Say what was raised, whatever its text does; only an interrupt passes."""
    kind = kind_of(error)
    try:
        text = str(error)
    except Interrupted:
        raise
    except BaseException:
        return f"{kind}: (its text could not be read)"
    return clean((f"{kind}: {text}" if text else kind)[:ERROR_MAX], ERROR_MAX)


def logged(text: str, frames: Sequence[str]) -> str:
    """Write what a user's code raised for the log. It cannot forge a line: it is escaped, and frames are indented."""
    return escaped(text[:LOGGED_MAX]) + "".join(f"\n    {escaped(frame)}" for frame in frames)


def user_frames(error: BaseException, most: int) -> tuple[str, ...]:
    """Return the innermost frames of the author's code, each on a line, and then the place in a library that raised.

    Where none is known to be the author's, return the innermost frames of all.
    """
    try:
        frames = traceback.extract_tb(error.__traceback__)
        theirs = [frame for frame in frames if not is_ours(frame.filename)]
        own = _own(theirs)
        kept = [*own[-most:], *(theirs[-1:] if own and own[-1] is not theirs[-1] else [])]
        kept = kept or _without_ours(frames, answers=isinstance(error, HoldfastError))[-most:]
        shown = [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}" for frame in kept]
    except Exception:
        return ()
    return tuple(clean(line, FRAME_MAX) for line in shown)


def origin_of(error: BaseException) -> str | None:
    """Name the innermost function of the author's code that the error came through, with its module, and no line."""
    frames: list[traceback.FrameSummary] = []
    try:
        for frame, lineno in traceback.walk_tb(error.__traceback__):
            code = frame.f_code
            name = f"{frame.f_globals.get('__name__', '?')}.{code.co_qualname.replace('<locals>.', '')}"
            frames.append(traceback.FrameSummary(code.co_filename, lineno, name, lookup_line=False))
        theirs = [frame for frame in frames if not is_ours(frame.filename)]
        found = _own(theirs) or theirs or frames
        return clean(found[-1].name, FRAME_MAX) if found else None
    except Exception:
        return None


def _own(theirs: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Return the frames of the author's code. If all of it is installed, that is the package that we have called."""
    if own := [frame for frame in theirs if _package(frame.filename) is None]:
        return own
    called = next((_package(frame.filename) for frame in theirs if not frame.filename.startswith(_MACHINERY)), None)
    return [frame for frame in theirs if called and _package(frame.filename) == called]


def _package(file: str) -> str | None:
    """Return the installed package or the standard library that a file belongs to; None: it is the author's."""
    for folder in _INSTALLED:
        head, found, tail = file.partition(folder)
        if found:
            return head + found + tail.partition("/")[0]
    return next((folder for folder in _STANDARD if file.startswith(folder)), None)


def stack_text(frames: traceback.StackSummary) -> str:
    """Write where a handler is, by the same rule."""
    return "".join(_without_ours(frames).format())


def _without_ours(frames: traceback.StackSummary, answers: bool = False) -> traceback.StackSummary:
    theirs = [place for place, frame in enumerate(frames) if not is_ours(frame.filename)]
    first = next((place for place in theirs if not frames[place].filename.startswith(_MACHINERY)), None)
    if first is None:
        return frames
    kept = [frames[place] for place in theirs if place >= first]
    if not answers and (frames[-1].filename, frames[-1].name) not in _callers:
        kept += frames[theirs[-1] + 1 :]
    return traceback.StackSummary.from_list(kept)


def is_ours(file: str) -> bool:
    """Say whether a file belongs to Holdfast, and is not written as users would."""
    return file.startswith(_HOUSE) and not file.startswith(_GUESTS)


def _chained(trace: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield an exception and all that is printed with it: causes, contexts, and those of a group."""
    left, seen = [trace], set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        left += [other for other in (each.__cause__, each.__context__) if other is not None]
        left += getattr(each, "exceptions", None) or []
