"""Divides the chores of a fleet: one process of all that serve a schema does each of them.

A role is a session advisory lock: it is free at once when its holder dies. It makes the fleet cheaper, and nothing
relies on it: a holder may be frozen with its session open. So a process that looks raises a number, a sequence, with
every look. A process that stands by compares the number each time that it asks for the role. If no process has looked
for `SILENT_S`, it looks itself, until the number shows that another process looks.
"""

from __future__ import annotations

SILENT_S = 3.0  # a role whose holder has not looked for this long is done by another process as well
TURN_S = 10.0  # where this user may not use the sequence, every process looks this rarely,
TURN_LOOKS_S = 3.0  # for long enough to believe what it sees


class Role:
    """One chore, as one process knows it. Its thread of the liveness session calls `told`, and others ask it."""

    def __init__(self) -> None:
        self.is_wanted = False  # this process has a thread that does the chore
        self.is_held = False
        self.is_done_elsewhere = False  # another process has looked of late
        self._acts = False  # in the place of a holder that is silent
        self._number: int | None = None
        self._own: set[int] = set()  # the numbers that our own looks gave
        self._seen_at = float("-inf")  # when others were last seen to look

    @property
    def is_ours(self) -> bool:
        """Say whether this process is to look."""
        return self.is_held or self._acts

    @property
    def asks(self) -> bool:
        """Say whether to ask for the role."""
        return self.is_wanted and not self.is_held

    def looked(self, number: int | None) -> None:
        """Note the number that a look of ours has raised."""
        if number is not None:
            self._own.add(number)

    def told(self, held: bool | None, number: int | None, now: float, turn: float) -> None:
        """Take what the server says: whether we got the role, and the number of the last look. `turn`: how far this
        process is in its turn, for who may not know the number."""
        self.is_held = self.is_held or bool(held)
        if number is None:
            self.is_done_elsewhere = False
            self._acts = self.is_wanted and turn % TURN_S < TURN_LOOKS_S
            return
        if self._number is None or number < self._number:  # the first time, or the schema was made again
            others, self._seen_at = 0, now
        else:
            others = number - self._number - sum(self._number < each <= number for each in self._own)
        self._own = {each for each in self._own if each > number}
        self._number = number
        if others > 0:
            self._seen_at = now
        self.is_done_elsewhere = others > 0 or (self.is_done_elsewhere and now - self._seen_at <= SILENT_S)
        self._acts = self.is_wanted and not self.is_held and now - self._seen_at > SILENT_S

    def cut(self) -> None:
        """Note that the session has ended, and the lock with it."""
        self.is_held = self._acts = self.is_done_elsewhere = False
        self._number = None
        self._own = set()
