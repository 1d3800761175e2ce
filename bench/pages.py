"""What each page costs among very many jobs.  .venv/bin/python bench/pages.py [sqlite|postgres|redis] [jobs] [address]

1,000,000 finished jobs by default and 42,000 ready ones, on Redis 300,000 and 12,600; dead, held, waiting and running
jobs; 20,000 lost attempts of the last day; charts of two days; a workflow of 200 steps. Asks a server in this process
for each page, warm, and prints the median of 20 in ms: how long the page waits for the store, and how long that keeps
this process busy, next to the limit; then the time of the whole answer, and how long that keeps this process busy.

Exits with 1 when a page is over its limit, or busy for more than 200 ms. What counts of SQLite is the busy time, which
other programs disturb least; other stores work in processes of their own, so there it is the wait.

With an address the store is kept: it is filled if it is empty, and measured as it is if not.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import commands
import psycopg
import reads
from ground import home

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from tests.factory import a_step, record  # noqa: E402
from tests.server.client import Client  # noqa: E402
from tests.servers import RedisServer  # noqa: E402

from holdfast import App, insight  # noqa: E402
from holdfast.clock import SystemClock  # noqa: E402
from holdfast.core.machine import State  # noqa: E402
from holdfast.core.policy import Policy, Retry  # noqa: E402
from holdfast.core.records import Filter, NewJob, Worker  # noqa: E402
from holdfast.core.rollups import HOUR, MINUTE, QUARTER, Endings, Rollup, slot_of  # noqa: E402
from holdfast.core.settlement import settlement  # noqa: E402
from holdfast.core.verdict import Failed, Lost, Parked, Succeeded, judge  # noqa: E402
from holdfast.ids import new_id  # noqa: E402
from holdfast.stores import open_store, row_json  # noqa: E402
from holdfast.stores.postgres.store import PostgresStore  # noqa: E402
from holdfast.stores.protocol import Store  # noqa: E402
from holdfast.stores.redis.store import RedisStore  # noqa: E402
from holdfast.stores.sqlite.statements import Q  # noqa: E402
from holdfast.stores.sqlite.store import SqliteStore  # noqa: E402

CLOCK = SystemClock()
ANSWER_MS = 200.0
HTML = {"accept": "text/html"}
STEPS = 200
JOBS = {"sqlite": 1_000_000, "postgres": 1_000_000, "redis": 300_000}
CHUNK = 500


class Watched:
    """Measures how long the verbs of a store take. A verb that another one calls counts once."""

    def __init__(self, store: Store) -> None:
        self.spent_s, self.busy_s, self.calls = 0.0, 0.0, 0
        self._thread = threading.local()
        if (db := getattr(store, "_db", None)) and hasattr(db, "rows"):  # several reads in one round trip
            db.rows = self._watched(db.rows)
        for part in (store, store.figures, store.tokens):
            for name in dir(part):
                if not name.startswith("_") and name not in ("url", "figures", "tokens", "close"):
                    verb = getattr(part, name)
                    if callable(verb):
                        setattr(part, name, self._watched(verb))

    def _watched(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if getattr(self._thread, "is_inside", False):
                return verb(*given, **named)
            self._thread.is_inside, began, busy = True, time.perf_counter(), time.thread_time()
            try:
                return verb(*given, **named)
            finally:
                self.spent_s += time.perf_counter() - began
                self.busy_s += time.thread_time() - busy
                self.calls += 1
                self._thread.is_inside = False

        return call


# ------------------------------------------------------------------------------------------------ filling


def fill(store: Store, jobs: int) -> None:
    """Fill an empty store."""
    ready = max(reads.READY * jobs // 1_000_000, 1_000)
    if isinstance(store, SqliteStore):
        reads.make(store, jobs, ready)
    elif isinstance(store, PostgresStore):
        store.migrate()
        base, _, schema = store.url.partition("?schema=")
        with psycopg.connect(base, autocommit=True, options=f"-c search_path={schema}") as db:
            commands.fill_postgres(store, db, jobs, ready)
    else:
        fill_by_verbs(store, jobs, ready)
    commands.some_trouble(store)
    some_workflow(store)
    while store.figures.fold({}):
        pass
    some_charts(store)


def fill_by_verbs(store: Store, finished: int, ready: int) -> None:
    """Fill a store as programs do."""
    store.migrate()
    queues = [f"queue-{number}" for number in range(reads.QUEUES)]
    tasks = [f"shop.task_{number}" for number in range(20)]
    worker = Worker(id="worker", name="box/1", host="box", pid=1, boot_id=CLOCK.boot_id, queues=queues, beat_s=1e6)
    store.enroll(worker)

    def add(jobs: int, **given: Any) -> None:
        for _ in range(0, jobs, CHUNK):
            new = (
                NewJob(id=new_id(), task=tasks[n % 20], queue=queues[n % 10], payload=f'{{"args":[{n}]}}', **given)
                for n in range(CHUNK)
            )
            store.add(list(new))

    def settle(jobs: int, outcome: Any) -> None:
        for _ in range(0, jobs, CHUNK):
            found = store.claim("worker", new_id(), queues, tasks, CHUNK)
            wall = store.now().wall
            store.settle([settlement(job, judge(outcome, job, wall, chance=0.5)) for job in found])

    dead = finished * reads.DEAD // 1_000_000
    add(finished - dead)
    settle(finished - dead, Succeeded("null"))
    add(dead, policy=Policy(retry=Retry(attempts_max=1)))
    settle(dead, Failed("ValueError: no"))
    add(reads.HELD, policy=Policy(on_crash="hold"))
    settle(reads.HELD, Lost("vanished", "its process ended"))
    add(ready)
    store.claim("worker", new_id(), queues, tasks, reads.RUNNING)


def some_charts(store: Store) -> None:
    """Write rollups of two days by the minute and by the quarter of an hour, and of a week by the hour."""
    wall = store.now().wall
    counts = [3, 9, 4, 1, 0, 2, 5, 8, 2, 1]
    ended = [Endings("done", "", 35, counts, counts), Endings("ready", "vanished", 1, [1], [1])]
    rollups = [
        Rollup(span, slot_of(wall, span) - back, f"queue-{queue}", 40, 0, ended)
        for span, slots in ((MINUTE, 48 * 60), (QUARTER, 48 * 4), (HOUR, 7 * 24))
        for back in range(slots)
        for queue in range(reads.QUEUES)
    ]
    for start in range(0, len(rollups), 5_000):
        page = rollups[start : start + 5_000]
        text = row_json.encode(page).decode()
        if isinstance(store, SqliteStore):
            with store._db.writing(busy_s=60) as db:
                db.execute(Q["fold_write"], {"rollups": text})
        elif isinstance(store, PostgresStore):
            store._db.run(lambda db, text=text: db.execute(store._db["fold_write"], {"rollups": text}))
        else:
            assert isinstance(store, RedisStore)
            for each in page:
                store._db.ask(
                    ("HSET", f"ro:{each.span}:{each.slot}", each.queue, row_json.encode(each)),
                    ("ZADD", f"ro:{each.span}", each.slot, str(each.slot)),
                )


def some_workflow(store: Store) -> None:
    """Add a workflow of many steps that waits for a signal."""
    store.add([NewJob(id="flow", task="shop.order", queue="flows", payload="{}", workflow=True)])
    [job] = store.claim("worker", new_id(), ["flows"], ["shop.order"], 1)
    now = store.now().wall
    for start in range(0, STEPS, CHUNK):
        steps = [
            a_step(n, name=f"step_{n % 12}", started_at=now + n, ended_at=now + n + 0.5, fence=job.fence)
            for n in range(start + 1, min(start + CHUNK, STEPS) + 1)
        ]
        record(store, job, *steps)
    store.settle([settlement(job, judge(Parked("a timer", wake_at=now + 1e6), job, now, chance=0.5))])


@contextmanager
def opened(kind: str, address: str | None) -> Iterator[Store]:
    with tempfile.TemporaryDirectory(dir=home()) as folder:
        if address is not None:
            yield open_store(address)
        elif kind == "sqlite":
            yield SqliteStore(f"sqlite:///{Path(folder) / 'jobs.db'}?synchronous=normal", clock=CLOCK)
        elif kind == "postgres":
            with commands.a_bed() as bed:
                yield PostgresStore(bed.url)
        else:
            server = RedisServer()
            yield open_store(server.url)
            server.close()


# ------------------------------------------------------------------------------------------------ measuring


def pages(store: Store) -> list[tuple[float, str]]:
    """Return the limit of the store's time for each page, in ms, and its path with something to show."""
    [dead] = store.find(Filter(states=(State.DEAD,), limit=1))
    [running] = store.find(Filter(states=(State.RUNNING,), limit=1))
    group = max(store.errors(0.0), key=lambda each: each.attempts)
    error = f"error={quote(group.fingerprint)}"
    of_jobs = (
        *("", "?state=ready", "?state=running", "?state=retrying", "?state=scheduled", "?state=dead", "?state=held"),
        *("?queue=queue-3", "?task=shop.task_3", "?task=shop.rare", "?since=1h", f"?{error}"),
    )
    return [
        *((20.0, path) for path in ("/", "/?window=day", "/?window=week")),
        *((10.0, f"/jobs{query}") for query in of_jobs),
        *((1000.0, f"/jobs?text={text}") for text in ("777", "no-such-text")),
        *((5.0, f"/jobs/{job.id}") for job in (dead, running)),
        (5.0, "/review"),
        (20.0, "/workflows"),
        (20.0, "/workflows/flow"),
        *((30.0, f"/zombies?window={window}") for window in ("hour", "day", "week")),
        (30.0, "/zombies/scan"),
        *((25.0, path) for path in ("/errors", f"/errors/one?task={quote(group.task)}&{error}")),
        *((10.0, path) for path in ("/queues", "/queues/one?queue=queue-3", "/workers", "/workers/one?name=box/1")),
        *((10.0, path) for path in ("/schedules", "/schedules/one?key=nightly")),
        (15.0, "/limits"),
        *((10.0, path) for path in ("/audit", "/settings")),
    ]


