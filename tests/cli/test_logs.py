"""The log of a worker: nobody has to read it."""

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.cli import logs
from holdfast.cli.json_logs import JsonFormatter
from holdfast.cli.logs import PatientHandler
from holdfast.runtime.log_fields import about
from tests import factory
from tests.server.process import HOLDFAST, ServerProcess


class Reader:
    """Whoever reads stderr, or does not."""

    def __init__(self) -> None:
        self.descriptor, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4 * 4096)
        os.set_blocking(writing, False)  # a handler that would wait fails
        self.stderr = os.fdopen(writing, "w")

    def read(self) -> str:
        os.set_blocking(self.descriptor, False)
        return os.read(self.descriptor, 1_000_000).decode()

    def close(self) -> None:
        os.close(self.descriptor)
        self.stderr.close()


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    reader = Reader()
    monkeypatch.setattr(logs, "sys", SimpleNamespace(stderr=reader.stderr))  # not the one that pytest reads
    monkeypatch.setattr(logs, "WAIT_S", 0.01)
    yield reader
    reader.close()


def say(handler: PatientHandler, text: str) -> None:
    handler.handle(logging.LogRecord("holdfast", logging.INFO, "", 0, text, None, None))


def test_a_log_that_nobody_reads_stops_nobody_and_says_later_what_is_missing(reader: Reader) -> None:
    handler = PatientHandler()
    for number in range(20):
        say(handler, f"{number} {'x' * 4000}")
    assert [line.split()[0] for line in reader.read().splitlines()] == ["0", "1", "2", "3"]
    say(handler, "somebody reads again")
    assert reader.read() == "16 log lines are missing here: the reader of the log was too slow\nsomebody reads again\n"


def test_a_line_of_any_length_and_any_text_is_written_whole(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    handler = PatientHandler()
    say(handler, "a lone surrogate: \ud800")
    assert reader.read() == "a lone surrogate: \\ud800\n"
    fcntl.fcntl(reader.descriptor, fcntl.F_SETPIPE_SZ, 65_536)
    say(handler, "y" * 20_000)
    assert reader.read() == "y" * 20_000 + "\n"
    monkeypatch.setattr(logs, "sys", SimpleNamespace(stderr=None))
    say(handler, "nowhere to write")


def test_a_line_that_was_cut_short_does_not_run_into_the_next_one(reader: Reader) -> None:
    handler = PatientHandler()
    say(handler, "y" * 20_000)
    assert set(reader.read()) == {"y"}
    say(handler, "somebody reads again")
    assert reader.read() == "\n1 log lines are missing here: the reader of the log was too slow\nsomebody reads again\n"


# --- As JSON -----------------------------------------------------------------------------------------------


def record(text: str, *args: object, **more: object) -> logging.LogRecord:
    made = logging.LogRecord("holdfast.job", logging.WARNING, "", 0, text, args, None)
    vars(made).update(more)
    return made


def line_of(made: logging.LogRecord, worker: str | None = "w-1/2") -> dict[str, Any]:
    text = JsonFormatter(worker).format(made)
    assert "\n" not in text
    line: dict[str, Any] = json.loads(text)
    return line


def test_a_json_line_names_the_job_its_attempt_its_fence_and_the_worker() -> None:
    job = factory.a_job(task="mail.send", attempt=2, fence=7)
    line = line_of(record("job %s ended", job.id, **about(job)))
    assert line["message"] == f"job {job.id} ended"
    assert (line["level"], line["logger"], line["worker"]) == ("warning", "holdfast.job", "w-1/2")
    assert (line["job"], line["task"], line["attempt"], line["fence"]) == (job.id, "mail.send", 2, 7)
    assert line["at"].endswith("Z")
    assert not {"extra", "trace", "trace_id"} & set(line)
    assert "worker" not in line_of(record("without a name"), None)


def test_a_json_line_stays_one_line_whatever_is_in_it() -> None:
    strange = 'a "quote"\n{"level": "forged"}\r\x00\x1b[31m\u2028 \ud800'
    line = line_of(record("%s", strange, given={"a": {1, 2}, strange: object, "nan": float("nan")}, number=2**80))
    assert line["message"] == strange.replace("\ud800", "\\ud800")
    assert line["level"] == "warning"
    assert line["extra"]["number"] == 2**80
    assert line["extra"]["given"]["nan"] == "nan"
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        failed = record("it failed")
        failed.exc_info = sys.exc_info()
    assert line_of(failed)["trace"].endswith("ValueError: first\nsecond")


def test_a_json_log_says_as_a_record_what_is_missing(reader: Reader) -> None:
    handler = PatientHandler()
    handler.setFormatter(JsonFormatter())
    handler.all_records = True
    for number in range(20):
        say(handler, f"{number} {'x' * 3000}")
    reader.read()
    say(handler, "somebody reads again")
    missing, last = [json.loads(line) for line in reader.read().splitlines()]
    assert "log lines are missing here" in missing["message"]
    assert last["message"] == "somebody reads again"


LOUD = """
import logging
from holdfast import App
app = App("sqlite:///jobs.db")

@app.task
def tell(text):
    logging.getLogger("shop").warning("about %s", text, extra={"order": 42})
    raise ValueError("not today")

@app.task(isolate=True)
def apart(text):
    logging.getLogger("shop").warning("apart %s", text)
"""


@pytest.mark.slow  # a worker with an isolated process, and a server
def test_every_line_of_a_worker_and_of_a_server_is_json(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(LOUD)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "HOLDFAST_DB": "sqlite:///jobs.db"}
    for task in ("loud.tell", "loud.apart"):
        done = [*HOLDFAST, "enqueue", "loud:app", task, '["a\\nb"]', "--json"]
        subprocess.run(done, cwd=tmp_path, env=env, check=True, capture_output=True, timeout=60)
    command = [*HOLDFAST, "worker", "loud:app", "--name", "w-1", "--log-format", "json", "--grace-period", "1"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    assert worker.stderr is not None
    lines: list[dict[str, Any]] = []
    while not {"about a\nb", "apart a\nb"} <= {line["message"] for line in lines}:
        lines.append(json.loads(worker.stderr.readline()))
    worker.send_signal(signal.SIGTERM)
    lines += [json.loads(line) for line in worker.stderr.read().splitlines()]
    assert worker.wait(60) == 0
    worker.stderr.close()
    for text, task in (("about a\nb", "loud.tell"), ("apart a\nb", "loud.apart")):
        own = next(line for line in lines if line["message"] == text)
        assert (own["task"], own["attempt"], own["fence"], own["worker"]) == (task, 1, 1, "w-1/1")
    own = next(line for line in lines if line["message"] == "about a\nb")
    assert own["extra"] == {"order": 42}
    ended = next(line for line in lines if "attempt 1 ended" in line["message"])
    assert ended["job"] == own["job"]
    assert {"w-1"} <= {line["worker"] for line in lines}
    with ServerProcess(tmp_path, "--log-format", "json", PYTHONPATH=str(tmp_path)) as server:
        assert server.stop() == 0
    assert all(json.loads(line)["pid"] == server.process.pid for line in server.log)
