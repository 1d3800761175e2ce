"""A claim from a queue with limits, a rate or groups: what is free, whose turn it is, and what that moves on.

The write lock is held from before the count until after the claim, so a count is exact.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

from holdfast.core import limits
from holdfast.core.limits import UNGROUPED, Group, Queue
from holdfast.stores import row_json
from holdfast.stores.sqlite import contradictions
from holdfast.stores.sqlite.contradictions import Hold
from holdfast.stores.sqlite.rows import Q, text_of


def take(db: sqlite3.Connection, queue: Queue, wanted: int, values: Mapping[str, Any], hold: Hold) -> tuple[int, bool]:
    """Claim up to `wanted` jobs of the queue; return how many, and whether all groups were looked at.

    values: as for the statement `claim`. hold: see contradictions.py.
    """
    held = queue.limits
    if held.any and not values["started"]:
        return 0, True  # a place must not lie in a buffer
    asked = {**values, "queue": queue.name, "counted": held.counts, "group_limit": held.group_limit}
    running = 0
    if held.limit is not None:
        running = db.execute(Q["claim_places"], {"queue": queue.name, "most": held.limit}).fetchone()[0]
    booked_until = _booked_until(db, queue)
    free = limits.room(held, running, booked_until, values["wall"], wanted)
    taken, whole = 0, True
    lanes = row_json.rows_from(text_of(db, "claim_priorities", asked)) if free else []
    for priority, cursor in lanes:
        lane = {**asked, "priority": priority, "cursor": cursor if cursor is not None else UNGROUPED}
        got, saw_all = _take_turns(db, lane, free - taken, hold)
        taken += got
        whole = whole and saw_all
    if held.rate is not None:
        mark = limits.mark_after(held.rate, held.burst, booked_until, values["wall"], taken)
        if mark is not None:
            db.execute(Q["claim_booked"], {"queue": queue.name, "booked_until": mark})
    return taken, whole


def _booked_until(db: sqlite3.Connection, queue: Queue) -> float:
    """Return the mark of the rate as it is now: another turn of this claim may have moved it."""
    if queue.limits.rate is None:
        return 0.0
    return float(row_json.queues_from(text_of(db, "queues", {"queue": queue.name}))[0].booked_until)


def _take_turns(db: sqlite3.Connection, lane: dict[str, Any], free: int, hold: Hold) -> tuple[int, bool]:
    """Claim from one priority; return how many jobs, and whether all of its groups were looked at."""
    if free <= 0:
        return 0, True
    bounds = {"enough": free + limits.SPARE_GROUPS, "probes": limits.PROBES_MAX, "all": limits.LIMIT_MAX}
    walked = row_json.rows_from(text_of(db, "claim_walk", {**lane, **bounds}))
    found = [Group(name, places) for name, places in walked if places > 0]
    due: dict[str, list[int]] = {}
    if found:
        names = row_json.encode([group.name for group in found]).decode()
        asked = {**lane, "groups": names, "most": limits.most_of_each(free, len(found))}
        for name, seq in row_json.rows_from(text_of(db, "claim_candidates", asked)):
            due.setdefault(name, []).append(seq)
    turns, taken = list(limits.take_turns(found, due, free)), 0
    if turns:
        these = {**lane, "seqs": row_json.encode([seq for _, seq in turns]).decode()}
        taken = contradictions.claim(db, "claim_these", these, hold)
    whole = limits.saw_all(len(found), len(walked), free)
    names_taken = [name for name, _ in turns]
    cursor = limits.next_cursor(lane["cursor"], names_taken, free, walked[-1][0] if walked else None, whole=whole)
    if cursor != lane["cursor"]:
        db.execute(Q["claim_turn"], {**lane, "cursor": cursor})
    return taken, whole
