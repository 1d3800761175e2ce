"""Which attempts get a process of their own: the only place that decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.core.records import Job

_FAULTS = ("SIGSEGV", "SIGBUS", "SIGABRT", "SIGFPE", "SIGILL", "SIGSYS", "SIGTRAP")


def isolates(job: Job, *, declared: bool, shared: bool) -> bool:
    """Say whether this attempt runs apart from the other jobs of the worker's process.

    `declared`: its task, or its worker for all tasks, says so. Otherwise a job does whose process has died: it may be
    the one that killed it, and must not do that to others. Only a process that is not `shared`, where no other job is
    or can come, runs it there, and starts it sooner; but not if there were several suspects (if it was not the one,
    that shows now, and its crash is taken back), nor if it has died alone by its own doing (one suspect), or twice. One
    suspect stays alone even after a revive.
    """
    if declared or job.suspects == 1:
        return True
    return job.crashes > 0 and (job.suspects > 1 or job.crashes > 1 or shared)


def ended_itself(facts: Mapping[str, Any]) -> bool:
    """Say whether a process that ended so was ended by its own code. Other signals are sent from outside as well."""
    return "exit_code" in facts or facts.get("signal") in _FAULTS
