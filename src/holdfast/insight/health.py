"""Decide whether an attempt is or was dead, hung or slow.

Three things look alike from afar, and want different answers. *Dead*: nobody renews the lease; a reaper settles it.
*Hung*: the worker beats, the handler does not move; only a limit ends that. *Slow*: it moves, but takes longer than it
should. The functions here decide from what the rows and the journal say, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Literal

from holdfast.core.durations import duration, iso
from holdfast.core.machine import State
from holdfast.core.records import Event, Filter, Job, Moment, Worker
from holdfast.insight.format import DECIDED, ago
from holdfast.stores.protocol import Store

NOT_BEGUN_S = 10.0  # a worker gives back after a second what it has claimed and cannot start
STILL_S = 60.0  # without a limit of its own, a handler that has moved before may be still for this long
NEAR_LIMIT = 0.8  # of its time: from then on it is near its end
SLOW_TIMES = 3.0  # longer than usual
SLOW_LEAST_S = 10.0  # what takes less is not worth a word
SET_BACK_S = 60.0  # a job that was enqueued this much later than now shows that the clock of the store was set back
_SAMPLE = 100  # jobs that ended last, of any task
_SAMPLE_LEAST = 5  # of this task; fewer say nothing

_NOBODY = "No worker is alive to settle it: start one, unless `holdfast reaper` runs."

Word = Literal["well", "slow", "hung", "locked", "silent", "dead"]


@dataclass(frozen=True, slots=True)
class Health:
    """The health of an attempt: a word for programs; for people a sentence with the evidence and what happens next."""

    word: Word
    sentence: str


def enqueued_ahead_s(job: Job, now: Moment) -> float:
    """Return how much later than now the job was enqueued, by the clock of the store; 0 where that says nothing."""
    ahead_s = job.created_at - now.wall
    return ahead_s if ahead_s > SET_BACK_S else 0.0


BEATING = ("alive", "stopping", "draining", "drained")  # the states of a worker that beats


def worker_state(worker: Worker, now: Moment, vanished: Collection[str] = ()) -> str:
    """Return `alive`, `stopping` (alive, but it claims nothing more), `silent` (it missed several beats; the reaper
    decides what that means), `vanished` (its id is among these, see `vanished_ids`) or `gone`.

    One that a person has asked to drain or to stop is `draining` until it claims nothing and runs nothing, and then
    `drained`.
    """
    if worker.gone_at is not None:
        return "gone"
    if worker.id in vanished:
        return "vanished"
    if not worker.is_alive(now.wall):
        return "silent"
    if worker.order is not None:
        return "drained" if worker.stopping and not worker.running else "draining"
    return "stopping" if worker.stopping else "alive"


def vanished_ids(store: Store) -> set[str]:
    """Return the ids of workers whose process has ended or was cut off from the store, and that no reaper has marked
    gone yet. The reaper looks twice before it believes that; one look is enough to show it."""
    return {each.worker.id for each in store.vanished() if each.worker.gone_at is None}


# ------------------------------------------------------------------------------------ the attempt that runs


def health(
    job: Job,
    worker: Worker | None,
    now: Moment,
    usual_s: float | None = None,
    *,
    vanished: Collection[str] = (),
    reaped: bool = True,
    locked: bool = False,
) -> Health:
    """Tell dead from hung from slow, for a running job. `worker`: who holds it, if known; `usual_s`: see `usual`;
    `vanished`: see `vanished_ids`; `reaped`: whether a worker is alive that would settle it;
    `locked`: whether another transaction has locked its row."""
    if locked and worker is not None and worker_state(worker, now, vanished) in BEATING:
        return Health(
            "locked",
            "Its worker beats, but another transaction has locked its row, so its lease cannot be renewed and its "
            "result cannot be saved. Nothing is lost meanwhile. To find that transaction: docs/postgresql.md, "
            '"Locks of others".',
        )
    if found := _dead(job, worker, now, vanished, reaped) or _hung(job, now) or _slow(job, now, usual_s):
        return found
    return Health("well", f"Its lease ends in {duration(_lease_left(job, now))} unless the worker renews it.")


def usual(store: Store, task: str) -> float | None:
    """Return how long a task's last successful attempts took; None if too few of them ended lately.

    Looked at are the jobs that ended last, of any task: never a walk over all jobs.
    """
    done = [job for job in store.find(Filter(states=(State.DONE,), limit=_SAMPLE)) if job.task == task]
    took = [job.ended_at - job.claimed_at for job in done if job.ended_at is not None and job.claimed_at is not None]
    return median(took) if len(took) >= _SAMPLE_LEAST else None


def _dead(job: Job, worker: Worker | None, now: Moment, vanished: Collection[str], reaped: bool) -> Health | None:
    left_s = _lease_left(job, now)
    soon = "A reaper is about to settle it." if reaped else _NOBODY
    if worker is not None and worker.gone_at is not None:
        cause = worker.gone_cause or "marked gone"
        return Health("dead", f"Its worker is gone ({cause}, {ago(worker.gone_at, now)}). {soon}")
    if worker is not None and worker.id in vanished:
        known = f"its process has ended or was cut off from the store, and beat last {ago(worker.beat_at, now)}"
        return Health("dead", f"Its worker vanished: {known}. {soon}")
    if left_s < 0:
        settles = "A reaper will settle it." if reaped else _NOBODY
        ended = f"its lease ran out {duration(-left_s)} ago"
        if worker is not None and worker.is_alive(now.wall) and now.wall - worker.beat_at <= -left_s:
            return Health("dead", f"Its worker beats, but no longer for this job: {ended}. {settles}")
        known = ended if worker is None else f"no beat for {duration(now.wall - worker.beat_at)}, and {ended}"
        return Health("dead", f"Its worker is dead, frozen or cut off: {known}. {settles}")
    settles = f"A reaper will settle it when its lease ends, in {duration(left_s)}, or as soon as the death is proved."
    settles = settles if reaped else _NOBODY
    if worker is not None and worker_state(worker, now) == "silent":
        known = f"no beat for {duration(now.wall - worker.beat_at)}, though one was due every {duration(worker.beat_s)}"
        return Health("silent", f"Its worker is dead, frozen or cut off: {known}. {settles}")
    if is_late(job, now):
        known = f"its lease was not renewed for {duration(job.lease_s - left_s)}, though that is due every"
        text = f"Perhaps its worker is dead, frozen or cut off: {known} {duration(job.beat_s)}. {settles}"
        return Health("silent", text)
    return None


def is_late(job: Job, now: Moment) -> bool:
    """Say whether two beats that should have renewed the lease have not."""
    return _lease_left(job, now) < job.beat_s


def _hung(job: Job, now: Moment) -> Health | None:
    if job.claimed_at is None:
        return None
    if not job.started:
        return _not_begun(now.wall - job.claimed_at)
    still_s = now.wall - (job.moved_at if job.moved_at is not None else job.claimed_at)
    if job.stall_s is not None and still_s >= job.stall_s:
        known = f"no progress for {duration(still_s)}, longer than its stall_s={job.stall_s:g}"
        return Health("hung", f"It hangs: its worker beats, but {known}. The worker is about to stop it, as stalled.")
    if job.stall_s is None and job.moved_at is not None and still_s > max(STILL_S, job.moved_at - job.claimed_at):
        moved = f"after it had moved for {duration(job.moved_at - job.claimed_at)}"
        known = f"it has been still for {duration(still_s)}, {moved}"
        return Health("hung", f"Perhaps it hangs: its worker beats, but {known}. {_limit(job, now)}")
    return None


def _not_begun(claimed_s: float) -> Health | None:
    if claimed_s < NOT_BEGUN_S:
        return None
    known = f"it was claimed {duration(claimed_s)} ago and is not said to have begun"
    return Health(
        "hung",
        f"Perhaps its worker hangs, or cannot save a result: it beats, but {known}. Look at the log of the worker, and "
        "restart it if this continues.",
    )


def _slow(job: Job, now: Moment, usual_s: float | None) -> Health | None:
    if not job.started or job.claimed_at is None:
        return None
    ran_s = now.wall - job.claimed_at
    lives = "its worker beats"
    if job.moved_at is not None:
        share = "" if job.progress is None else f" ({job.progress:.0%})"
        lives += f" and it moves, last {ago(job.moved_at, now)}{share}"
    if job.timeout_s is not None and ran_s >= job.timeout_s * NEAR_LIMIT:
        known = f"it has used {duration(ran_s)} of its timeout_s={job.timeout_s:g}"
        return Health("slow", f"It is slow: {lives}, but {known}. {_limit(job, now)}")
    if usual_s is not None and ran_s >= max(SLOW_LEAST_S, usual_s * SLOW_TIMES):
        known = f"it has run for {duration(ran_s)}, and its task usually takes {duration(usual_s)}"
        return Health("slow", f"It is slow: {lives}, but {known}. {_limit(job, now)}")
    return None


def _limit(job: Job, now: Moment) -> str:
    if job.timeout_s is not None and job.claimed_at is not None:
        left_s = job.claimed_at + job.timeout_s - now.wall
        return f"The worker stops it in {duration(left_s)}." if left_s > 0 else "The worker is about to stop it."
    missing = "timeout_s" if job.stall_s is not None else "timeout_s and no stall_s"
    return f"Nothing stops it but a person: it has no {missing}."


def _lease_left(job: Job, now: Moment) -> float:
    return (job.lease_until or now.lease) - now.lease


# --------------------------------------------------------------------------------- attempts that were ended

_SEEN_BY = {
    "exit": "its worker's process ended, and the supervisor saw it",
    "vanished": "its worker's process died or was cut off from the store",
    "restart": "its worker was started again, so the process before it has ended",
}
_CUT = "its worker's session with the server ended: its process died or was cut off from the server"
_EVIDENCE = {
    ("vanished", "lock"): "the host shows that its worker's process has ended",
    ("vanished", "boot"): "the machine was started again under its worker",
    ("vanished", "session"): _CUT,
    ("restart", "session"): _CUT,
}
_OF_AN_ATTEMPT = frozenset({"claimed", "succeeded", "failed", "timed_out", "stalled", "zombie", "released", "snoozed"})


@dataclass(frozen=True, slots=True)
class Ending:
    """An attempt that did not end by itself. `seq` names the line of the journal that says so."""

    seq: int
    at: float
    fence: int
    word: Word
    sentence: str


def endings(job: Job, events: Sequence[Event]) -> list[Ending]:
    """Say of each attempt of a job that was ended whether it was dead, hung or slow, oldest first."""
    late = {event.fence for event in events if event.kind == "stale_report"}
    return [
        Ending(event.seq, event.at, event.fence, word, f"{known}. {_next(event, job, events)}")
        for event in events
        for word, known in _what_it_was(event, late)
    ]


@dataclass(frozen=True, slots=True)
class Uncounted:
    """Losses of its worker that do not count against a job."""

    unrecorded: int  # nobody had recorded its start: perhaps it had begun, perhaps it waited for a slot
    innocent: int  # it was one of several jobs in a process that died, and did no harm since; or the store was away


def uncounted(job: Job, events: Sequence[Event]) -> Uncounted:
    """Return how many crashes of the job are not charged to it. Those before its budgets were reset are ignored."""
    lost = unrecorded = 0
    for event in events:
        if event.kind == "zombie":
            lost += 1
            unrecorded += event.detail.get("started") is False
        if fresh_since([event]):
            lost = unrecorded = 0
    return Uncounted(unrecorded, max(0, lost - unrecorded - job.crashes))


def fresh_since(events: Sequence[Event]) -> str | None:
    """Say since when the job's failures and crashes are counted; None: since it was added."""
    for event in reversed(events):
        sent_back = event.kind == "moved" and event.detail.get("rolling_back")
        if sent_back or event.detail.get("decision") == "undo":
            return "it began to roll back"
        if event.kind in ("revived", "resolved"):
            return "a person brought it back"
    return None


