"""How fast one server process is: requests, a remote worker, long polls, and a thousand idle workers.

    .venv/bin/python bench/remote.py [--only single,bulk,drain,pickup,idle] [--workers 1000] [--seconds 20]

The store is SQLite with `synchronous=normal`. Client and server share this machine, so each figure comes with the
processor time of the server alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.server.process import HOLDFAST, ServerProcess

from holdfast import App
from holdfast.ids import new_id

TASKS = """
from holdfast import App
app = App()

@app.task(name="noop", queue="bench")
def noop() -> None: ...
"""
GOALS = {"single": "1,500 requests/s", "bulk": "20,000 jobs/s", "drain": "4,000 jobs/s", "pickup": "p50 10 ms"}


class Http:
    """One kept connection, with as little work in the client as possible."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def open(self) -> Http:
        self._read, self._write = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def post(self, path: str, body: bytes) -> bytes:
        self._write.write(
            b"POST %s HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
            % (path.encode(), len(body), body)
        )
        head = await self._read.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        content = await self._read.readexactly(length)
        if not head.startswith(b"HTTP/1.1 20"):
            raise AssertionError(content)
        return content

    async def stay(self, path: str) -> None:
        """Open a stream, and leave it open."""
        self._write.write(b"GET %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % path.encode())
        await self._read.readuntil(b"\r\n\r\n")

    def close(self) -> None:
        self._write.close()


class Bench:
    def __init__(self, folder: Path, server: ServerProcess) -> None:
        self.folder, self.server = folder, server
        self.port = int(server.url.rpartition(":")[2])
        self._process = psutil.Process(server.process.pid)
        self.behind = App(f"sqlite:///{folder / 'jobs.db'}?synchronous=normal")

    def cpu_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    @asynccontextmanager
    async def clients(self, number: int) -> AsyncIterator[list[Http]]:
        made = [await Http(self.port).open() for _ in range(number)]
        yield made
        for each in made:
            each.close()

    async def _each(self, connections: int, bodies: list[bytes], path: str) -> tuple[float, float]:
        left = iter(bodies)

        async def send(client: Http) -> None:
            for body in left:
                await client.post(path, body)

        async with self.clients(connections) as clients:
            cpu_s, began = self.cpu_s(), time.perf_counter()
            await asyncio.gather(*(send(each) for each in clients))
            return time.perf_counter() - began, self.cpu_s() - cpu_s

    async def single(self) -> str:
        number = 5_000
        body = json.dumps({"task": "noop", "on_crash": "retry", "queue": "single"}).encode()
        took_s, cpu_s = await self._each(32, [body] * number, "/v1/jobs")
        return f"{number / took_s:,.0f} requests/s; server {cpu_s / number * 1e6:.0f} µs of processor each"

    async def bulk(self) -> str:
        each, number = 1_000, 60
        body = json.dumps({"jobs": [{"task": "noop", "on_crash": "retry", "queue": "bulk"}] * each}).encode()
        took_s, cpu_s = await self._each(2, [body] * number, "/v1/jobs/bulk")
        return f"{each * number / took_s:,.0f} jobs/s; server {cpu_s / number / each * 1e6:.1f} µs of processor each"

    async def drain(self) -> str:
        number = 20_000
        self.behind.enqueue_many(
            [self.behind.task_named("noop").job() for _ in range(number)]
            if self.behind.store.published(["noop"])
            else [_draft(self.behind) for _ in range(number)]
        )
        env = {**os.environ, "PYTHONPATH": str(self.folder)}
        command = [*HOLDFAST, "worker", "bench_tasks:app", "--db", self.server.url, "--grace-period", "1"]
        cpu_s = self.cpu_s()
        with (self.folder / "worker.log").open("w") as log:
            worker = subprocess.Popen(command, cwd=self.folder, env=env, stderr=log)
        try:
            first = await self._until(lambda: self._done() > 0)
            before = self._done()
            last = await self._until(lambda: self._done() == number)
        finally:
            worker.terminate()
            worker.wait(60)
        cpu_s = self.cpu_s() - cpu_s
        rate = (number - before) / (last - first)
        return f"{rate:,.0f} jobs/s; server {cpu_s / number * 1e6:.0f} µs of processor each"

    def _done(self) -> int:
        return sum(states.get("done", 0) for queue, states in self.behind.store.counts().items() if queue == "bench")

    async def _until(self, condition: Callable[[], bool]) -> float:
        while not condition():
            await asyncio.sleep(0.02)
        return time.perf_counter()

    async def pickup(self) -> str:
        took_ms = []
        async with self.clients(2) as (worker, producer):
            body = {"name": "p", "queues": ["pickup"], "tasks": ["p"]}
            me = json.loads(await worker.post("/v1/workers", json.dumps(body).encode()))["id"]
            job = json.dumps({"task": "p", "on_crash": "retry", "queue": "pickup"}).encode()
            for _ in range(200):
                asked = {"worker": me, "queues": ["pickup"], "tasks": ["p"], "wait_s": 20, "claim_id": new_id()}
                waiting = asyncio.ensure_future(worker.post("/v1/claim", json.dumps(asked).encode()))
                await asyncio.sleep(0.03)
                began = time.perf_counter()
                await producer.post("/v1/jobs", job)
                [claimed] = json.loads(await waiting)["jobs"]
                took_ms.append((time.perf_counter() - began) * 1e3)
                lease = {name: claimed[name] for name in ("id", "fence", "claim_id")}
                settled = {"outcomes": [{"outcome": "succeeded", "lease": lease}]}
                await worker.post("/v1/settle", json.dumps(settled).encode())
        p90 = statistics.quantiles(took_ms, n=10)[-1]
        return f"p50 {statistics.median(took_ms):.1f} ms, p90 {p90:.1f} ms, with the enqueue"

    async def idle(self, number: int, seconds: float) -> str:
        stopping = asyncio.Event()

        async def worker(at: int) -> None:
            one, two, three = [await Http(self.port).open() for _ in range(3)]
            body = {"name": f"idle-{at}", "queues": ["idle"], "tasks": ["none"]}
            me = json.loads(await one.post("/v1/workers", json.dumps(body).encode()))["id"]
            await three.stay(f"/v1/workers/{me}/alive")

            async def beat() -> None:
                await asyncio.sleep(at % 100 / 10)
                while not stopping.is_set():
                    await two.post("/v1/beat", json.dumps({"worker": me}).encode())
                    await asyncio.sleep(10)

            beating = asyncio.ensure_future(beat())
            claim = json.dumps({"worker": me, "queues": ["idle"], "tasks": ["none"], "wait_s": 20}).encode()
            try:
                while not stopping.is_set():
                    await one.post("/v1/claim", claim)
            finally:
                beating.cancel()
                for each in (one, two, three):
                    each.close()

        workers = []
        for at in range(number):
            workers.append(asyncio.ensure_future(worker(at)))
            if at % 20 == 19:
                await asyncio.sleep(0.1)
        await asyncio.sleep(12)
        failed = [each for each in workers if each.done()]
        assert not failed, failed[0].exception()
        cpu_s, began = self.cpu_s(), time.perf_counter()
        await asyncio.sleep(seconds)
        used = (self.cpu_s() - cpu_s) / (time.perf_counter() - began)
        stopping.set()
        for each in workers:
            each.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return f"{used:.2f} of a core for {number} workers"


def _draft(app: App) -> object:
    from holdfast.enqueueing.by_name import draft_by_name

    return draft_by_name(app, "noop", {}, {"queue": "bench", "on_crash": "retry"})


async def run(bench: Bench, given: argparse.Namespace) -> None:
    for name in given.only.split(","):
        scene = bench.idle(given.workers, given.seconds) if name == "idle" else getattr(bench, name)()
        print(f"{name}: {await scene} (goal: {GOALS.get(name, 'half a core for 1,000')})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="single,bulk,drain,pickup,idle")
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ground = Path(__file__).resolve().parent.parent / ".venv-bench"
    ground.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ground) as made:
        folder = Path(made)
        (folder / "bench_tasks.py").write_text(TASKS)
        with ServerProcess(folder, "--log-level", "warning", db="sqlite:///jobs.db?synchronous=normal") as server:
            bench = Bench(folder, server)
            print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
            asyncio.run(run(bench, given))
            bench.behind.close()
            server.stop()


if __name__ == "__main__":
    main()
