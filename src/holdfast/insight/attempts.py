"""The attempts of a job, one after the other, as far as its row and its journal tell of them: for a picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.machine import State
from holdfast.core.records import Event, Job, Moment
from holdfast.insight.views import Names, lease_end, name_of

_ENDINGS = ("succeeded", "failed", "timed_out", "stalled", "zombie", "released", "snoozed")


class AttemptView(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt. Instants are wall times; None: not recorded, or not yet.

    waited_from: since when it was due, as far as known. outcome: the kind of the event that ended it; `running` and
    `lost_sight` (it ended, and no event says how) besides. refused_at: its report came after that.
    """

    fence: int
    number: int
    outcome: str
    waited_from: float
    began_at: float | None
    ended_at: float | None
    worker: str | None
    last_beat: float | None = None
    lease_until: float | None = None
    refused_at: float | None = None
    detail: Mapping[str, Any] = {}

    @property
    def found_after_s(self) -> float | None:
        """Return how long after its last beat its death was found."""
        if self.outcome != "zombie" or self.last_beat is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.last_beat)


def attempts_of(job: Job, events: Sequence[Event], now: Moment, names: Names | None = None) -> list[AttemptView]:
    """Return the attempts of a job, oldest first. A success leaves no event: the row tells of it."""
    claimed = {event.fence: event for event in events if event.kind == "claimed"}
    late = {event.fence: event.at for event in events if event.kind == "stale_report"}
    ends = {event.fence: event for event in events if event.kind in _ENDINGS}
    fences = sorted({*claimed, *ends})
    found: list[AttemptView] = []
    free_at = job.created_at
    for number, fence in enumerate(fences, 1):
        if job.state is State.RUNNING and fence == job.fence:
            continue
        end, began = ends.get(fence), claimed.get(fence)
        detail = {} if end is None else end.detail
        began_at = began.at if began is not None else _instant(detail.get("claimed_at"))
        if began_at is None and end is not None and job.claimed_at is not None and _is_last(fence, fences):
            began_at = job.claimed_at if job.claimed_at <= end.at else None
        by = end or began
        found.append(
            AttemptView(
                fence=fence,
                number=number,
                outcome="lost_sight" if end is None else end.kind,
                waited_from=free_at,
                began_at=began_at,
                ended_at=None if end is None else end.at,
                worker=None if by is None else name_of(by.worker, names),
                last_beat=_instant(detail.get("last_beat")),
                lease_until=_instant(detail.get("lease_until")),
                refused_at=late.get(fence),
                detail=detail,
            )
        )
        free_at = free_at if end is None else end.at
    return [*found, *_of_the_row(job, found, free_at, now, names)]


def _of_the_row(
    job: Job, found: Sequence[AttemptView], free_at: float, now: Moment, names: Names | None
) -> Iterator[AttemptView]:
    running = job.state is State.RUNNING
    unknown_success = job.state is State.DONE and job.attempt > 0 and all(each.fence != job.fence for each in found)
    if running or unknown_success:
        yield AttemptView(
            fence=job.fence,
            number=len(found) + 1,
            outcome="running" if running else "succeeded",
            waited_from=free_at,
            began_at=job.claimed_at,
            ended_at=None if running else job.ended_at,
            worker=name_of(job.worker, names),
            lease_until=lease_end(job, now) if running else None,
        )


def span_of(attempts: Iterable[AttemptView], created_at: float, now: float) -> tuple[float, float]:
    """Return the first and the last instant that a picture of these attempts has to show."""
    ends = [created_at]
    for each in attempts:
        ends += [at for at in (each.began_at, each.ended_at, each.refused_at) if at is not None]
        if each.outcome == "running":
            ends += [now, each.lease_until or now]
    return created_at, max(ends)


def _is_last(fence: int, fences: Sequence[int]) -> bool:
    return fence == fences[-1]


def _instant(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else None
    except ValueError:
        return None
