"""A real `holdfast server`, as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

HOLDFAST = (sys.executable, "-m", "holdfast")


class ServerProcess:
    """Started at once; `url` is known when it answers. A context manager that ends it."""

    def __init__(self, folder: Path, *args: str, db: str = "sqlite:///jobs.db", **env: str) -> None:
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [*HOLDFAST, "--db", db, "server", "--port", "0", *args],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder), **env},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started = threading.Event()
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self.started.wait(60) or not self.url:
            self.process.kill()
            raise AssertionError("".join(self.log))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"listening on (\S+)/(?:$|\")", line.rstrip()):
                self.url = found[1]
                self.started.set()
        self.started.set()

    def until_said(self, words: str) -> None:
        """Wait until its log has these words."""
        give_up_at = time.monotonic() + 60
        while not any(words in line for line in self.log):
            assert time.monotonic() < give_up_at, "".join(self.log)
            time.sleep(0.01)

    def stop(self, by: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(by)
        code = self.process.wait(30)
        self._reader.join(10)
        if self.process.stderr is not None:
            self.process.stderr.close()
        return code

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.stop(signal.SIGKILL)
