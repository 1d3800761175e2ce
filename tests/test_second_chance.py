"""What `make test` does with a few failures: they must hold up alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent.parent
UNSTABLE = """
from pathlib import Path
def test_fails_once():
    seen = Path("seen").exists()
    Path("seen").touch()
    assert seen
"""


def run(folder: Path, source: str) -> tuple[int, str]:
    """Run a module of tests as `make suite` does; return the exit code and all that was printed."""
    (folder / "test_it.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    env = {**os.environ, "PYTHONPATH": str(HERE)}
    first = subprocess.run(
        [sys.executable, "-m", "pytest"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    command = [sys.executable, "-m", "tests.second_chance", str(first.returncode)]
    again = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return again.returncode, again.stdout


@pytest.mark.slow  # it runs pytest twice
def test_a_test_that_passes_alone_is_named_as_unstable(tmp_path: Path) -> None:
    code, said = run(tmp_path, UNSTABLE)
    assert code == 0
    assert said.endswith("Mend them:\n  test_it.py::test_fails_once\n")


@pytest.mark.slow  # it runs pytest twice
def test_a_test_that_fails_again_fails_the_run(tmp_path: Path) -> None:
    code, said = run(tmp_path, UNSTABLE + "\ndef test_fails_always():\n    assert False\n")
    assert code == 1
    assert "UNSTABLE" not in said


@pytest.mark.slow  # it runs pytest
def test_many_failures_are_not_blamed_on_the_machine(tmp_path: Path) -> None:
    source = "import pytest\n@pytest.mark.parametrize('number', range(3))\ndef test_fails(number):\n    assert False\n"
    assert run(tmp_path, source) == (1, "")


@pytest.mark.slow  # it runs pytest
def test_a_run_that_could_not_start_is_not_repeated(tmp_path: Path) -> None:
    assert run(tmp_path, "import nothing_of_that_name\n") == (2, "")
