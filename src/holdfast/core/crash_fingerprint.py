"""Jobs of the same call: the same task with the same arguments, under ids of their own.

A job that kills its process ends by its budget of crashes. If the same call comes again and again under new ids, each
has a fresh budget, and only the call has a record: those of its jobs that were found guilty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import NamedTuple, Protocol

from holdfast.core.machine import State
from holdfast.core.records import Event, Job

LATELY_S = 86_400.0  # older crashes do not count


class Fingerprint(NamedTuple):
    """A task and a digest of its arguments, which may be long or secret."""

    task: str
    digest: str


def call_of(job: Job) -> Fingerprint:
    """Return what the job shares with others of the same task and the same arguments."""
    return Fingerprint(job.task, sha256(job.payload.encode()).hexdigest()[:12])


class Crashed(Protocol):
    """The part of a job that says whether it is to blame."""

    @property
    def state(self) -> State: ...
    @property
    def crashes(self) -> int: ...
    @property
    def suspects(self) -> int: ...


def is_guilty(job: Crashed) -> bool:
    """Say whether the job's crashes count against its call.

    They do if it is not run any more because of them, has died alone in a process of its own, or has died twice: one
    crash may be chance. Not so long as it is a suspect among several, and never if it was done in the end.
    """
    if has_fallen(job):
        return True
    alone = job.suspects == 1 or (job.suspects == 0 and job.crashes > 1)
    return job.crashes > 0 and alone and job.state is not State.DONE


def has_fallen(job: Crashed) -> bool:
    """Say whether the job has crashed and is dead or held: it is not run again unless a person wants it."""
    return job.crashes > 0 and job.state in (State.DEAD, State.HELD)


def death_of(zombie: Event) -> str:
    """Return an id for the death behind this event: jobs that were lost with one worker share it."""
    return zombie.job_id if zombie.detail.get("isolated") else zombie.worker or zombie.job_id


# A crash, what shows that there was none, and what a person decided after it.
CRASH_KINDS = ("zombie", "stale_report", "revived", "resolved")


def crashes_of(events: Iterable[Event]) -> dict[tuple[str, int], Event]:
    """Return the crashes after which a job was dead or held, by job and newest event of the job, the last one last.

    `events`: those of `CRASH_KINDS`, oldest first. A job whose attempt reported later had not crashed.
    """
    zombies: dict[str, Event] = {}
    newest: dict[str, int] = {}
    for event in events:
        last = zombies.get(event.job_id)
        if event.kind == "zombie" and event.detail.get("decision") in ("bury", "hold"):
            zombies.pop(event.job_id, None)  # the last one last
            zombies[event.job_id] = event
        elif event.kind == "stale_report" and last is not None and last.fence == event.fence:
            del zombies[event.job_id]
        newest[event.job_id] = event.seq
    return {(job_id, newest[job_id]): zombie for job_id, zombie in zombies.items()}


def calls_held_back(
    crashes: Mapping[tuple[str, int], Event],
    calls: Mapping[tuple[str, int], Fingerprint | None],
    limits: Mapping[str, int],
) -> dict[Fingerprint, str]:
    """Return the calls whose new jobs are to be held, and why.

    `crashes`: see `crashes_of`. `calls`: the call of each; None if it does not count. `limits`: deaths, by task.
    """
    fallen: dict[Fingerprint, dict[str, str]] = defaultdict(dict)
    for key, zombie in crashes.items():
        if (call := calls[key]) is not None:
            fallen[call][zombie.job_id] = death_of(zombie)
    found = {call: held_back(call, jobs, limits[call.task]) for call, jobs in fallen.items()}
    return {call: why for call, why in found.items() if why is not None}


def held_back(call: Fingerprint, fallen: Mapping[str, str], limit: int) -> str | None:
    """Say why a new job of this call is to be held, and not started; None: it may be started.

    `fallen`: its jobs that fell lately, the last one last, each with its death. They must have died `limit` deaths: a
    host that goes down under many jobs of the same call is one.
    """
    deaths = len(set(fallen.values()))
    if deaths < limit:
        return None
    last = [*fallen][-1]
    return (
        f"held back: {len(fallen)} jobs of {call.task} with the same arguments (#{call.digest}) have crashed within "
        f"a day and were given up or held, the last of them {last}"
    )


def is_new(job: Job) -> bool:
    """Say whether nothing was decided about the job yet: no attempt ended badly, and no person brought it back."""
    return job.error is None
