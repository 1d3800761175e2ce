"""Tracebacks and stacks as the author of a task wants to read them: without the frames of what called his code."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path

_HOUSE = f"{Path(__file__).parents[1]}/"
_GUESTS = (f"{_HOUSE}demo/", f"{_HOUSE}testing/")  # these are written as users would
_MACHINERY = (threading.__file__, f"{Path(asyncio.__file__).parent}/")  # what calls us


def trace_of(error: BaseException) -> str:
    """Write the traceback of what left a handler. Between it and the top, and between two functions of its author, our
    own frames are left out; where the error was raised by us, how that came about is shown."""
    told = traceback.TracebackException.from_exception(error)
    for each in _chained(told):
        each.stack = _without_ours(each.stack)
    return "".join(told.format())


def stack_text(frames: traceback.StackSummary) -> str:
    """Write where a handler is, by the same rule."""
    return "".join(_without_ours(frames).format())


def _without_ours(frames: traceback.StackSummary) -> traceback.StackSummary:
    theirs = [place for place, frame in enumerate(frames) if not _is_ours(frame.filename)]
    first = next((place for place in theirs if not frames[place].filename.startswith(_MACHINERY)), None)
    if first is None:
        return frames
    kept = {place for place in theirs if place >= first} | set(range(theirs[-1], len(frames)))
    return traceback.StackSummary.from_list([frames[place] for place in sorted(kept)])


def _is_ours(file: str) -> bool:
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
