"""Start a worker's processes in the folder and environment of its start, even if handlers change these later."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from typing import NoReturn

PYTHON = (sys.executable, "-P", "-m")  # -P: a project's own json.py must not take the place of Python's


@dataclass(frozen=True, slots=True)
class Launch:
    """A handler may call `os.chdir` or set variables; the processes that the worker starts later do not inherit it."""

    folder: str | None  # None: it had been deleted already
    environment: dict[str, str]

    @classmethod
    def now(cls) -> Launch:
        """Return those of this process. Call it before any code of the user's runs."""
        folder = None
        with contextlib.suppress(OSError):
            folder = os.getcwd()
        return cls(folder, dict(os.environ))

    def start(
        self, program: str, *shared: int, own_session: bool = False
    ) -> tuple[subprocess.Popen[bytes], socket.socket]:
        """Start one of our programs; return its process and our end of a line to it.

        Its arguments are the descriptors that it inherits: its end of the line, and those in `shared`. Raises `OSError`
        when the system gives no process.
        """
        ours, theirs = socket.socketpair()
        inherited = (theirs.fileno(), *shared)
        try:
            process = subprocess.Popen(
                [*PYTHON, program, *map(str, inherited)],
                stdin=subprocess.DEVNULL,
                pass_fds=inherited,
                start_new_session=own_session,
                cwd=self.folder,
                env=self.environment,
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return process, ours

    def start_again(self) -> NoReturn:
        """Replace this process by a new one, with the same pid, arguments, folder and environment."""
        if self.folder is not None:
            os.chdir(self.folder)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], self.environment)  # noqa: S606
