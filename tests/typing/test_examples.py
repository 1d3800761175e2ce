"""Both type checkers accept every example in the documentation: it is what people copy."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import EXAMPLES, PYTHON, ROOT

STUBS = {  # as much of Django as the examples use: it has no types
    "django/__init__.pyi": "def setup() -> None: ...",
    "django/conf.pyi": """
from typing import Any
class Settings:
    def configure(self, *, DATABASES: dict[str, dict[str, Any]]) -> None: ...
settings: Settings
""",
    "django/core/__init__.pyi": "",
    "django/core/asgi.pyi": """
from typing import Any
def get_asgi_application() -> Any: ...
""",
    "django/core/management.pyi": "def execute_from_command_line(argv: list[str]) -> None: ...",
    "django/db/__init__.pyi": """
from contextlib import AbstractContextManager
from typing import Any
from . import models as models
from . import transaction as transaction
class SchemaEditor:
    def create_model(self, model: type[models.Model]) -> None: ...
class Connection:
    def cursor(self) -> AbstractContextManager[Any]: ...
    def schema_editor(self) -> AbstractContextManager[SchemaEditor]: ...
connection: Connection
""",
    "django/db/transaction.pyi": """
from contextlib import AbstractContextManager
def atomic() -> AbstractContextManager[None]: ...
""",
    "django/db/models.pyi": """
from typing import Any, ClassVar
class Model:
    objects: ClassVar[Any]
    pk: Any
    def __init__(self, **fields: Any) -> None: ...
    def save(self) -> None: ...
class _Field:
    def __get__(self, instance: object, owner: object) -> Any: ...
    def __set__(self, instance: object, value: Any) -> None: ...
class CharField(_Field):
    def __init__(self, *, max_length: int, default: str = "") -> None: ...
class IntegerField(_Field):
    def __init__(self, *, unique: bool = False) -> None: ...
class BigAutoField(_Field):
    def __init__(self, *, auto_created: bool, primary_key: bool, serialize: bool, verbose_name: str) -> None: ...
""",
    "django/db/migrations.pyi": """
from typing import Any
class Migration: ...
class CreateModel:
    def __init__(self, *, name: str, fields: list[tuple[str, Any]]) -> None: ...
""",
    "django/http.pyi": """
from typing import Any
class HttpRequest:
    POST: dict[str, str]
class JsonResponse:
    def __init__(self, data: dict[str, Any], *, status: int = 200) -> None: ...
""",
    "django/urls.pyi": """
from typing import Any
def path(route: str, view: Any) -> Any: ...
""",
    "django/views/__init__.pyi": "",
    "django/views/decorators/__init__.pyi": "",
    "django/views/decorators/http.pyi": """
from collections.abc import Callable
from typing import TypeVar
F = TypeVar("F", bound=Callable[..., object])
def require_POST(view: F) -> F: ...
""",
    "django/test/__init__.pyi": """
import unittest
from typing import Any
class TransactionTestCase(unittest.TestCase):
    client: Any
class TestCase(TransactionTestCase): ...
""",
}
PROJECTS = sorted(path.name for path in (ROOT / "examples").iterdir() if path.is_dir() and "__" not in path.name)


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
        assert said == (0, "", f"Success: no issues found in {number}"), f"{folder.name}: {ran.stdout}"


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


@pytest.mark.slow  # as above
@pytest.mark.parametrize("project", PROJECTS)
def test_mypy_accepts_each_project(project: str, stubs: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(tmp_path), "."]
    folder = ROOT / "examples" / project
    ran = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env={**os.environ, "MYPYPATH": str(stubs)}
    )
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "Success: no issues found" in ran.stdout


@pytest.mark.slow  # as above
def test_pyright_accepts_the_projects(stubs: Path, tmp_path: Path) -> None:
    for project in PROJECTS:
        shutil.copytree(ROOT / "examples" / project, tmp_path / project)
    config = {"executionEnvironments": [{"root": project} for project in PROJECTS], "stubPath": str(stubs)}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    found = json.loads(ran.stdout)
    assert found["summary"]["filesAnalyzed"] >= 10
    said = [f"{each['file']}: {each['message']}" for each in found["generalDiagnostics"] if each["severity"] == "error"]
    assert not said
