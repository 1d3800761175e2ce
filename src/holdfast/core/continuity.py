"""Compare what a store reports about itself with what this process saw before: is it still the same store?

A store has an identity, and counters that only rise: its incarnation, the beats of its workers, how often rows were
removed. A job that is there stays until it is removed, and one whose outcome was acknowledged does not run under the
same claim again. A store that says otherwise was replaced, rewound or emptied. One missing job is not enough: a person
may have deleted it with SQL, and that must not stop every worker.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["replaced", "rewound", "emptied"]
Evidence = Literal[
    "identity",
    "incarnation",
    "beats",
    "worker",
    "removals",
    "settled job",
    "writes",
    "known job",
    "truncate",
    "wal",
    "shm",
    "file",
    "copy",  # `seen`, the identity of another store, is copied into this one, and the copy has not ended
    "moved",  # this store was, or is being, copied to the one whose identity is `seen`
]


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The identity and the counters of a store, as one process reads them."""

    schema: int
    works_with: int  # the schema that a program must know at least
    identity: str
    at: float  # when it was asked, by the clock of the store
    incarnation: int
    accepted_at: float  # when this incarnation began
    removals: int  # how often jobs or workers were removed
    beats: int | None  # of the worker that asks; None: it has no row
    beats_of_all: int  # of all workers that have a row; to enrol counts as one
    newest: list[str]  # the last two jobs
    missing: list[str]  # of the jobs that were asked for
    runs_again: bool  # the job whose settled lease the worker has named runs under that very lease
    doubts: int  # that nobody has answered
    uncounted: bool = False  # a worker lives whose older program does not count what it removes
    forgotten: int = 0  # writes that were acknowledged to this process, and that the store does not count any more


class Doubt(msgspec.Struct, frozen=True):
    """One reason to believe that the store is not what it was, with what was seen before and what was found now."""

    kind: Kind
    evidence: Evidence
    seen: str
    found: str
    worker: str = ""  # the name of the process that noticed; empty: the store itself
    at: float = 0.0


def is_accepted(seen: Standing, now: Standing) -> bool:
    """Say whether a person has accepted the store since it was last seen.

    Another store may have a higher incarnation, and so may an older copy of this one. Nobody has accepted them now.
    """
    same = now.identity == seen.identity
    return same and now.incarnation > seen.incarnation and now.accepted_at >= seen.at


def compare(before: Standing, beats: int, now: Standing) -> Doubt | None:
    """Return what does not fit. `beats`: how many of the worker's beats the store has acknowledged.

    If a person has accepted the store since, nothing is compared.
    """
    if is_accepted(before, now):
        return None
    if now.identity != before.identity:
        return Doubt("replaced", "identity", before.identity, now.identity)
    if now.incarnation != before.incarnation:
        return Doubt("rewound", "incarnation", str(before.incarnation), str(now.incarnation))
    if now.forgotten > before.forgotten:
        return Doubt("rewound", "writes", str(before.forgotten), str(now.forgotten))
    if now.removals < before.removals:
        return Doubt("rewound", "removals", str(before.removals), str(now.removals))
    if now.runs_again:
        return Doubt("rewound", "settled job", "ended", "running")
    if now.beats is not None and now.beats < beats:
        return Doubt("rewound", "beats", str(beats), str(now.beats))
    if now.removals > before.removals:  # a person or the retention has removed rows: those that are missing, perhaps
        return None
    if now.beats is None and before.beats is not None:
        return Doubt("rewound", "worker", "enrolled", "missing")
    if before.uncounted or now.uncounted:
        return None
    if now.beats_of_all < before.beats_of_all:
        return Doubt("rewound", "beats", str(before.beats_of_all), str(now.beats_of_all))
    if len(now.missing) > 1 or (now.missing and not now.newest):
        return Doubt("emptied", "known job", min(now.missing), "missing")
    return None
