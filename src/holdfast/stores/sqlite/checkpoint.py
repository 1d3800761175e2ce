"""Who may copy the WAL back into the file, on a SQLite that can damage it when two do so one right after the other.

The defect, in every SQLite before 3.51.3 but the repaired 3.50.7 and 3.44.6: a checkpoint begins by reading how far the
WAL goes. If all of that has been copied already, by another connection, the next commit may start the WAL anew; when it
does so before the checkpoint has looked how much is left to copy, the checkpoint takes the old length for the new one
and notes that frames were copied which never were. They are lost, and with them the file.

So on such a SQLite our connections never checkpoint by themselves. Whoever is about to commit and finds the WAL grown
takes a turn: a lock that only one connection of all processes can have. It keeps the turn from before its commit until
the checkpoint after it. The commit adds to the WAL and nobody else copies, so every checkpoint begins with something
left to copy; and a WAL with something left to copy is not started anew by anybody.

The lock is `flock` on the `-wal` file itself. SQLite puts no lock of its own there, so opening and closing it once more
drops none; the file has the right owner and mode, and stays the same one as long as a connection is open. The kernel
drops the lock when its process dies. Connections of other programs know nothing of turns: docs/adr/0008 says what that
means.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

PAGES = 1000  # SQLite's own: from so many pages in the WAL on, a commit is followed by a checkpoint
GROWN = 1_048_576  # bytes of the WAL file below which there cannot be so many, whatever the size of a page


def has_the_defect(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> bool:
    """Say whether this SQLite can damage a file in WAL mode when several connections checkpoint it."""
    return version < (3, 44, 6) or (3, 45) <= version < (3, 50, 7) or (3, 51) <= version < (3, 51, 3)


class Turn:
    """The right to checkpoint after a commit. Used by one thread at a time: the one that holds the write lock."""

    def __init__(self, database: Path) -> None:
        self._wal = f"{database}-wal"
        self._descriptor: int | None = None

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit; with a checkpoint after it if the WAL has grown and nobody else is at it."""
        if not self._take():
            connection.execute("COMMIT")
            return
        try:
            connection.execute(f"PRAGMA wal_autocheckpoint={PAGES}")
            connection.execute("COMMIT")
        finally:
            connection.execute("PRAGMA wal_autocheckpoint=0")
            self.drop()

    def drop(self) -> None:
        """Give the turn back."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a forked child may have the descriptor too
        self.forget()

    def forget(self) -> None:
        """Let go of the descriptor; for a forked child, which must not end its parent's turn nor prolong it."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _take(self) -> bool:
        try:
            if os.stat(self._wal).st_size < GROWN:
                return False
            self._descriptor = os.open(self._wal, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # somebody else's turn, or no WAL: a checkpoint can wait
            self.drop()
            return False
        return True
