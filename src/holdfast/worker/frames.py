"""Tracebacks and stacks as the author of a task wants to read them: without the frames of what called his code."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.core.text import clean, escaped
from holdfast.errors import HoldfastError, Interrupted

ERROR_MAX = 8_000  # characters of an error's text
LOGGED_MAX = 1_000  # the same in the log
FRAMES_MAX = 5  # of a traceback in the log: the innermost of its author's code
FRAME_MAX = 300  # characters of one frame in the log

_HOUSE = f"{Path(__file__).parents[1]}/"
_GUESTS = (f"{_HOUSE}demo/", f"{_HOUSE}testing/")  # these are written as users would
_MACHINERY = (threading.__file__, f"{Path(asyncio.__file__).parent}/")  # what calls us

_CALLERS = ("_do",)  # where the functions of steps are called


def trace_of(error: BaseException) -> str:
    """Write the traceback of what left a handler. Above its author's functions, and between them, our own frames are
    left out; below them only where they may tell something: not where we call a function that has no frame, being
    written in C, and not where the error is our answer to what he did."""
    told = traceback.TracebackException.from_exception(error)
    for each in _chained(told):
        each.stack = _without_ours(each.stack, answers=each is told and isinstance(error, HoldfastError))
    return "".join(told.format())


def describe(error: BaseException) -> str:
    """Say what was raised, whatever its text does; only an interrupt passes."""
    kind = type(error).__name__
    try:
        text = str(error)
    except Interrupted:
        raise
    except BaseException:
        return f"{kind}: (its text could not be read)"
    return clean((f"{kind}: {text}" if text else kind)[:ERROR_MAX], ERROR_MAX)


def logged(text: str, frames: Sequence[str]) -> str:
    """Write what somebody's code raised for the log. It cannot forge a line: it is escaped, and frames are indented."""
    return escaped(text[:LOGGED_MAX]) + "".join(f"\n    {escaped(frame)}" for frame in frames)


def user_frames(error: BaseException, most: int) -> tuple[str, ...]:
    """Return the innermost frames of the author's code, each on a line; the place where it was raised comes last."""
    try:
        frames = _without_ours(traceback.extract_tb(error.__traceback__), answers=isinstance(error, HoldfastError))
        shown = [f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line or ''}" for frame in frames[-most:]]
    except Exception:
        return ()
    return tuple(clean(line, FRAME_MAX) for line in shown)


def stack_text(frames: traceback.StackSummary) -> str:
    """Write where a handler is, by the same rule."""
    return "".join(_without_ours(frames).format())


def _without_ours(frames: traceback.StackSummary, answers: bool = False) -> traceback.StackSummary:
    theirs = [place for place, frame in enumerate(frames) if not is_ours(frame.filename)]
    first = next((place for place in theirs if not frames[place].filename.startswith(_MACHINERY)), None)
    if first is None:
        return frames
    kept = [frames[place] for place in theirs if place >= first]
    if not answers and frames[-1].name not in _CALLERS:
        kept += frames[theirs[-1] + 1 :]
    return traceback.StackSummary.from_list(kept)


def is_ours(file: str) -> bool:
    """Say whether a file belongs to Holdfast, and is not written as users would."""
    return file.startswith(_HOUSE) and not file.startswith(_GUESTS)


def _chained(told: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    """Yield an exception and all that is printed with it: causes, contexts, and those of a group."""
    left, seen = [told], set()
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        left += [other for other in (each.__cause__, each.__context__) if other is not None]
        left += getattr(each, "exceptions", None) or []
