"""A processor for structlog that says which job each line is about.

structlog.configure(processors=[add_job, …])
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from holdfast.runtime.log_fields import current_attempt, fields_of


def add_job(logger: Any, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Add `job`, `task`, `attempt` and `fence` to a line that a task writes, unless the line has them already."""
    attempt = current_attempt.get()
    if attempt is None:
        return event
    for name, value in fields_of(attempt.job).items():
        event.setdefault(name, value)
    return event
