"""The peers that Holdfast is read beside, each with its own recommended settings; they live in .venv-bench.

A new peer is a script `peer_NAME.py` with the verbs of peer.py, and a line in `PEERS`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ground import HERE, Ground

ROOT = HERE.parent
VENV = ROOT / ".venv-bench"
PYTHON = VENV / "bin" / "python"


@dataclass(frozen=True)
class Peer:
    """One peer on one kind of store."""

    label: str
    store: str
    settings: str
    depth: float = 1.0  # of the jobs queued for others: where enqueueing is too slow for more
    singles: float = 1.0
    picks_up: bool = True  # it has a worker of its own that waits for jobs


PEERS = {
    "huey": Peer("huey 3.5", "sqlite", "consumer with 4 threads; WAL, synchronous FULL; no acknowledgement exists"),
    "persistqueue": Peer(
        "persist-queue 1.1", "sqlite", "SQLiteAckQueue, our loop; WAL, synchronous FULL", picks_up=False
    ),
    "litequeue": Peer("litequeue 0.9", "sqlite", "our loop; WAL, synchronous NORMAL: no fsync per job", picks_up=False),
    "dbos": Peer(
        "DBOS 3.3", "sqlite", "rollback journal, synchronous FULL; polls its queue each second", depth=0.05, singles=0.2
    ),
}


def prepare() -> str | None:
    """Make the environment from bench/requirements.lock, unless it is there; return what went wrong, if so."""
    target = f"{VENV.name}/.locked"
    variables = [f"VENV={VENV.name}", "LOCK=bench/requirements.lock", f"PYTHON={sys._base_executable}"]  # type: ignore[attr-defined]
    made = subprocess.run(["make", "-s", *variables, target], cwd=ROOT, capture_output=True, text=True)
    return None if made.returncode == 0 else (made.stderr.strip().splitlines() or ["make failed"])[-1]


def measure(name: str, ground: Ground) -> dict[str, float]:
    """Take one round of a peer's figures."""
    peer, scale = PEERS[name], ground.scale
    jobs = int(scale.peer_jobs * peer.depth)
    folder = Path(tempfile.mkdtemp(dir=ground.folder))
    try:
        _ask(name, "fill", folder / "drain.db", jobs)
        drained = _ask(name, "drain", folder / "drain.db", jobs, scale.peer_cap_s)
        singles = _ask(name, "enqueue", folder / "enqueue.db", int(scale.singles * peer.singles))
        found = {f"{name}.drain": drained["rate"], f"{name}.jobs": drained["jobs"], f"{name}.enqueue": singles["rate"]}
        if peer.picks_up:
            picked = _ask(name, "pickup", folder / "pickup.db", scale.probes)
            found |= {f"{name}.pickup.{part}": value for part, value in picked.items()}
        return found
    finally:
        shutil.rmtree(folder)


def _ask(name: str, verb: str, path: Path, jobs: int, cap_s: float = 0.0) -> dict[str, float]:
    command = [str(PYTHON), str(HERE / f"peer_{name}.py"), verb, str(path), str(jobs), str(cap_s)]
    env = {**os.environ, "BENCH_FILE": str(path), "BENCH_FSYNC": "0" if verb == "fill" else "1"}
    asked = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if asked.returncode != 0:
        raise RuntimeError(f"{name}: {verb} failed: {asked.stderr.strip()[-1000:]}")
    answer: dict[str, float] = json.loads(asked.stdout.splitlines()[-1])
    return answer
