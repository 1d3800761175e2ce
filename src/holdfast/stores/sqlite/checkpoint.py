"""Let one process at a time copy the WAL back into the file, on a SQLite where two in a row can damage it.

The defect, in every SQLite before 3.51.3 but the repaired 3.50.7 and 3.44.6: a checkpoint begins by reading how far the
WAL goes. If all of that has been copied already, by another connection, the next commit may restart the WAL; when it
does so before the checkpoint has looked how much is left to copy, the checkpoint takes the old length for the new one
and notes that frames were copied which never were. They are lost, and with them the file.

So on such a SQLite our connections take turns with a lock that only one connection of all processes can have. A
connection that has it at its commit keeps it until the checkpoint that follows; the others commit without one. A commit
adds to the WAL, and nobody else copies meanwhile, so every checkpoint begins with something left to copy; and a WAL
with something left to copy is not restarted by any connection.

The lock is `flock` on the `-wal` file itself. SQLite puts no lock of its own there, so closing it once more drops none;
the file has the right owner and mode, and stays the same one as long as a connection is open. The kernel drops the lock
when its process dies. Connections of other programs know nothing of turns: docs/adr/0008 says what that means.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path

from holdfast.stores.sqlite.protected import OwnPath

PAGES = 1000  # SQLite's own: from this many pages in the WAL on, a commit is followed by a checkpoint


def has_the_defect(version: tuple[int, ...] = sqlite3.sqlite_version_info) -> bool:
    """Say whether this SQLite can damage a file in WAL mode when several connections checkpoint it."""
    return version < (3, 44, 6) or (3, 45) <= version < (3, 50, 7) or (3, 51) <= version < (3, 51, 3)


class CheckpointLock:
    """The right to checkpoint after a commit. Used by one thread at a time: the one that holds the write lock."""

    def __init__(self, database: Path) -> None:
        self._wal = OwnPath(f"{database}-wal")
        self._descriptor: int | None = None

    def commit(self, connection: sqlite3.Connection) -> None:
        """Commit, and let SQLite checkpoint after it only if it is our turn."""
        if self.take():
            try:
                connection.execute("COMMIT")
            finally:
                self.drop()
            return
        connection.execute("PRAGMA wal_autocheckpoint=0")
        try:
            connection.execute("COMMIT")
        finally:
            connection.execute(f"PRAGMA wal_autocheckpoint={PAGES}")

    def take(self) -> bool:
        """Take the turn unless another thread has it."""
        try:
            # Opened each time: asking whether it is still the same file makes the kernel note the time of every write.
            self._descriptor = os.open(self._wal, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.forget()
            return False
        return True

    def drop(self) -> None:
        """Give the turn back."""
        if self._descriptor is not None:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # not by closing: a forked child may have the descriptor too
        self.forget()

    def forget(self) -> None:
        """Let go of the file, as the child of a fork must: the descriptor is its parent's, and so is the turn."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
