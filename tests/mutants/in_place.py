"""Try many mutants of pure modules in one run of pytest: collect the tests once, then fork for each mutant.

The child replaces the code of the changed function in the imported modules, and runs the tests until one goes red. That
takes a fraction of a second instead of seconds. Values that were computed during the import keep the old code's result,
so only a death counts here: `run.py` tries each survivor again with the changed file.

This module is also the plugin: `pytest -p tests.mutants.in_place`, with the orders in HOLDFAST_MUTANTS.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from tests.mutants.mutant import PACKAGE, ROOT, SRC, Mutant

ORDERS = "HOLDFAST_MUTANTS"
BATCH = 25  # mutants for each collection of the tests
HANGS_S = 300.0  # longer than the tests of one mutant take; a mutant that hangs is noticed


def batches(mutants: list[Mutant]) -> Iterator[list[Mutant]]:
    """Group mutants of one module whose tests are the same."""
    groups: dict[tuple[str, tuple[str, ...]], list[Mutant]] = {}
    for mutant in mutants:
        groups.setdefault((mutant.file, mutant.tests), []).append(mutant)
    for group in groups.values():
        yield from (group[start : start + BATCH] for start in range(0, len(group), BATCH))


def dead(batch: list[Mutant], stages: list[tuple[str, ...]], limit_s: float) -> dict[str, float]:
    """Return the mutants of a batch that die, with the seconds that each took. The others are in doubt."""
    found: dict[str, float] = {}
    give_up_at = time.monotonic() + limit_s
    for tests in stages:
        left = [mutant for mutant in batch if mutant.name not in found]
        if left and (left_s := give_up_at - time.monotonic()) > 0:
            found |= _run(left, tests, left_s)
    return found


def _run(mutants: list[Mutant], tests: tuple[str, ...], limit_s: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        orders, results = Path(folder) / "orders.json", Path(folder) / "results.jsonl"
        results.touch()
        texts = {mutant.name: mutant.text for mutant in mutants}
        orders.write_text(json.dumps({"file": mutants[0].file, "texts": texts, "results": str(results)}))
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", __name__, "--timeout=60"]
        process = subprocess.Popen(
            [*command, "-k", mutants[0].noticed_by, *tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(SRC), ORDERS: str(orders)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        lines = [json.loads(line) for line in results.read_text().splitlines() if line.endswith("]")]
    return {name: took_s for name, is_dead, took_s in lines if is_dead}


# --------------------------------------------------------------------------------------------- the plugin


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    if ORDERS not in os.environ or session.testsfailed:
        return None
    orders = json.loads(Path(os.environ[ORDERS]).read_text())
    module = importlib.import_module("holdfast." + orders["file"].removesuffix(".py").replace("/", "."))
    original = (PACKAGE / orders["file"]).read_text()
    with Path(orders["results"]).open("a") as results:
        for name, text in orders["texts"].items():
            begun = time.monotonic()
            child = os.fork()
            if child == 0:
                os.environ.pop(ORDERS)
                session.config.pluginmanager.register(_Leaves())
                replace_code(module, original, text)
                return None  # pytest's own loop runs the tests in this child
            results.write(json.dumps([name, _exit_code(child) == 1, round(time.monotonic() - begun, 1)]) + "\n")
            results.flush()
    return True


class _Leaves:
    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        os._exit(exitstatus)


def _exit_code(child: int) -> int:
    """Wait for the child; one that hangs counts as a failed test."""
    give_up_at = time.monotonic() + HANGS_S
    while time.monotonic() < give_up_at:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 1


def replace_code(module: ModuleType, original: str, changed: str) -> None:
    """Give the functions of a module that differ in the changed text their new code."""
    before, after = (_functions(compile(text, module.__name__, "exec")) for text in (original, changed))
    for name, code in after.items():
        if _meaning(code) != _meaning(before[name]):
            _function(module, name).__code__ = code


def _functions(module: CodeType) -> dict[str, CodeType]:
    """Return the code of every function and method, by its name in the module."""
    found = {}
    for const in module.co_consts:
        if isinstance(const, CodeType):
            is_class = "__qualname__" in const.co_names and not const.co_flags & inspect.CO_OPTIMIZED
            found |= _functions(const) if is_class else {const.co_qualname: const}
    return found


def _meaning(code: CodeType) -> tuple[Any, ...]:
    """What a function does, without the lines on which it stands."""
    consts = tuple(_meaning(each) if isinstance(each, CodeType) else (type(each), each) for each in code.co_consts)
    return code.co_code, consts, code.co_names, code.co_varnames, code.co_freevars


def _function(module: ModuleType, name: str) -> Any:
    """Return the function itself, below what decorators put around it."""
    owner: Any = module
    *classes, last = name.split(".")
    for each in classes:
        owner = vars(owner)[each]
    found = vars(owner)[last]
    found = getattr(found, "fget", None) or getattr(found, "__func__", found)
    return inspect.unwrap(found)
