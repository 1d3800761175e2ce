"""Store jobs whose keys have rules: the same steps on every store, inside one transaction for each call.

Jobs without such a rule never come here. `core/keys.py` decides; a store brings the rows (`KeyRows`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec.structs import replace

from holdfast.core import keys
from holdfast.core.acts import Move
from holdfast.core.keys import KeyHold, Taken
from holdfast.core.records import Job, KeyRule, NewJob
from holdfast.errors import StoreLocked
from holdfast.failpoints import point
from holdfast.stores.protocol import Added, Reply

TRIES = 10  # a plain enqueue may take a live key between our look and our insert


class KeyRows(Protocol):
    """The rows that keys are about, in an open transaction. A row that was read stays as it is until the end of it."""

    def now(self) -> float:
        """Return the wall time of the store."""
        ...

    def knows(self, job_id: str) -> bool:
        """Say whether there is a job with this id."""
        ...

    def live(self, key: str) -> Job | None:
        """Return the live job that has the key with the scope "live"."""
        ...

    def held(self, key: str, new_id: str) -> KeyHold | None:
        """Return the job that took the key with any other scope; nobody else takes it before the transaction ends."""
        ...

    def row(self, job_id: str) -> Job | None:
        """Return the job."""
        ...

    def add(self, jobs: Sequence[NewJob], /) -> list[Added]:
        """Store jobs whose keys have no rules."""
        ...

    def take(self, key: str, hold: KeyHold) -> None:
        """Give the key to a job that was just stored."""
        ...

    def pass_on(self, job_id: str) -> None:
        """Take its key from a job."""
        ...

    def move(self, move: Move) -> Reply:
        """Act on a job as `Store.move` does."""
        ...

    def rewrite(self, job_id: str, payload: str, expires_at: float | None) -> None:
        """Give a job another payload and another expiry."""
        ...


def add(rows: KeyRows, jobs: Sequence[NewJob]) -> list[Added]:
    """Store jobs, and answer in their order. Those whose keys have rules come last, by their keys: two calls never wait
    for each other."""
    answers: dict[int, Added] = {}
    plain = [place for place, job in enumerate(jobs) if not job.is_keyed]
    if plain:
        answers |= dict(zip(plain, rows.add([jobs[place] for place in plain]), strict=True))
    keyed = [(job.key or "", place) for place, job in enumerate(jobs) if job.is_keyed]
    for key, place in sorted(keyed):
        answers[place] = _add(rows, jobs[place], key, jobs[place].key_rule or KeyRule())
    return [answers[place] for place in range(len(jobs))]


def _add(rows: KeyRows, new: NewJob, key: str, rule: KeyRule) -> Added:
    if rows.knows(new.id):
        return Added(new.id, True)
    if rule.scope == "live":
        return _add_live(rows, new, key, rule)
    hold = rows.held(key, new.id)
    now = rows.now()
    job = rows.row(hold.job_id) if hold is not None else None
    if hold is not None and keys.is_held(hold, job, now):
        found = keys.taken(job, new, rule, now)
        _apply(rows, hold.job_id, found)
        if not found.stores:
            return Added(hold.job_id, True)
    [added] = rows.add([replace(new, key=None, key_rule=None)])
    rows.take(key, keys.hold_for(new, rule, now))
    return added


def _add_live(rows: KeyRows, new: NewJob, key: str, rule: KeyRule) -> Added:
    added = Added(new.id, True)
    for _ in range(TRIES):
        if (job := rows.live(key)) is not None:
            found = keys.taken(job, new, rule, rows.now())
            _apply(rows, job.id, found)
            if not found.stores:
                return Added(job.id, True)
        [added] = rows.add([replace(new, key_rule=None)])
        if not added.existed:
            break
    return added


def _apply(rows: KeyRows, job_id: str, found: Taken) -> None:
    if found.move is not None and (answer := rows.move(found.move)) is not Reply.ACCEPTED:
        raise StoreLocked(
            f"job {job_id} has the key, and another transaction holds its row or its workflow ({answer.value}); "
            "nothing was stored, try again later"
        )
    if found.payload is not None:
        rows.rewrite(job_id, found.payload, found.expires_at)
    if found.passes:
        rows.pass_on(job_id)
    if found.move is not None:
        point("key.middle")