def asked(client: Client, watched: Watched, path: str) -> tuple[float, ...]:
    """Ask for a page. Return the seconds of the store and of its processor, those of the answer, and its calls."""
    before = watched.spent_s, watched.busy_s, time.perf_counter(), time.process_time(), watched.calls
    answer = client.get(path, headers=HTML)
    after = watched.spent_s, watched.busy_s, time.perf_counter(), time.process_time(), watched.calls
    assert answer.status_code == 200, (path, answer.status_code, answer.text[:500])
    return tuple(late - early for late, early in zip(after, before, strict=True))


def main(kind: str = "sqlite", jobs: int = 0, address: str | None = None, rounds: int = 20) -> int:
    with opened(kind, address) as store:
        began = time.perf_counter()
        store.migrate()
        if not store.find(Filter(limit=1)):
            fill(store, jobs or JOBS[kind])
        print(f"{kind}, made in {time.perf_counter() - began:.0f} s: {insight.totals(store)}", flush=True)
        app = App("memory://", clock=CLOCK)
        app.opener = lambda: store
        watched, client, over = Watched(store), Client(app), []
        heads = ("store", 8), ("its cpu", 9), ("limit", 7), ("answer", 8), ("cpu", 8), ("calls", 7)
        print(f"{f'median of {rounds}, ms':44}" + "".join(f"{head:>{width}}" for head, width in heads), flush=True)
        for limit_ms, path in pages(store):
            found = [asked(client, watched, path) for _ in range(rounds + 1)][1:]  # the first one warms up
            store_ms, store_cpu_ms, answer_ms, cpu_ms = (
                1000 * statistics.median(each[place] for each in found) for place in range(4)
            )
            is_over = (store_cpu_ms if kind == "sqlite" else store_ms) > limit_ms or cpu_ms > ANSWER_MS
            over += [path] if is_over else []
            shown = path if len(path) < 44 else f"{path[:40]}..."
            print(
                f"{shown:44}{store_ms:8.1f}{store_cpu_ms:9.1f}{limit_ms:7.0f}{answer_ms:8.1f}{cpu_ms:8.1f}"
                f"{found[-1][4]:7.0f}{'  <- over' if is_over else ''}",
                flush=True,
            )
        client.close()
        app.close()
    print(f"over the limit: {', '.join(over) or 'none'}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if sys.argv[1:] else "sqlite", *map(int, sys.argv[2:3]), *sys.argv[3:4]))
