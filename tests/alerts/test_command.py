"""The command channel with real programs: no shell, no secrets, a time limit for the whole group, bounded output."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from holdfast.alerts.channels import OUTPUT_MAX, CommandChannel, Sent, _more
from holdfast.alerts.messages import a_test
from holdfast.alerts.notifier import Outbox
from holdfast.clock import Clock, SystemClock
from tests.alerts.waiting import PATIENCE_S, until

MESSAGE = a_test(1_700_000_000.0)
STORE = "postgresql://app:hunter2@db/jobs"


def run(program: str, *args: str, secrets: tuple[str, ...] = (), clock: Clock | None = None) -> Sent:
    argv = [sys.executable, "-c", program, *args]
    return CommandChannel(argv, limit_s=PATIENCE_S, secrets=secrets, clock=clock).send(MESSAGE, STORE)


class Sandglass(SystemClock):
    """All of a command's time is over once it has written into this file, and not before, however slow it is.

    It must read its message first: only then has its time begun for certain.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def lease(self) -> float:
        return PATIENCE_S if is_written(self._file) else 0.0


def is_written(file: Path) -> bool:
    return file.exists() and file.read_text() != ""


def test_the_message_is_on_stdin_and_the_words_reach_no_shell(tmp_path: Path) -> None:
    kept = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read() + sys.argv[2])"
    assert run(kept, str(tmp_path / "told"), "$HOME; echo `id`") == Sent(True, "ended with code 0")
    body, word = (tmp_path / "told").read_text().split("\n")
    assert json.loads(body)["kind"] == "test"
    assert word == "$HOME; echo `id`"


def test_the_exit_code_and_a_little_of_what_it_said_are_told() -> None:
    assert run("print('no\\nroute'); raise SystemExit(3)") == Sent(False, "ended with code 3: no route", again=True)
    assert run("import os; os.kill(os.getpid(), 9)").words == "was killed by signal 9"


def test_a_program_that_is_not_there_is_told_and_raises_nothing() -> None:
    sent = CommandChannel(["/no/such/program"]).send(MESSAGE, STORE)
    assert sent == Sent(False, "could not be started (No such file or directory)")


def test_it_need_not_read_what_it_is_told() -> None:
    assert run("import os; os.close(0)").told


def test_its_environment_has_none_of_our_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DB", STORE)
    monkeypatch.setenv("HOLDFAST_ALERT_SECRET", "s3cret-s3cret")
    monkeypatch.setenv("HOLDFAST_SERVER_TOKEN", "t0ken")
    monkeypatch.setenv("PGPASSWORD", "hunter2")
    monkeypatch.setenv("HOOK_KEY", "s3cret-s3cret")
    monkeypatch.setenv("DATABASE_URL", STORE)
    monkeypatch.setenv("PAGER_TOKEN", "the command's own")
    written = "import os, sys, json; open(sys.argv[1], 'w').write(json.dumps(dict(os.environ)))"
    assert run(written, str(tmp_path / "env"), secrets=("s3cret-s3cret",)).told
    text = (tmp_path / "env").read_text()
    assert "s3cret" not in text
    assert "hunter2" not in text
    assert "t0ken" not in text
    assert json.loads(text)["PAGER_TOKEN"] == "the command's own"


def test_after_its_time_it_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    program = """
import subprocess, sys, time
sys.stdin.read()
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(240)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(240)
"""
    began_at = SystemClock().lease()
    sent = run(program, str(tmp_path / "pid"), clock=Sandglass(tmp_path / "pid"))
    assert sent == Sent(False, f"did not end within {PATIENCE_S:g} s and was killed", again=True)
    assert SystemClock().lease() - began_at < 200  # it was not waited for
    grandchild = int((tmp_path / "pid").read_text())
    until(lambda: not lives(grandchild))


def lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_endless_output_neither_fills_memory_nor_stops_the_clock(tmp_path: Path) -> None:
    program = """
import os, sys
sys.stdin.read()
for _ in range(100):
    os.write(1, b"x" * 65536)
open(sys.argv[1], "w").write("it is being read")
while True:
    os.write(1, b"x" * 65536)
"""
    sent = run(program, str(tmp_path / "much"), clock=Sandglass(tmp_path / "much"))
    assert "was killed" in sent.words
    sent = run("import sys; sys.stdout.write('x' * 1_000_000); sys.exit(1)")
    assert len(sent.words) < 250 < OUTPUT_MAX


def test_no_more_is_kept_of_its_output_than_is_shown() -> None:
    out, into = os.pipe()
    os.write(into, b"x" * 60_000)
    assert _more(out, b"y" * 100) == (True, b"y" * 100 + b"x" * (OUTPUT_MAX - 100))
    os.close(into)
    assert _more(out, b"") == (False, b"")
    os.close(out)


def test_what_it_leaves_running_does_not_hold_us_up(tmp_path: Path) -> None:
    """It ended, but somebody it started still has its stdout."""
    program = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(240)"])
open(sys.argv[1], "w").write(str(child.pid))
"""
    began_at = SystemClock().lease()
    sent = run(program, str(tmp_path / "pid"))
    took_s = SystemClock().lease() - began_at
    assert sent == Sent(True, "ended with code 0")
    with suppress(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 9)
    assert took_s < 200


def test_the_end_of_the_program_ends_a_command_that_still_runs(tmp_path: Path) -> None:
    program = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(240)"
    channel = CommandChannel([sys.executable, "-c", program, str(tmp_path / "pid")], limit_s=60)
    outbox = Outbox(channel, SystemClock(), STORE)
    outbox.put(MESSAGE)
    until(lambda: is_written(tmp_path / "pid"))
    outbox.close(0.1)
    until(lambda: not lives(int((tmp_path / "pid").read_text())))


def test_its_arguments_are_not_shown() -> None:
    assert CommandChannel(["/usr/bin/notify", "--key", "s3cret"]).name == "command notify"
