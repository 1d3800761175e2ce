"""What a database and the processes that use it have used so far: processor time, bytes, commits, connections.

Other programs on the machine disturb these little, unlike seconds.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import noise
import psutil
import psycopg
from noise import cpu_seconds, family
from stores import Bed, PostgresBed, RedisBed

from holdfast.core.capacity import Cost


@dataclass
class Used:
    """What a scene used, without the start of its processes."""

    seconds: float = 0.0
    working_s: float = 0.0  # of these, while there were jobs
    store_s: float = 0.0
    worker_s: float = 0.0
    producer_s: float = 0.0
    wal_bytes: float = 0.0
    transactions: float = 0.0
    disk_bytes: float = 0.0  # of the rounds after the second
    lines: int = 0
    of_supervisors: int = 0  # connections,
    of_processes: int = 0  # those of all worker processes, at their most

    @property
    def cost(self) -> Cost:
        """Return it as the cost of one event."""
        return Cost(1e6 * self.store_s, 1e6 * (self.worker_s + self.producer_s), self.wal_bytes, self.transactions)


class Probe:
    """Asks one database, and the processes that use it, what they have used so far."""

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.pids: list[int] = []  # of the commands

    def now(self) -> Used:
        workers = sum(cpu_seconds(pid) for pid in self.pids)
        store = noise.of_servers() if isinstance(self, PostgresProbe) else 0.0
        return Used(
            seconds=time.perf_counter(),
            store_s=store,
            worker_s=workers,
            producer_s=time.process_time(),
            wal_bytes=self.wal(),
            transactions=self.transactions(),
        )

    def since(self, begun: Used) -> Used:
        ended = self.now()
        names = ("seconds", "store_s", "worker_s", "producer_s", "wal_bytes", "transactions")
        return Used(**{name: getattr(ended, name) - getattr(begun, name) for name in names})

    def connections(self) -> tuple[int, int]:
        """Return how many the supervisors have, and how many their worker processes."""
        return 0, 0

    def wal(self) -> float:
        raise NotImplementedError

    def transactions(self) -> float:
        return 0.0

    def size(self) -> float:
        raise NotImplementedError

    def lines(self) -> int:
        raise NotImplementedError

    def clean_up(self) -> None:
        """Have the database clean up now, as it would by itself in a longer run."""


class SqliteProbe(Probe):
    """The log of SQLite is used again and again: what counts is everything that its processes write."""

    def wal(self) -> float:
        everyone = [os.getpid(), *(each for pid in self.pids for each in family(pid))]
        return sum(map(_written, everyone))

    def size(self) -> float:
        with closing(self._open()) as db:
            pages, free, bytes_ = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in _PAGES)
        return float((pages - free) * bytes_)

    def lines(self) -> int:
        with closing(self._open()) as db:
            return int(db.execute("SELECT count(*) FROM holdfast_journal").fetchone()[0])

    def _open(self) -> sqlite3.Connection:
        path = self.bed.url.removeprefix("sqlite:///")
        return sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)


_PAGES = ("page_count", "freelist_count", "page_size")


class PostgresProbe(Probe):
    def __init__(self, bed: PostgresBed) -> None:
        super().__init__(bed)
        self._db = psycopg.connect(bed.base, autocommit=True, options=f"-c search_path={bed.schema}")
        self._schema = bed.schema

    def wal(self) -> float:
        return self._one("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")

    def transactions(self) -> float:
        return self._one("SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database")

    def connections(self) -> tuple[int, int]:
        supervisors, children = self.pids, [each for pid in self.pids for each in family(pid)[1:]]
        return sum(map(self._open_by, supervisors)), sum(map(self._open_by, children))

    def _open_by(self, pid: int) -> int:
        port = self._db.info.port
        found = psutil.Process(pid).net_connections("tcp")
        return sum(bool(each.raddr) and each.raddr.port == port for each in found)

    def size(self) -> float:
        tables = f"pg_class c WHERE c.relkind = 'r' AND c.relnamespace = '{self._schema}'::regnamespace"
        return self._one(f"SELECT sum(pg_total_relation_size(c.oid)) FROM {tables}")

    def lines(self) -> int:
        return int(self._one("SELECT count(*) FROM journal"))

    def clean_up(self) -> None:
        self._db.execute("VACUUM ANALYZE job")
        self._db.execute("VACUUM ANALYZE journal")

    def _one(self, query: str) -> float:
        row = self._db.execute(query).fetchone()  # type: ignore[call-overload]
        return float(row[0])


class RedisProbe(Probe):
    """Only what processes use."""

    def wal(self) -> float:
        return 0.0


def probe_of(bed: Bed) -> Probe:
    if isinstance(bed, RedisBed):
        return RedisProbe(bed)
    return PostgresProbe(bed) if isinstance(bed, PostgresBed) else SqliteProbe(bed)


def _written(pid: int) -> float:
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return float(next(line.partition(":")[2] for line in lines if line.startswith("wchar")))
