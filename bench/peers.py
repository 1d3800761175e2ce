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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ground import HERE, Ground
from stores import database, sync

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
    script: str = ""  # peer_SCRIPT.py, where that is not its name
    bulk: bool = False  # it has a call for many jobs
    batch: int = 0  # $BENCH_BATCH; where it is set only the drain is measured: the rest is as without it


PEERS = {
    "huey": Peer("huey 3.5", "sqlite", "consumer with 4 threads; WAL, synchronous FULL; no acknowledgement exists"),
    "persistqueue": Peer(
        "persist-queue 1.1", "sqlite", "SQLiteAckQueue, our loop; WAL, synchronous FULL", picks_up=False
    ),
    "litequeue": Peer("litequeue 0.9", "sqlite", "our loop; WAL, synchronous NORMAL: no fsync per job", picks_up=False),
    "dbos": Peer(
        "DBOS 3.3", "sqlite", "rollback journal, synchronous FULL; polls its queue each second", depth=0.05, singles=0.2
    ),
    "pgqueuer": Peer(
        "PgQueuer 1.6",
        "postgres",
        "asyncpg, uvloop; batch_size=10 (default); finished rows deleted, logged",
        bulk=True,
    ),
    "pgqueuer100": Peer("PgQueuer 1.6, batches of 100", "postgres", "batch_size=100", script="pgqueuer", batch=100),
    "awa": Peer("awa 0.6", "postgres", "queue storage; 1,024 slots, which did best here; else default", bulk=True),
    "procrastinate": Peer(
        "Procrastinate 3.10", "postgres", "concurrency=10, LISTEN/NOTIFY; finished jobs kept", depth=0.2, singles=0.5
    ),
    "saq": Peer("SAQ 0.26", "postgres", "concurrency=10 (default), LISTEN/NOTIFY", depth=0.2, singles=0.5),
    "dbos_postgres": Peer(
        "DBOS 3.3", "postgres", "default; polls its queue each second", depth=0.1, singles=0.2, script="dbos"
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
        with _place(peer, folder / "drain.db") as env:
            _ask(name, "fill", env, jobs)
            if "BENCH_URL" in env:
                sync(env["BENCH_URL"], on=True)
            drained = _ask(name, "drain", env, jobs, scale.peer_cap_s)
        found = {f"{name}.drain": drained["rate"], f"{name}.jobs": drained["jobs"]}
        if not peer.batch:
            with _place(peer, folder / "enqueue.db", synced=True) as env:
                found[f"{name}.enqueue"] = _ask(name, "enqueue", env, int(scale.singles * peer.singles))["rate"]
        if peer.bulk:
            with _place(peer, folder / "bulk.db", synced=True) as env:
                found[f"{name}.bulk"] = _ask(name, "bulk", env, jobs)["rate"]
        if peer.picks_up and not peer.batch:
            with _place(peer, folder / "pickup.db", synced=True) as env:
                picked = _ask(name, "pickup", env, scale.probes)
                found |= {f"{name}.pickup.{part}": value for part, value in picked.items()}
        return found
    finally:
        shutil.rmtree(folder)


@contextmanager
def _place(peer: Peer, path: Path, *, synced: bool = False) -> Iterator[dict[str, str]]:
    """Lend an empty database; yield the variables that lead to it."""
    env = {**os.environ, "BENCH_FILE": str(path), "BENCH_BATCH": str(peer.batch or "")}
    if peer.store != "postgres":
        yield env
        return
    with database() as url:
        sync(url, on=synced)
        yield {**env, "BENCH_URL": url}


def _ask(name: str, verb: str, env: dict[str, str], jobs: int, cap_s: float = 0.0) -> dict[str, float]:
    script = HERE / f"peer_{PEERS[name].script or name}.py"
    command = [str(PYTHON), str(script), verb, env["BENCH_FILE"], str(jobs), str(cap_s)]
    env = {**env, "BENCH_FSYNC": "0" if verb == "fill" else "1"}
    asked = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if asked.returncode != 0:
        raise RuntimeError(f"{name}: {verb} failed: {asked.stderr.strip()[-1000:]}")
    answer: dict[str, float] = json.loads(asked.stdout.splitlines()[-1])
    return answer
