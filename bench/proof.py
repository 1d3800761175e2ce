"""What was thrown at Holdfast, and what held: runs the long proofs, keeps their results, and writes docs/proof.md.

.venv/bin/python bench/proof.py                  run all of them, an hour or more, then write the page
.venv/bin/python bench/proof.py --minutes 20     run as many random cases of each as fit into this time together
.venv/bin/python bench/proof.py --only kills     run these alone; the results of the others stay
.venv/bin/python bench/proof.py --write          only write the page from the committed results
.venv/bin/python bench/proof.py --check          fail if the page is not what the results say
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from proof_deadline import LEFT_OUT

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results" / "proof.json"
PAGE = ROOT / "docs" / "proof.md"
PYTHON = Path(sys.executable)


class Proof(NamedTuple):
    """One kind of attack. `words` of pytest, or a module to run."""

    name: str
    thrown: str
    words: str
    is_module: bool = False

    @property
    def command(self) -> str:
        """What a reader types."""
        return f"python -m {self.words}" if self.is_module else f"python -m pytest -n 2 {self.words}"


PROOFS = (
    Proof(
        "kills",
        "`kill -9` at every named point of the program, on SQLite and PostgreSQL",
        "tests/crash/test_failpoints.py",
    ),
    Proof(
        "workflows",
        "`kill -9` at every point of a workflow, and zombies that return",
        "tests/crash/test_sweep.py tests/crash/test_workflows.py",
    ),
    Proof(
        "storms", "hundreds of jobs whose workers die at once", "tests/crash/test_storm.py tests/crash/test_zombies.py"
    ),
    Proof("limits", "deaths of eight claimers around limits, groups and rates", "tests/crash/test_limits.py"),
    Proof(
        "misbehaving",
        "handlers that exit, hang, hold Python's lock, eat memory, and fork",
        "tests/crash/test_misbehaving.py tests/crash/test_isolation.py",
    ),
    Proof(
        "interleavings",
        "every order of the calls of a few actors: a model of the store's callers, checked in full",
        "tests/simulation/test_model_check.py",
    ),
    Proof(
        "simulation",
        "random faults, clocks and interleavings, and worlds that are broken on purpose",
        "tests/simulation/test_simulation.py tests/simulation/test_broken.py tests/simulation/test_faults.py",
    ),
    Proof("power", "power cuts between any two writes to the disk", "tests/simulation/test_power_loss.py"),
    Proof("agreement", "random calls to all stores, which must answer the same", "tests/agreement"),
    Proof(
        "outages",
        "a PostgreSQL server that is stopped, killed, cut off, slow, full of locks",
        "tests/stores/test_postgres_outages.py tests/stores/test_postgres_locked_rows.py",
    ),
    Proof(
        "rewinds",
        "stores that were replaced, rewound and emptied under living workers",
        "tests/crash/test_continuity.py tests/worker/test_continuity.py",
    ),
    Proof(
        "upgrades",
        "an earlier wheel under load, stores of every older schema, migrations that are killed",
        "tests/upgrade tests/stores/test_landed.py tests/stores/test_older_schemas.py tests/stores/test_migrations.py",
    ),
    Proof(
        "moves",
        "copies between stores that are killed, changed and damaged on the way",
        "tests/stores/test_copy.py tests/stores/test_copy_hostile.py",
    ),
    Proof(
        "attacks",
        "requests of strangers: fuzzing by the OpenAPI document, hostile headers, bodies and clients",
        "tests/server/test_fuzz.py tests/server/test_hostile.py tests/server/test_security.py",
    ),
    Proof("torture", "tasks of a user under `holdfast torture`", "tests/cli/test_torture.py"),
    Proof("mutants", "each guard of the program broken in turn: a test must fail", "tests.mutants", is_module=True),
)


def run(proof: Proof, limit_s: float | None) -> dict[str, Any]:
    """Run a proof, for this long at most; return its result."""
    began = time.monotonic()
    at = datetime.now(UTC).isoformat(timespec="seconds")
    about = {"at": at, "commit": _git("rev-parse", "--short=10", "HEAD"), "load": round(os.getloadavg()[0], 1)}
    about["changed"] = bool(_git("status", "--porcelain", "--untracked-files=no"))
    if proof.is_module:
        short = [] if limit_s is None else ["--sample", "1000", "--limit-s", f"{limit_s:.0f}", "--known-green"]
        command = [PYTHON, "-m", proof.words, *short]
        done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        last = [line for line in done.stdout.splitlines() if line.strip()][-1:]
        counts: dict[str, Any] = {"passed": int(done.returncode == 0), "failed": int(done.returncode != 0)}
        counts["said"] = last[0].strip() if last else ""
    else:
        counts = _pytest(proof.words.split(), limit_s)
    return {**about, **counts, "minutes": round((time.monotonic() - began) / 60, 1)}


def _pytest(words: list[str], limit_s: float | None) -> dict[str, Any]:
    environment, short = dict(os.environ), list[str]()
    if limit_s is not None:
        short = ["-p", "proof_deadline"]
        own = {"PROOF_LIMIT_S": repr(limit_s), "PROOF_SEED": str(random.randrange(10**6))}
        environment |= {"PYTHONPATH": str(Path(__file__).parent), **own}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [PYTHON, "-m", "pytest", "-q", "-n", "2", *short, f"--junitxml={report}", *words]
        subprocess.run(command, cwd=ROOT, env=environment, check=False, stdout=subprocess.DEVNULL)
        cases = ET.parse(report).getroot().iter("testcase")
        counts = {"passed": 0, "failed": 0, "skipped": 0, "left_out": 0}
        failed = []
        for case in cases:
            kinds = {child.tag for child in case}
            kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
            if kind == "skipped" and any(LEFT_OUT in str(child.get("message")) for child in case):
                kind = "left_out"
            counts[kind] += 1
            if kind == "failed":
                failed.append(str(case.get("name")))
    return {**counts, "names": failed[:20]}


def page(results: dict[str, Any]) -> str:
    """Return the page, made from results."""
    lines = [
        "# What was thrown at Holdfast",
        "",
        "After this page you know what Holdfast was tested with, what held, what did not, and the command for each.",
        "The numbers are from committed results; `make proof` runs everything again and writes this page.",
        "`make proof MINUTES=20` runs random cases of each for that time together.",
        "",
        "## What held, and what did not",
        "",
        "A row counts cases: one attack on one store. A case that failed is named below the table.",
        "",
        "| proof | thrown | cases | held | failed | on | at commit |",
        "|---|---|---|---|---|---|---|",
    ]
    for proof in PROOFS:
        found = results.get(proof.name)
        if found is None:
            lines.append(f"| {proof.name} | {proof.thrown} | | | | not run yet | |")
            continue
        cases = found["passed"] + found["failed"]
        changed = ", with changes" if found["changed"] else ""
        where = f"{found['at'][:10]} | {found['commit']}{changed}"
        lines.append(f"| {proof.name} | {proof.thrown} | {cases} | {found['passed']} | {found['failed']} | {where} |")
    failed = [(name, each) for name, each in results.items() if each["failed"]]
    lines += ["", "Failed in these runs:", ""]
    lines += [f"- {name}: {', '.join(each.get('names', [])) or each.get('said', '')}" for name, each in failed] or [
        "- nothing."
    ]
    skipped = sum(each.get("skipped", 0) for each in results.values())
    left_out = {name: each["left_out"] for name, each in results.items() if each.get("left_out")}
    if left_out:
        words = ", ".join(f"{name} {number}" for name, number in left_out.items())
        lines += ["", f"These runs were short (`make proof MINUTES=…`). Cases that they left out: {words}."]
    loads = [each["load"] for each in results.values()]
    if loads:
        lines += ["", f"{skipped} cases were skipped. The load of the machine was from {min(loads)} to {max(loads)}."]
    lines += [
        "",
        "## The command for each",
        "",
        "```text",
        *(f"{proof.name:<14} {proof.command}" for proof in PROOFS),
        "```",
        "",
        "One proof alone: `.venv/bin/python bench/proof.py --only NAME`.",
        "",
        "## What does not hold",
        "",
        "[guarantees.md](guarantees.md#what-is-not-promised) lists what is not promised, with the reason and the test",
        'that shows it. In short: code may run twice under `on_crash="retry"`, a frozen process may act late,',
        "and SQLite has one writer.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run proofs, keep the results, write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action="append", choices=[proof.name for proof in PROOFS])
    parser.add_argument("--minutes", type=float, help="for all together; each proof begins no case after its share")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if given.check:
        sys.exit(
            "docs/proof.md is not what the results say; run: bench/proof.py --write"
            * (PAGE.read_text() != page(results))
        )
    chosen = [] if given.write else [each for each in PROOFS if given.only is None or each.name in given.only]
    limit_s = None if given.minutes is None else given.minutes * 60 / max(1, len(chosen))
    for proof in chosen:
        print(f"{proof.name}: {proof.command}", flush=True)
        results[proof.name] = run(proof, limit_s)
        print(f"  {results[proof.name]}", flush=True)
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, check=False, capture_output=True, text=True)
    return re.sub(r"\s+", " ", done.stdout.strip())


if __name__ == "__main__":
    main()
