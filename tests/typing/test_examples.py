"""Both type checkers accept every example in the documentation: it is what people copy."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import EXAMPLES, PYTHON, ROOT

STUBS = {  # as much as the examples use: Django has no types, FastAPI is not installed here
    "django/__init__.pyi": "def setup() -> None: ...",
    "django/conf.pyi": """
from typing import Any
class Settings:
    def configure(self, *, DATABASES: dict[str, dict[str, Any]]) -> None: ...
settings: Settings
""",
    "django/db/__init__.pyi": """
from contextlib import AbstractContextManager
from typing import Any
from . import models as models
class SchemaEditor:
    def create_model(self, model: type[models.Model]) -> None: ...
class Connection:
    def cursor(self) -> AbstractContextManager[Any]: ...
    def schema_editor(self) -> AbstractContextManager[SchemaEditor]: ...
class Transaction:
    def atomic(self) -> AbstractContextManager[None]: ...
connection: Connection
transaction: Transaction
def close_old_connections() -> None: ...
""",
    "django/db/models.pyi": """
from typing import Any, ClassVar
class Model:
    objects: ClassVar[Any]
    def __init__(self, **fields: Any) -> None: ...
class CharField:
    def __init__(self, *, max_length: int) -> None: ...
""",
    "fastapi/__init__.pyi": """
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar
F = TypeVar("F", bound=Callable[..., object])
class FastAPI:
    def __init__(self, *, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None) -> None: ...
    def post(self, path: str, *, status_code: int) -> Callable[[F], F]: ...
""",
    "fastapi/testclient.pyi": """
from typing import Any, Self
from fastapi import FastAPI
class TestClient:
    def __init__(self, app: FastAPI) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc: object) -> None: ...
    def post(self, url: str) -> Any: ...
""",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A folder for each page: its blocks are modules that import each other."""
    top = tmp_path_factory.mktemp("examples")
    for page, name, text in examples():
        (top / page).mkdir(exist_ok=True)
        (top / page / name).write_text(text)
    return sorted(top.iterdir())


@pytest.fixture(scope="module")
def stubs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("stubs")
    for name, text in STUBS.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(text)
    return top


def examples() -> Iterator[tuple[str, str, str]]:
    for block in PYTHON:
        page = block.page.replace("/", "_").replace(".", "_")
        yield page, block.option("file") or f"line_{block.line}.py", block.text
    for path in EXAMPLES:
        yield "examples", path.name, path.read_text("utf-8")


@pytest.mark.slow  # a type checker reads the whole package
def test_mypy_accepts_every_example(folders: list[Path], stubs: Path, tmp_path: Path) -> None:
    options = ["--strict", "--config-file", "", "--cache-dir", str(tmp_path)]
    for folder in folders:
        files = sorted(path.name for path in folder.iterdir())
        command = [sys.executable, "-m", "mypy", *options, *files]
        env = {**os.environ, "MYPYPATH": str(stubs)}
        ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=env)
        number = f"{len(files)} source file{'s' * (len(files) > 1)}"
        said = (ran.returncode, ran.stderr, ran.stdout.strip())
        assert said == (0, "", f"Success: no issues found in {number}"), folder.name


@pytest.mark.slow  # as above
def test_pyright_accepts_every_example(folders: list[Path], stubs: Path) -> None:
    top = folders[0].parent
    config = top / "pyrightconfig.json"
    roots = [{"root": folder.name} for folder in folders]
    config.write_text(json.dumps({"executionEnvironments": roots, "stubPath": str(stubs)}))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(config)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    found = json.loads(ran.stdout)
    assert found["summary"]["filesAnalyzed"] == len(list(examples()))
    said = [f"{each['file']}: {each['message']}" for each in found["generalDiagnostics"] if each["severity"] == "error"]
    assert not said
