"""Speed, side by side with the peers, in one run; see README.md.   make bench   or   .venv/bin/python bench/bench.py

Rates count acknowledged jobs: a drain ends when the store says that the last job is done. Finished rows are kept and
every commit is synced. Rounds are interleaved; a figure is the median of its rounds, with the lowest and the highest.
Read ratios within one run: the machines that this runs on are noisy.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import compare
import noise
import page
import peers
import report
from figures import FIGURES, ON_REDIS
from ground import FULL, HERE, QUICK, Ground, home
from stores import STORES

Round = tuple[Callable[[Ground], dict[str, float]], int]


def main() -> int:
    given = arguments()
    scale = QUICK if given.quick else FULL
    rounds = given.rounds or scale.rounds
    steps = chosen(given)
    with tempfile.TemporaryDirectory(dir=given.folder or home()) as name:
        os.environ["BENCH_FOLDER"] = name
        os.environ["BENCH_HOME"] = str(given.folder or home())
        ground = Ground(STORES[given.store], scale, Path(name))
        load = os.getloadavg()[0]
        began, at_start = time.time(), noise.commits(ground.folder)
        values, shares, missing = measure(steps, rounds, ground)
        result = {
            "at": datetime.datetime.fromtimestamp(began, datetime.UTC).isoformat(timespec="seconds"),
            "minutes": round((time.time() - began) / 60, 1),
            "store": given.store,
            "scale": {**scale.__dict__, "rounds": rounds},
            "machine": noise.machine(ground.folder) | STORES[given.store].engine(),
            "noise": {
                "commits": [at_start, noise.commits(ground.folder)],
                "load": [load, os.getloadavg()[0]],
                **shares,
            },
            "missing": missing,
            "figures": values,
        }
    stem = given.results / f"{given.store}{'-quick' if given.quick else ''}"
    committed = json.loads(stem.with_suffix(".json").read_text()) if stem.with_suffix(".json").exists() else None
    print(report.markdown(result), compare.compared(result, committed), sep="\n")
    if given.save:
        save(result, stem)
    return 0


def save(result: dict[str, Any], stem: Path) -> None:
    """Make these the committed figures, and write them into the pages."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    stem.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    stem.with_suffix(".md").write_text(report.markdown(result))
    if peers.PYTHON.exists():
        subprocess.run([peers.PYTHON, HERE / "plot.py", stem.with_suffix(".json")], check=False)
    page.write()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a minute or two instead of ten, with smaller numbers")
    parser.add_argument("--only", metavar="A,B", help=f"of: {', '.join([*FIGURES, *peers.PEERS])}")
    parser.add_argument("--rounds", type=int, help="how often everything is measured")
    parser.add_argument("--store", choices=STORES, default="sqlite")
    parser.add_argument("--folder", type=Path, help="where the databases go; default: beside .venv-bench's files")
    parser.add_argument("--save", action="store_true", help="make these the committed figures, and update the pages")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where the committed figures are")
    given = parser.parse_args()
    if given.save and given.only:
        parser.error("--save needs all figures, not only some")
    return given


def chosen(given: argparse.Namespace) -> dict[str, Round]:
    """Return what is to be measured, in the order of one round."""
    known: dict[str, Round] = {
        name: each for name, each in FIGURES.items() if given.store != "redis" or name in ON_REDIS
    }
    known |= {
        name: (partial(peers.measure, name), 99) for name, peer in peers.PEERS.items() if peer.store == given.store
    }
    wanted = given.only.split(",") if given.only else list(known)
    unknown = set(wanted) - set(known)
    if unknown:
        sys.exit(f"no such figure: {', '.join(sorted(unknown))}; known: {', '.join(known)}")
    if set(wanted) & set(peers.PEERS) and (trouble := peers.prepare(given.store)):
        print(f"the peers are left out: {trouble}", file=sys.stderr)
        wanted = [name for name in wanted if name not in peers.PEERS]
    return {name: known[name] for name in known if name in wanted}


def measure(
    steps: dict[str, Round], rounds: int, ground: Ground
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, str]]:
    """Go round by round; return the figures, what others used meanwhile, and what could not be measured and why."""
    values: dict[str, list[float]] = {}
    shares: dict[str, list[float]] = {"others": [], "stolen": []}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for name, (step, most) in steps.items():
            if number >= most or name in missing:
                continue
            say(f"round {number + 1} of {rounds}: {name}")
            with noise.others() as share:
                try:
                    found = step(ground)
                except (RuntimeError, TimeoutError, subprocess.TimeoutExpired) as error:
                    missing[name] = str(error)
                    print(f"\n{name} is left out: {error}", file=sys.stderr)
                    continue
            for key, value in found.items():
                values.setdefault(key, []).append(value)
            shares["others"].append(share.others)
            shares["stolen"].append(share.stolen)
    say("")
    return values, shares, missing


def say(words: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{words}", end="", flush=True, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
