"""The folder and environment that a worker's processes are started with, whatever its handlers change later."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import NoReturn


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

    def start_again(self) -> NoReturn:
        """Replace this process by a new one, with the same pid, arguments, folder and environment."""
        if self.folder is not None:
            os.chdir(self.folder)
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], self.environment)  # noqa: S606
