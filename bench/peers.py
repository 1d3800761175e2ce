"""The peers that Holdfast is read beside, each with its own recommended settings; they live in .venv-bench.

A new peer is a script `peer_NAME.py` with the verbs of peer.py, and a line in `PEERS`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from ground import HERE, Ground
from stores import database, redis_server, sync

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
    large: bool = False  # the drain is also measured with many jobs, and with two processes if it has any
    processes: tuple[int, ...] = (1,)
    env: str = ""  # its packages are those of requirements-ENV.lock; "": of those for its store


PEERS = {
    "huey": Peer(
        "huey 3.5", "sqlite", "consumer with 4 threads; WAL, synchronous FULL; no acknowledgement exists", large=True
    ),
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
    "pgqueuer100": Peer(
        "PgQueuer 1.6, batches of 100",
        "postgres",
        "batch_size=100",
        script="pgqueuer",
        batch=100,
        large=True,
        processes=(1, 2),
    ),
    "awa": Peer("awa 0.6", "postgres", "queue storage; 1,024 slots, which did best here; else default", bulk=True),
    "procrastinate": Peer(
        "Procrastinate 3.10", "postgres", "concurrency=10, LISTEN/NOTIFY; finished jobs kept", depth=0.2, singles=0.5
    ),
    "saq": Peer("SAQ 0.26", "postgres", "concurrency=10 (default), LISTEN/NOTIFY", depth=0.2, singles=0.5),
    "dbos_postgres": Peer(
        "DBOS 3.3", "postgres", "default; polls its queue each second", depth=0.1, singles=0.2, script="dbos"
    ),
    "dramatiq": Peer("Dramatiq 2.2", "redis", "one process, 8 threads (default); no results", bulk=True),
    "saq_redis": Peer("SAQ 0.26", "redis", "concurrency=10 (default)", depth=0.5, bulk=True),
    "arq": Peer("arq 0.28", "redis", "max_jobs=10, looks each 0.5 s (defaults)", depth=0.2, bulk=True),
    "rq": Peer("RQ 2.12", "redis", "SimpleWorker, which does not fork for each job", depth=0.2, bulk=True),
    "celery": Peer("Celery 5.7", "redis", "20 threads, acks_late, no results", depth=0.2, bulk=True, env="redis7"),
    "taskiq": Peer("Taskiq 0.13", "redis", "RedisStreamBroker, one worker process", depth=0.5, bulk=True, env="redis7"),
    "huey_redis": Peer("huey 3.5", "redis", "consumer with 4 threads; no acknowledgement exists", bulk=True),
}


def prepare(store: str) -> str | None:
    """Make the environments of the peers on this store, unless they are there; return what went wrong, if so."""
    for env in sorted({environment(name) for name, peer in PEERS.items() if peer.store == store}):
        venv, lock = _venv(env).name, f"bench/requirements{env}.lock"
        variables = [f"VENV={venv}", f"LOCK={lock}", f"PYTHON={sys._base_executable}"]  # type: ignore[attr-defined]
        made = subprocess.run(["make", "-s", *variables, f"{venv}/.locked"], cwd=ROOT, capture_output=True, text=True)
        if made.returncode != 0:
            return (made.stderr.strip().splitlines() or ["make failed"])[-1]
    return None


def environment(name: str) -> str:
    """Return what the lock file of a peer has behind `requirements` in its name."""
    peer = PEERS[name]
    return f"-{peer.env or peer.store}" if peer.store == "redis" else ""


def _venv(env: str) -> Path:
    return ROOT / f"{VENV.name}{env}"


def measure(name: str, ground: Ground) -> dict[str, float]:
    """Take one round of a peer's figures."""
    peer, scale = PEERS[name], ground.scale
    jobs = int(scale.jobs * peer.depth)
    found: dict[str, float] = {}
    for processes in peer.processes:
        for size, number in (("", jobs), (".large", scale.many))[: 1 + peer.large]:
            two = ".two" if processes == 2 else ""
            found[f"{name}.drain{two}{size}"] = _drained(name, ground, number, processes)
    if not peer.batch:
        singles = int(scale.singles * peer.singles)
        found[f"{name}.enqueue"] = _asked(name, ground, "enqueue", singles)["rate"]
    if peer.bulk:
        found[f"{name}.bulk"] = _asked(name, ground, "bulk", jobs)["rate"]
        found[f"{name}.bulk.large"] = _asked(name, ground, "bulk", scale.many)["rate"]
    if peer.picks_up and not peer.batch:
        picked = _asked(name, ground, "pickup", scale.probes)
        found |= {f"{name}.pickup.{part}": value for part, value in picked.items()}
    return found


def _drained(name: str, ground: Ground, jobs: int, processes: int) -> float:
    """Return how many jobs a second are done, in the time of `peer_cap_s` at the most."""
    with _place(name, ground) as env:
        _ask(name, "fill", env, jobs)
        if PEERS[name].store == "postgres":
            sync(env["BENCH_URL"], on=True)
        return _ask(name, "drain", env | {"BENCH_PROCESSES": str(processes)}, jobs, ground.scale.peer_cap_s)["rate"]


def _asked(name: str, ground: Ground, verb: str, jobs: int) -> dict[str, float]:
    with _place(name, ground, synced=True) as env:
        return _ask(name, verb, env, jobs)


@contextmanager
def _place(name: str, ground: Ground, *, synced: bool = False) -> Iterator[dict[str, str]]:
    """Lend an empty database; yield the variables that lead to it."""
    peer = PEERS[name]
    with tempfile.TemporaryDirectory(dir=ground.folder) as folder:
        env = {**os.environ, "BENCH_FILE": f"{folder}/peer.db", "BENCH_BATCH": str(peer.batch or "")}
        if peer.store == "redis":
            url = f"{redis_server()}/0"
            with closing(redis.Redis.from_url(url)) as db:
                db.flushdb()
            yield {**env, "BENCH_URL": url}
            return
        if peer.store != "postgres":
            yield env
            return
        with database() as url:
            sync(url, on=synced)
            yield {**env, "BENCH_URL": url}


def _ask(name: str, verb: str, env: dict[str, str], jobs: int, cap_s: float = 0.0) -> dict[str, float]:
    script = HERE / f"peer_{PEERS[name].script or name}.py"
    python = _venv(environment(name)) / "bin" / "python"
    command = [str(python), str(script), verb, env["BENCH_FILE"], str(jobs), str(cap_s)]
    env = {**env, "BENCH_FSYNC": "0" if verb == "fill" else "1"}
    asked = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    if asked.returncode != 0:
        raise RuntimeError(f"{name}: {verb} failed: {asked.stderr.strip()[-1000:]}")
    answer: dict[str, float] = json.loads(asked.stdout.splitlines()[-1])
    return answer
