"""What pyright, which most editors ask, says of `sample.py`: it refuses what mypy refuses, and sees the same types."""

import json
import re
import subprocess
import sys

import pytest

from tests.typing.test_mypy import SAMPLE, expected

PREFIXES = re.compile(r"(?:holdfast|sqlalchemy)\.(?:[a-z_]+\.)+|builtins\.")
REVEALED = re.compile(r'Type of ".*" is "(.+)"$', re.DOTALL)
OF_A_TASK = re.compile(r"Task\[.*, (.+)\]$")  # the two write parameters differently; what comes out is the same


@pytest.fixture(scope="module")
def said() -> dict[int, str]:
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, str(SAMPLE)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=SAMPLE.parents[2])
    found: dict[int, str] = {}
    for each in json.loads(ran.stdout)["generalDiagnostics"]:
        revealed = REVEALED.search(each["message"])
        found[each["range"]["start"]["line"] + 1] = f"is: {revealed[1]}" if revealed else each["severity"]
    return found


@pytest.mark.slow  # a type checker reads the whole package
def test_it_refuses_what_mypy_refuses_and_nothing_else(said: dict[int, str]) -> None:
    refused = {line for line, words in said.items() if words == "error"}
    assert refused == {line for line, words in expected().items() if words.startswith("error")}


@pytest.mark.slow  # as above
def test_it_sees_the_same_types(said: dict[int, str]) -> None:
    wanted = {line: PREFIXES.sub("", words) for line, words in expected().items() if words.startswith("is")}
    seen = {line: said.get(line, "nothing") for line in wanted}
    assert {line: plain(words) for line, words in seen.items()} == {
        line: plain(words) for line, words in wanted.items()
    }


def plain(words: str) -> str:
    task = OF_A_TASK.search(words)
    return f"a task that gives {task[1]}" if task else words
