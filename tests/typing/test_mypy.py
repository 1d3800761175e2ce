"""Users' type checkers see a task's own signature: what mypy --strict says about `sample.py` is what stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SAMPLE = Path(__file__).with_name("sample.py")
MARK = re.compile(r"  # (is|error): (.+)$")
SAID = re.compile(r'sample\.py:(\d+): (?:note: Revealed type is "(.+)"|error: .* \[([a-z-]+)\])')


def expected() -> dict[int, str]:
    lines = enumerate(SAMPLE.read_text("utf-8").splitlines(), 1)
    return {number: f"{mark[1]}: {mark[2]}" for number, line in lines if (mark := MARK.search(line))}


@pytest.mark.slow  # a type checker reads the whole package
def test_the_type_checker_sees_what_the_sample_says(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path), str(SAMPLE)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=SAMPLE.parents[2])
    said: dict[int, str] = {}
    for line in ran.stdout.splitlines():
        if match := SAID.search(line):
            number, revealed, code = match.groups()
            verdict = f"is: {revealed.replace('builtins.', '')}" if revealed else f"error: {code}"
            said.setdefault(int(number), verdict)
    assert said == expected(), ran.stdout + ran.stderr
