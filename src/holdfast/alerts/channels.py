"""Send messages to the log or to a command; `webhook.py` has the third channel.

A channel sends one message at a time and says what happened; it does not raise and remembers nothing. Its name is what
may be shown of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import subprocess
import threading
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.alerts.messages import Message, one_line
from holdfast.clock import Clock, SystemClock
from holdfast.errors import UsageError

log = logging.getLogger("holdfast.alerts")

COMMAND_S = 10.0  # how long a command may take
OUTPUT_MAX = 2_000  # bytes of what it prints; the rest is read and dropped, so that it does not wait for us
LOOK_S = 0.05


class Sent(NamedTuple):
    """The result of sending a message. `again`: another try may succeed."""

    told: bool
    words: str
    again: bool = False


class Channel(Protocol):
    """See the module's docstring."""

    name: str

    @property
    def identity(self) -> str:
        """Return what makes two of them the same channel. Never shown, never logged."""
        ...

    def send(self, message: Message, url: str) -> Sent:
        """Send one message about the store at `url`, in bounded time. Does not raise."""
        ...

    def close(self) -> None:
        """Break off what is being sent: the program ends, and has waited long enough."""
        ...


class LogChannel:
    """Writes a line to the log of this process, under `holdfast.alerts`."""

    name = "log"
    identity = "log"

    def send(self, message: Message, url: str) -> Sent:
        level = logging.WARNING if message.status in ("new", "more") else logging.INFO
        log.log(level, "alert: %s: %s", message.kind, one_line(message.text, 600))
        return Sent(True, "logged")

    def close(self) -> None: ...


class CommandChannel:
    """Runs a program, without a shell, with the message as one line of JSON on its stdin.

    It gets our environment without its secrets, and a time limit; then it is killed with its process group.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        secrets: Collection[str] = (),
        limit_s: float = COMMAND_S,
        clock: Clock | None = None,
    ) -> None:
        if isinstance(argv, str) or not argv or not all(isinstance(word, str) and "\0" not in word for word in argv):
            raise UsageError('command= is a list of words, such as ["notify", "--urgent"]; no shell reads it')
        self._argv = tuple(argv)
        self._secrets = frozenset(secrets)
        self._limit_s = limit_s
        self._clock = clock or SystemClock()
        self._closing = threading.Event()
        self.name = f"command {one_line(os.path.basename(argv[0]), 80)}"  # its arguments may be nobody's business

    @property
    def identity(self) -> str:
        return repr(self._argv)

    def send(self, message: Message, url: str) -> Sent:
        try:
            process = subprocess.Popen(
                self._argv,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._environment(url),
                start_new_session=True,  # a group of its own: it ends with all that it started
            )
        except OSError as error:
            return Sent(False, f"could not be started ({error.strerror})")
        with process:
            try:
                code, output = self._attend(process, message.body(url) + b"\n")
            finally:
                _kill_group(process)
        if code is None:
            return Sent(False, f"did not end within {self._limit_s:g} s and was killed", again=True)
        words = f"ended with code {code}" if code >= 0 else f"was killed by signal {-code}"
        said = one_line(output.decode("utf-8", "replace"), 200)
        return Sent(code == 0, f"{words}: {said}" if said and code else words, again=code != 0)

    def close(self) -> None:
        self._closing.set()

    def _environment(self, url: str) -> dict[str, str]:
        """Leave out our own settings, and whatever has the value of a secret of ours: the store's address is one."""
        return {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("HOLDFAST_") and name != "PGPASSWORD" and value not in {*self._secrets, url}
        }

    def _attend(self, process: subprocess.Popen[bytes], body: bytes) -> tuple[int | None, bytes]:
        """Feed it and hear it out. The exit code is None when its time was up first."""
        give_up_at = self._clock.lease() + self._limit_s
        into: Any = process.stdin
        out: Any = process.stdout
        with into, contextlib.suppress(BrokenPipeError):  # it need not read
            into.write(body)  # less than a pipe holds: it does not block
        output, end = b"", out.fileno()
        os.set_blocking(end, False)
        open_ = True
        while process.poll() is None:
            if self._clock.lease() >= give_up_at or self._closing.is_set():
                return None, output
            if open_ and select.select([end], [], [], LOOK_S)[0]:
                open_, output = _more(end, output)
            elif not open_:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LOOK_S)
        while open_ and len(output) < OUTPUT_MAX and select.select([end], [], [], 0)[0]:
            open_, output = _more(end, output)
        return process.returncode, output


def _more(end: int, output: bytes) -> tuple[bool, bytes]:
    try:
        piece = os.read(end, 65_536)
    except BlockingIOError:
        return True, output
    return bool(piece), (output + piece)[:OUTPUT_MAX]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """Kill it and its group while its id is still its own: before it is waited for."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