def ending_view(ending: Ending) -> dict[str, Any]:
    shown = asdict(ending)
    del shown["seq"]
    return {**shown, "at": iso(ending.at)}


def _what_it_was(event: Event, late: set[int]) -> Iterable[tuple[Word, str]]:
    match event.kind:
        case "zombie" if event.fence in late:
            yield "silent", "Taken for dead, but only frozen or cut off: it reported later, and was refused"
        case "zombie":
            yield "dead", f"Died: {_how_known(event.detail)}"
        case "stalled":
            yield "hung", "Hung: its worker lived, but it made no progress within its stall_s and was stopped"
        case "timed_out":
            yield "slow", "Too slow: its worker lived, but it still ran when its timeout_s was over and was stopped"


def _how_known(detail: dict[str, Any]) -> str:
    if detail.get("isolated"):
        return "its own process ended, and its worker saw it"
    if (seen := _EVIDENCE.get((str(detail.get("detector")), str(detail.get("evidence"))))) is not None:
        return seen
    silent_s = detail.get("seconds_since_beat")
    silence = f"no beat for {duration(silent_s)}" if isinstance(silent_s, int | float) else "no beat came"
    return _SEEN_BY.get(str(detail.get("detector")), f"{silence}, and its lease ran out")


def _next(event: Event, job: Job, events: Sequence[Event]) -> str:
    decision = str(event.detail.get("decision"))
    if decision == "retry" and not _claimed_since(event, job, events):
        return "Then it went back to its queue."
    return f"Then it was {DECIDED.get(decision, decision)}."


def _claimed_since(event: Event, job: Job, events: Sequence[Event]) -> bool:
    """Say whether another attempt began: the row tells of the last one, the journal of those before it that ended."""
    if job.claimed_at is not None and job.claimed_at > event.at:
        return True
    return any(each.kind in _OF_AN_ATTEMPT and each.fence > event.fence for each in events)
