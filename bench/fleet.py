"""What a fleet of idle workers asks of a PostgreSQL server, and how soon it finds a death.

    .venv/bin/python bench/fleet.py [--workers 30] [--groups 30] [--seconds 60] [--kills 3] [--max-connections 300]

Each group is a `holdfast worker`: one supervisor with its share of the worker processes. The app declares a workflow
and a schedule, and nothing is due. After the measurement whole groups are killed one after the other: each runs a job,
and the time counts from the kill until the verdict is written. Then single worker processes are killed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import psycopg
from noise import cpu_seconds
from watch import stop

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.servers import PostgresServer

from holdfast import App, Flow, Job, Refused

HERE = Path(__file__).resolve().parent
BOUNDS_S = {"group": 3.0, "child": 0.25}  # from a death until the verdict is written
STATEMENTS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
OURS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast'"
STARTED = "SELECT worker.pid FROM job JOIN worker ON worker.id = job.worker WHERE job.id = %s AND job.started"
VERDICT = "SELECT at FROM journal WHERE job_id = %s AND kind = 'zombie' ORDER BY seq DESC LIMIT 1"


def make_app(url: str | None = None) -> App:
    app = App(url)

    @app.task(lease_s=30)
    async def hangs() -> None:
        await asyncio.sleep(3600)

    @app.workflow
    def sleeps(flow: Flow) -> None:
        flow.sleep(hours=1)

    app.cron("0 0 1 1 *", hangs)
    return app


app = make_app()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=30, help="worker processes in all")
    parser.add_argument("--groups", type=int, default=0, help="supervisors that they are divided among [each its own]")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to measure")
    parser.add_argument("--rest", type=float, default=45.0, help="how long to wait before, for idle connections to go")
    parser.add_argument("--kills", type=int, default=3, help="deaths of each kind")
    parser.add_argument("--max-connections", type=int, default=300)
    given = parser.parse_args()
    groups = given.groups or given.workers
    server = PostgresServer(settings=(f"max_connections={given.max_connections}",))
    try:
        with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
            fleet = Fleet(server, Path(folder), stack)
            began = time.monotonic()
            for number in range(groups):
                share = given.workers // groups + (number < given.workers % groups)
                fleet.start(f"g{number}", share)
            fleet.wait_until_ready(given.workers)
            print(
                f"{given.workers} worker processes of {groups} supervisors, ready in {time.monotonic() - began:.0f} s"
            )
            time.sleep(given.rest)
            fleet.measure(given.workers, given.seconds)
            missed = sum(fleet.kill(kind, given.kills) for kind in BOUNDS_S)
            fleet.complain()
    finally:
        server.close()
    return 1 if missed else 0


class Fleet:
    """The processes of one run, and a connection that looks at the server."""

    def __init__(self, server: PostgresServer, folder: Path, stack: ExitStack) -> None:
        self._server = server
        self._folder = folder
        self._groups: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(self._stop)
        self._app = make_app(server.url)
        stack.enter_context(self._app)
        self._app.counts()  # makes the tables
        self._db = psycopg.connect(server.url, autocommit=True, options="-c search_path=holdfast", application_name="x")

    def start(self, name: str, processes: int) -> None:
        command = [sys.executable, "-m", "holdfast", "worker", "fleet:app", "--name", name, "--slots", "1"]
        env = {**os.environ, "HOLDFAST_DB": self._server.url}
        with (self._folder / f"{name}.log").open("ab") as log:
            self._groups[name] = subprocess.Popen(
                [*command, "--processes", str(processes)],
                cwd=HERE,
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_ready(self, workers: int) -> None:
        give_up_at = time.monotonic() + 600
        while sum(log.read_text().count(" is ready: ") for log in self._folder.glob("*.log")) < workers:
            if time.monotonic() > give_up_at:
                raise SystemExit(
                    "the workers do not get ready:\n" + next(self._folder.glob("*.log")).read_text()[-2000:]
                )
            time.sleep(0.5)

    def measure(self, workers: int, seconds: float) -> None:
        """Print what the fleet asks of the server while it is idle."""
        pids = [group.pid for group in self._groups.values()]
        before, server_before = sum(map(cpu_seconds, pids)), cpu_seconds(self._server._process.pid)
        [began_with], began = self._db.execute(STATEMENTS).fetchone(), time.monotonic()
        connections: Counter[int] = Counter()
        looks = 0
        while (took := time.monotonic() - began) < seconds:
            time.sleep(min(2.0, seconds - took))
            [many] = self._db.execute(OURS).fetchone()
            connections[many] += 1
            looks += 1
        time.sleep(1.5)  # a session tells of its transactions after a second at the latest
        took = time.monotonic() - began
        [ended_with] = self._db.execute(STATEMENTS).fetchone()
        rate = (ended_with - began_with - looks - 1) / took
        most = max(connections)
        usual = connections.most_common(1)[0][0]
        cpu, server_cpu = sum(map(cpu_seconds, pids)) - before, cpu_seconds(self._server._process.pid) - server_before
        print(f"connections: {usual} ({usual / workers:.2f} for each worker process), at most {most}")
        print(f"transactions: {rate:.1f}/s ({rate / workers:.2f}/s for each worker process) over {took:.0f} s")
        share, of_server = 100 * cpu / took, 100 * server_cpu / took
        print(f"processor: {share:.0f} % of a core in the workers, {of_server:.0f} % in the server")

    def kill(self, kind: str, rounds: int) -> int:
        """Kill what runs a job, so many times; return whether the bound was missed."""
        found = []
        for _ in range(rounds):
            handle = self._app.named("hangs").enqueue()
            job = handle.id
            pid = self._value(STARTED, job)
            group = next(group for group in self._groups.values() if pid in _children(group.pid))
            killed_at = time.time()
            if kind == "group":
                os.killpg(group.pid, signal.SIGKILL)
                group.wait()
            else:
                os.kill(pid, signal.SIGKILL)
            found.append(self._value(VERDICT, job) - killed_at)
            self._cancel(handle)
        found.sort()
        if found:
            figures = ", ".join(f"{each:.2f}" for each in found)
            print(f"{kind} killed: verdict after {figures} s (bound {BOUNDS_S[kind]} s)")
        return bool(found) and found[len(found) // 2] > BOUNDS_S[kind]

    def _cancel(self, job: Job) -> None:
        while True:
            try:
                job.cancel()
                return
            except Refused:  # another worker has claimed it just now
                time.sleep(0.1)

    def complain(self) -> None:
        """Print what the workers have to say beyond the ordinary."""
        lines = Counter(
            " ".join(line.split()[2:])[:150]
            for log in self._folder.glob("*.log")
            for line in log.read_text().splitlines()
            if " WARNING " in line or " ERROR " in line or "Traceback" in line
        )
        for line, times in lines.most_common(8):
            print(f"  {times} x {line}")

    def _value(self, query: str, job: str) -> float:
        give_up_at = time.monotonic() + 120
        while (row := self._db.execute(query, (job,)).fetchone()) is None:
            if time.monotonic() > give_up_at:
                raise SystemExit(f"waited for 120 s: {query}")
            time.sleep(0.01)
        return row[0]

    def _stop(self) -> None:
        for group in self._groups.values():
            if group.poll() is None:
                group.send_signal(signal.SIGTERM)
        for group in self._groups.values():
            if group.poll() is None:
                stop(group, signal.SIGTERM)


def _children(pid: int) -> list[int]:
    try:
        return [
            int(each)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for each in (task / "children").read_text().split()
        ]
    except OSError:
        return []


if __name__ == "__main__":
    sys.exit(main())
