"""Batches: several jobs, and one job that is stored when all of them have ended.

    app.batch(then=…) ──open──▶ a row ◀──add── its jobs
    closed, and none of its jobs is live ──▶ conclusion() ──▶ a job ──end──▶ stored

The row of a batch has everything that its last job needs, so any program ends it without the user's code. The id of
that job is made from the batch: an end that is repeated stores nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.callbacks import derived_id
from holdfast.core.machine import ENDED, State
from holdfast.core.payload import JSON
from holdfast.core.records import NewJob
from holdfast.errors import PolicyError, UsageError

ABANDON_S = 3600.0  # a batch to which nobody has added for this long, and that nobody has closed, is closed
ABANDON_MAX_S = 31_536_000.0
_ENDS = (State.DONE, State.DEAD, State.CANCELLED, State.ROLLED_BACK)
# An example of the arguments that the last job may take, by name.
FACTS: dict[str, Any] = {
    "batch_id": "x",
    "counts": dict.fromkeys((state.value for state in _ENDS), 0),
    "complete": True,
}


class Then(msgspec.Struct, frozen=True):
    """The job to store at the end, without its id, and which facts its task takes beside the arguments that it has."""

    job: NewJob
    takes: tuple[str, ...]


class Batch(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A batch, as its row is now."""

    id: str
    then: str | None = None  # JSON: the job that is stored at the end
    abandon_s: float = ABANDON_S
    created_at: float = 0.0  # wall time, and so are the next three
    added_at: float = 0.0  # when jobs were added last
    closed_at: float | None = None  # nothing can be added any more
    ended_at: float | None = None
    complete: bool = False  # its producer closed it, and has added all that it wanted to
    counts: dict[str, int] | None = None  # its jobs by state, as they were when it ended
    live: bool = False  # one of its jobs has not ended

    def is_abandoned(self, now: float) -> bool:
        """Say whether its producer seems to be gone."""
        return self.closed_at is None and now - self.added_at >= self.abandon_s

    @property
    def is_over(self) -> bool:
        """Say whether it is time to store its last job."""
        return self.closed_at is not None and self.ended_at is None and not self.live

    @property
    def then_id(self) -> str:
        """Return the id of the job that is stored at its end."""
        return derived_id(self.id, "then", 0)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Then)
_arguments = msgspec.json.Decoder(dict[str, msgspec.Raw])


def then_text(then: Then) -> str:
    """Return the last job as a row has it."""
    return _encoder.encode(then).decode()


def checked_abandon_s(abandon_s: object) -> float:
    """Return the seconds if they can be waited for."""
    number = isinstance(abandon_s, int | float) and not isinstance(abandon_s, bool)
    if not number or not 1 <= abandon_s <= ABANDON_MAX_S:  # type: ignore[operator]
        raise UsageError(f"abandon_s={abandon_s!r} must be a number of seconds from 1 to {ABANDON_MAX_S:.0f}")
    return float(abandon_s)  # type: ignore[arg-type]


def ended_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return how many jobs have ended in each of the four ways."""
    return {state.value: counts.get(state.value, 0) for state in _ENDS}


def conclusion(batch: Batch, counts: Mapping[str, int]) -> NewJob | None:
    """Return the job that is stored at the end of the batch; None if it has none.

    Raises `ValueError` if the row was damaged and the job cannot be read.
    """
    if batch.then is None:
        return None
    try:
        then = _decoder.decode(batch.then)
        given = _arguments.decode(then.job.payload)
    except (msgspec.DecodeError, UnicodeError, PolicyError) as damage:
        raise ValueError(str(damage)) from damage
    facts: dict[str, Any] = {"batch_id": batch.id, "counts": ended_counts(counts), "complete": batch.complete}
    if unknown := set(then.takes) - set(facts):
        raise ValueError(f"task {then.job.task} takes {min(unknown)!r}, which this program does not know")
    payload = JSON.encode({name: facts[name] for name in then.takes})
    if given:
        payload = _encoder.encode(given | _arguments.decode(payload)).decode()
    return msgspec.structs.replace(then.job, id=batch.then_id, payload=payload)


def then_task(batch: Batch) -> str | None:
    """Return the name of the task that is enqueued at the end; None if there is none, or it cannot be read."""
    try:
        return None if batch.then is None else _decoder.decode(batch.then).job.task
    except (msgspec.DecodeError, UnicodeError, PolicyError):
        return None


def progress(counts: Mapping[str, int]) -> float | None:
    """Return the share of its jobs that have ended; None if there are none."""
    jobs = sum(counts.values())
    ended = sum(number for state, number in counts.items() if State(state) in ENDED)
    return ended / jobs if jobs else None
