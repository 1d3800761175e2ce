"""Both type checkers accept every example in the documentation: it is what people copy."""

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import EXAMPLES, PYTHON, ROOT

UNTYPED = {"django", "fastapi"}  # has no types; is not installed here


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder for each page: its blocks are modules that import each other."""
    top = tmp_path_factory.mktemp("examples")
    for page, name, text in examples():
        (top / page).mkdir(exist_ok=True)
        (top / page / name).write_text(text)
    return sorted(top.iterdir())


def examples() -> Iterator[tuple[str, str, str]]:
    for block in PYTHON:
        if not UNTYPED & imported(block.text):
            page = block.page.replace("/", "_").replace(".", "_")
            yield page, block.option("file") or f"line_{block.line}.py", block.text
    for path in EXAMPLES:
        yield "examples", path.name, path.read_text("utf-8")


def imported(text: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(text)))
    names = {each.name for node in nodes if isinstance(node, ast.Import) for each in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


@pytest.mark.slow  # a type checker reads the whole package
def test_mypy_accepts_every_example(folders: list[Path], tmp_path: Path) -> None:
    options = ["--strict", "--config-file", "", "--cache-dir", str(tmp_path)]
    for folder in folders:
        files = sorted(path.name for path in folder.iterdir())
        ran = subprocess.run(
            [sys.executable, "-m", "mypy", *options, *files], capture_output=True, text=True, cwd=folder
        )
        number = f"{len(files)} source file{'s' * (len(files) > 1)}"
        said = (ran.returncode, ran.stderr, ran.stdout.strip())
        assert said == (0, "", f"Success: no issues found in {number}"), folder.name


@pytest.mark.slow  # as above
def test_pyright_accepts_every_example(folders: list[Path]) -> None:
    top = folders[0].parent
    config = top / "pyrightconfig.json"
    config.write_text(json.dumps({"executionEnvironments": [{"root": folder.name} for folder in folders]}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(config)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    found = json.loads(ran.stdout)
    assert found["summary"]["filesAnalyzed"] == len(list(examples()))
    said = [f"{each['file']}: {each['message']}" for each in found["generalDiagnostics"] if each["severity"] == "error"]
    assert not said
