"""Which attempts get a process of their own: the only place that decides."""

from __future__ import annotations

from holdfast.core.records import Job


def isolates(job: Job, *, declared: bool) -> bool:
    """Say whether this attempt runs apart from its neighbours.

    `declared`: its task, or its worker for all tasks, says so. Otherwise a job does that was in a process with others
    when the process died: it may be the one that killed it, and must not do that to neighbours again. If it was not,
    that shows now; if it was, it has died alone (one suspect), and goes on alone.
    """
    return declared or (job.crashes > 0 and job.suspects > 0)
