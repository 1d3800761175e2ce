"""Find the code that caught the signal to park a workflow. The workflow parks anyway, and the journal names the line.

A `finally` or an `except` that ends by raising again catches nothing: the signal is on its way out.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

from holdfast.errors import StoreError
from holdfast.runtime.tracebacks import is_ours

if TYPE_CHECKING:
    from holdfast.core.records import Job
    from holdfast.stores.protocol import Store

log = logging.getLogger("holdfast.worker")
Location = tuple[str, int]
LINGER_S = 1.0  # code that continues for this long after it caught the signal is logged at once, and not when it ends


def is_on_its_way(signal: BaseException | type[BaseException]) -> bool:
    """Say whether the calling code is handling this exception, or one of this class, at this moment."""
    error = sys.exception()
    while error is not None:
        if error is signal or (isinstance(signal, type) and isinstance(error, signal)):
            return True
        error = error.__context__
    return False


def place_of(signal: BaseException | None) -> Location | None:
    """Return the line of the user's code that the exception had come to when it was caught; None: of ours."""
    trace = signal.__traceback__ if signal is not None else None
    while trace is not None and is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return None if trace is None else (trace.tb_frame.f_code.co_filename, trace.tb_lineno)


def calling_place() -> Location:
    """Return the line of the user's code that calls us."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def report_once(place: Location, job: Job, store: Store) -> bool:
    """Log the place, unless the journal of the job has it already; return whether it is to be journalled."""
    try:
        known = store.journal(job.id, ("warning",))
    except StoreError:  # better to warn twice than never
        known = []
    if any((event.detail.get("file"), event.detail.get("line")) == place for event in known):
        return False
    log.warning(
        "workflow %s (%s): %s:%d caught the signal that parks the workflow and continued; it still waits. Let "
        "BaseException pass, and asyncio.CancelledError in an async workflow",
        *(job.id, job.task, *place),
    )
    return True
