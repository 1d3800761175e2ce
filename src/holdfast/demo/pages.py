"""The pages of the demo's store: a `holdfast server` of their own, a browser that shows them, and a wait for a key."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import termios
import tty
import webbrowser
from pathlib import Path

from holdfast.demo.processes import APP, environment

STOP_S = 5.0
_SAYS = re.compile(r"listening on (http://\S+)")


class PagesServer:
    """Serves the pages of a store on a free port of this machine. It recovers no job: that is left to the workers."""

    def __init__(self, folder: Path, url: str, *, opens: bool) -> None:
        self._log = folder / "pages.log"
        self._url = url
        self._opens = opens
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. It needs a moment until it has an address."""
        words = ["server", APP, "--db", self._url, "--port", "0", "--no-reaper", "--log-level", "warning"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast", *words],
                cwd=self._log.parent,
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def address(self) -> str | None:
        """Return where the pages are; None until they are served."""
        found = _SAYS.search(self._log.read_text("utf-8", errors="replace"))
        return found[1] if found else None

    def show(self, address: str) -> None:
        """Open the address in a browser, if a person is there and has one."""
        has_screen = sys.platform == "darwin" or any(map(os.environ.get, ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")))
        if self._opens and has_screen:
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(address)

    def close(self) -> None:
        """End it. Safe to repeat."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_key(descriptor: int) -> None:
    """Wait until a key is pressed on this terminal, or until it is gone."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)  # a key without Enter; Ctrl-C stays a signal
        select.select([descriptor], [], [])
        with contextlib.suppress(OSError):
            os.read(descriptor, 1)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
