"""The log of a worker: nobody has to read it."""

import fcntl
import logging
import os
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from holdfast.cli import logs
from holdfast.cli.logs import PatientHandler


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
