"""How a process ended, in words and as facts."""

from typing import Any

import pytest

from holdfast.core.worker_exit import exit_facts, how_it_ended


@pytest.mark.parametrize(
    ("code", "words", "facts"),
    [
        (0, "exited with code 0", {"exit_code": 0}),
        (76, "exited with code 76", {"exit_code": 76}),
        (-9, "was killed by SIGKILL", {"signal": "SIGKILL"}),
        (-77, "was killed by signal 77", {"signal": "signal 77"}),
    ],
)
def test_the_exit_code_of_a_process_says_how_it_ended(code: int, words: str, facts: dict[str, Any]) -> None:
    assert how_it_ended(code) == words
    assert exit_facts(code) == facts


def test_an_end_that_nobody_saw_leaves_no_facts() -> None:
    assert exit_facts(None) == {}
