"""Remember where the live rows of each lane begin, so that a claim does not read dead entries.

A job that was claimed leaves a dead entry in the index of ready jobs. Normally it is soon cleared away. But while any
transaction of the database is old (a report, a forgotten session, a standby's query) nothing can be, and the dead
entries pile up exactly where the next claim begins to read: after an hour, hundreds of thousands.

So this process remembers the last row that it claimed in each lane (queue and priority) and begins behind it. That is
no more than a hint. A job that comes back in its place, after a crash or a release, lies before it: its settlement
notifies all listeners where, and the next claim begins there. Other jobs that lie before it (committed late, with an
instant in the past, passed over because they may not be claimed ahead, in a new lane) are found by a look at
everything; while that is slow, it is made rarely enough to take a twentieth of the time. While it is
fast, as it nearly always is, every look is at everything, and the order of jobs is exact.
"""

from __future__ import annotations

import msgspec

from holdfast.stores import row_json

SLOW_S = 0.005  # a look at everything that takes longer, not counting its jobs, read through dead entries
PER_JOB_S = 0.00005
SHARE = 20
LONGEST_S = 10.0  # the longest that one may be put off
SURE = 3  # how many slow ones in a row count: one alone may be the machine's
Lane = tuple[str, int]  # queue and priority
LanePosition = tuple[float, int]  # run_at and seq

_places = msgspec.json.Decoder(list[tuple[str, int, float, int]])


class ClaimCursor:
    """See the module's docstring. One for each store of a process; threads may share it, because all of it is hints."""

    def __init__(self) -> None:
        self._ends: dict[Lane, LanePosition] = {}
        self._returned: dict[Lane, LanePosition] = {}  # where jobs have come back since the last claim began
        self._slow = 0
        self._full_again_at = 0.0

    def lanes(self, now: float) -> str | None:
        """Return where to begin in each lane, as JSON; None to look at everything."""
        if self._slow < SURE or now >= self._full_again_at:
            return None
        while self._returned:
            lane, place = self._returned.popitem()
            self._ends[lane] = min(place, self._ends.get(lane, place))
        return row_json.encode([[*lane, *end] for lane, end in self._ends.items()]).decode()

    def come_back(self, places: str | None) -> None:
        """Note where jobs have come back, as a settlement reported it; "" is other news, None: it may have been missed.

        Raises `msgspec.DecodeError` for what no settlement tells.
        """
        if places is None:
            self._full_again_at = 0.0
        if not places or self._slow < SURE:
            return
        for queue, priority, run_at, seq in _places.decode(places):
            place = (run_at, seq - 1)  # a claim begins behind it
            self._returned[queue, priority] = min(place, self._returned.get((queue, priority), place))

    def looked(self, lanes: str | None, took_s: float, jobs: int, ends: str, now: float) -> None:
        """Note what a look has found: how long it took the server, how many jobs, and the last of each lane."""
        if lanes is None:
            if took_s <= SLOW_S + PER_JOB_S * jobs:
                self._slow = 0
                self._ends.clear()
                self._returned.clear()
            else:
                self._slow += 1
                self._full_again_at = now + min(LONGEST_S, took_s * SHARE)
        for queue, priority, run_at, seq in row_json.rows_from(ends):
            self._ends[queue, priority] = (run_at, seq)
