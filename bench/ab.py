"""Compare the speed of two commits:   .venv/bin/python bench/ab.py c86b432   or   bench/ab.py BEFORE AFTER

Each round runs every scene once on both commits, in turns, each time in a fresh process and a fresh database. What
counts is processor time for each job, of the client and of the PostgreSQL server: other programs on the machine disturb
it less than seconds. A ratio is before divided by after, so above 1 the second commit is faster; the table has the
median of the ratios within rounds. Both commits run with this checkout's packages. A commit `.` is this checkout as it
is.

A commit on a disk costs the kernel more than all of our code. `--folder /dev/shm` leaves that out.

`--instructions` counts the instructions of the client for each job with valgrind instead, which needs no rounds: once
with some jobs, once with more, and the difference divided by the difference of jobs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median, quantiles

import noise
import psycopg
from ground import HERE, home
from stores import server

from holdfast.ids import new_id

ROOT = HERE.parent
SCENES = {"single": 1_500, "bulk": 20_000, "drain": 20_000, "tick": 5_000}  # and how many jobs each has
STORES = {"single": ("sqlite", "postgres"), "bulk": ("sqlite", "postgres"), "drain": ("sqlite", "postgres")}
MEASURED = ("client", "server", "wall")
COUNTED = (("single", 100, 400), ("bulk", 200, 1_000), ("tick", 100, 400))  # scene, some jobs, more jobs
TIMEOUT_S = 600.0
Row = tuple[str, str, str]  # scene, store, what is measured


def main() -> int:
    given = arguments()
    with ExitStack() as stack:
        os.environ["BENCH_HOME"] = str(given.folder or home())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=given.folder or home())))
        trees = [stack.enter_context(checkout(commit, folder)) for commit in (given.before, given.after)]
        if given.instructions:
            print(counted(trees, folder))
            return 0
        print(table(measured(trees, folder, given), given))
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a commit")
    parser.add_argument("after", nargs="?", default=".", help="another; default: this checkout with its changes")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--store", choices=("sqlite", "postgres"), help="default: both")
    parser.add_argument("--only", metavar="A,B", help=f"of: {', '.join(SCENES)}")
    parser.add_argument("--jobs", type=float, default=1.0, metavar="TIMES", help="so many times the usual jobs")
    parser.add_argument("--folder", type=Path, help="where the databases go; default: beside .venv-bench's files")
    parser.add_argument("--instructions", action="store_true", help="count instructions with valgrind instead")
    given = parser.parse_args()
    given.scenes = given.only.split(",") if given.only else list(SCENES)
    if unknown := set(given.scenes) - set(SCENES):
        parser.error(f"no such scene: {', '.join(sorted(unknown))}; known: {', '.join(SCENES)}")
    if given.rounds < 1:
        parser.error("--rounds must be at least 1")
    return given


@contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """Lend the files of a commit in a git worktree of its own, and remove it; `.` is this checkout itself."""
    if commit == ".":
        yield ROOT
        return
    tree = folder / new_id()
    git = ["git", "-C", str(ROOT), "worktree"]
    done = subprocess.run(
        [*git, "add", "--quiet", "--detach", tree, commit], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"no worktree of {commit}: {done.stderr.strip()}")
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", tree], check=False)


def measured(trees: list[Path], folder: Path, given: argparse.Namespace) -> dict[Row, list[tuple[float, float]]]:
    """Go round by round; return the pairs of figures, before and after."""
    found: dict[Row, list[tuple[float, float]]] = {}
    for number in range(given.rounds):
        for scene in given.scenes:
            jobs = max(100, int(SCENES[scene] * given.jobs))
            for store in STORES.get(scene, ("memory",)):
                if given.store not in (None, store) and store != "memory":
                    continue
                print(f"round {number + 1} of {given.rounds}: {scene} on {store}", file=sys.stderr)
                pair: dict[Path, dict[str, float]] = {}
                for tree in trees if number % 2 == 0 else reversed(trees):
                    pair[tree] = run(scene, store, jobs, tree, folder)
                for name in MEASURED:
                    if name in pair[trees[0]]:
                        row = (scene, store, name)
                        found.setdefault(row, []).append((pair[trees[0]][name], pair[trees[1]][name]))
    return found


def run(scene: str, store: str, jobs: int, tree: Path, folder: Path, *before: str) -> dict[str, float]:
    """Run one scene in a process of its own; return µs for each job."""
    with database(store, folder) as url:
        path = os.pathsep.join([str(tree / "src"), str(HERE)])
        env = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "HOLDFAST_DB": url}
        servers = map(str, noise.servers if store == "postgres" else ())
        command = [*before, sys.executable, str(HERE / "ab_scene.py"), scene, str(jobs), *servers]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{scene} on {store}, {tree}: {done.stderr[-2000:]}")
        found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        return found


@contextmanager
def database(store: str, folder: Path) -> Iterator[str]:
    """Lend the address of a store that does not exist yet."""
    if store == "memory":
        yield "memory://"
    elif store == "sqlite":
        with tempfile.TemporaryDirectory(dir=folder) as name:
            yield f"sqlite:///{name}/ab.db"
    else:
        schema = f"ab_{new_id()}"
        try:
            yield f"{server()}?schema={schema}"
        finally:
            with psycopg.connect(server(), autocommit=True) as db:
                db.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
                db.execute("CHECKPOINT")  # the next measurement does not pay for what this one has written


def table(found: dict[Row, list[tuple[float, float]]], given: argparse.Namespace) -> str:
    lines = [
        f"{given.before} and {given.after}, {given.rounds} interleaved rounds, µs for each job, medians; load "
        f"{os.getloadavg()[2]:.1f}",
        "",
        "| scene | store | measured | before | after | before / after | middle half of the rounds |",
        "|---|---|---|---|---|---|---|",
    ]
    for (scene, store, what), pairs in found.items():
        before, after = (median(each) for each in zip(*pairs, strict=True))
        ratios = [one / other for one, other in pairs]
        low, _, high = quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        shown = f"{median(ratios):.2f} | {low:.2f} to {high:.2f}"
        lines.append(f"| {scene} | {store} | {what} | {before:.1f} | {after:.1f} | {shown} |")
    return "\n".join(lines)


def counted(trees: list[Path], folder: Path) -> str:
    lines = ["| scene | store | instructions for each job before | after | after / before |", "|---|---|---|---|---|"]
    for scene, few, many in COUNTED:
        for store in STORES.get(scene, ("memory",)):
            before, after = (
                (_instructions(scene, store, many, tree, folder) - _instructions(scene, store, few, tree, folder))
                / (many - few)
                for tree in trees
            )
            lines.append(f"| {scene} | {store} | {before:,.0f} | {after:,.0f} | {after / before:.3f} |")
    return "\n".join(lines)


def _instructions(scene: str, store: str, jobs: int, tree: Path, folder: Path) -> int:
    report = folder / "callgrind.txt"
    valgrind = [
        "valgrind",
        "--tool=callgrind",
        f"--callgrind-out-file={folder / 'callgrind.out'}",
        f"--log-file={report}",
    ]
    run(scene, store, jobs, tree, folder, *valgrind)
    found = re.search(r"Collected : (\d+)", report.read_text())
    assert found is not None, report.read_text()
    return int(found[1])


if __name__ == "__main__":
    sys.exit(main())
