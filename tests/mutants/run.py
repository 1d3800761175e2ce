"""Run the tests over a copy of the package with one change in it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from tests.mutants import in_place
from tests.mutants.mutant import PACKAGE, ROOT, SRC, Mutant
from tests.servers import QUICK, PostgresServer

RESULTS = ROOT / ".mutants.jsonl"
HANGS_S = 900.0  # longer than any run of the tests of one mutant; a mutant that hangs is noticed
NUMBERS = count(1)


@dataclass(frozen=True, slots=True)
class Result:
    """What the tests said about one mutant."""

    name: str
    digest: str
    alive: bool
    took_s: float


class Results:
    """Results on disk, one line each, so that an interrupted run can go on."""

    def __init__(self, path: Path = RESULTS) -> None:
        self._path = path

    def load(self) -> dict[str, Result]:
        """Return the latest result of each mutant."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        results = (Result(**json.loads(line)) for line in lines if line.endswith("}"))  # not one cut off by a kill
        return {result.name: result for result in results}

    def add(self, result: Result) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")


def run(mutant: Mutant, server: PostgresServer, deadline: float) -> Result | None:
    """Run the tests of a mutant, the nearest first, until one goes red. Return None if the time was too short."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder, _database(server) as address:
        copy = Path(folder) / "src"
        shutil.copytree(SRC, copy)  # with what Python has compiled: only the changed file is compiled again
        (copy / PACKAGE.name / mutant.file).write_text(mutant.text)
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOLDFAST_TEST_POSTGRES": address,
        }
        try:
            alive = all(_are_green(mutant, tests, environment, deadline) for tests in nearest_first(mutant.tests))
        except TimeoutError:
            return None
    return Result(mutant.name, mutant.digest, alive, round(time.monotonic() - begun, 1))


def run_in_place(batch: list[Mutant], deadline: float) -> list[Result]:
    """Try mutants of one pure module, many in one process; return the results of those that died."""
    stages = list(nearest_first(batch[0].tests))
    found = in_place.dead(batch, stages, min(HANGS_S, deadline - time.monotonic()))
    return [Result(mutant.name, mutant.digest, False, found[mutant.name]) for mutant in batch if mutant.name in found]


def nearest_first(tests: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Files, then folder after folder: given all of them at once, pytest runs a folder and its files in one go."""
    files = tuple(test for test in tests if ".py" in test)
    if files:
        yield files
    yield from ((folder,) for folder in tests if folder not in files)


def _are_green(mutant: Mutant, tests: tuple[str, ...], environment: dict[str, str], deadline: float) -> bool:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "--timeout=60",
        "-k",
        mutant.noticed_by,
    ]
    with subprocess.Popen(
        [*command, *tests],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=min(HANGS_S, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise TimeoutError from None
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and what the tests have left behind
    if process.returncode in (0, 1):
        return process.returncode == 0
    # A mutant that cannot even be imported is dead as well, but an empty run proves nothing.
    return "no tests ran" in output or "deselected" in output


def unbroken(mutants: list[Mutant]) -> list[Mutant]:
    """The package as it is, once for each place in the tests: what is red anyhow would count every mutant as dead."""
    found = []
    for server in ("postgres", "redis", ""):
        group = [mutant for mutant in mutants if mutant.server == server]
        places = {Path(test.partition("::")[0]) for mutant in group for test in mutant.tests}
        for place in sorted(place for place in places if places.isdisjoint(place.parents)):
            file = next((mutant.file for mutant in group if server and server in mutant.file), group[0].file)
            text = (PACKAGE / file).read_text()
            on = f" with {server}" if server else ""
            found.append(Mutant(f"{place}{on}, nothing broken", file, text, (str(place),)))
    return found


@contextmanager
def _database(server: PostgresServer) -> Iterator[str]:
    """A database of its own for one mutant: several are tried at once."""
    name = f"mutant_{next(NUMBERS)}"
    server.execute(f"CREATE DATABASE {name}")
    try:
        yield server.url.replace("/postgres", f"/{name}")
    finally:
        server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """One server for all mutants. Some of their statements would never come to an end."""
    server = PostgresServer((*QUICK, "statement_timeout=15s"))
    try:
        yield server
    finally:
        server.close()
