"""What stands on the row of a gone worker can be read back, by whoever comes first."""

from typing import Any

import pytest

from holdfast.core.worker_exit import WorkerExit, read_epitaph

WRITTEN = {
    "exit: its process was killed by SIGKILL": WorkerExit("its process was killed by SIGKILL", "exit"),
    "excused: exit: its process exited with code 76": WorkerExit("its process exited with code 76", "exit", True),
    "released: the worker stopped": WorkerExit("the worker stopped", None),
    "vanished: its process died: yes": WorkerExit("its process died: yes", "vanished"),
    "restart: x": WorkerExit("x", "restart"),
}


@pytest.mark.parametrize(("text", "worker_exit"), WRITTEN.items())
def test_it_is_read_as_it_was_written(text: str, worker_exit: WorkerExit) -> None:
    assert str(worker_exit) == text
    assert read_epitaph(text) == worker_exit


@pytest.mark.parametrize("text", ["left", "somebody: pulled the plug", "excused", "excused: no reason", "exit"])
def test_words_of_another_origin_are_the_cause_of_one_that_vanished(text: str) -> None:
    found = read_epitaph(text)
    assert (found.detector is not None, found.excused) == (True, False)
    assert found.cause in (text, "")


@pytest.mark.parametrize("text", [None, ""])
def test_nothing_is_said(text: str | None) -> None:
    assert read_epitaph(text) == WorkerExit("marked gone", "vanished")


@pytest.mark.parametrize(
    ("cause", "facts"),
    [
        ("its process exited with code 3", {"exit_code": 3}),
        (
            "its process ended itself because no beat had reached the store in time: it exited with code 76",
            {"exit_code": 76},
        ),
        ("its process was killed by SIGKILL", {"signal": "SIGKILL"}),
        ("its process was killed by signal 77", {"signal": "signal 77"}),
        ("it was killed", {}),
    ],
)
def test_the_facts_of_an_exit_are_kept(cause: str, facts: dict[str, Any]) -> None:
    assert WorkerExit(cause, "exit").facts == facts
    assert WorkerExit(cause, "vanished").facts == {}
