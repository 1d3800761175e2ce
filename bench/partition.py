"""Two hosts, and the network between them cut.  sudo .venv/bin/python bench/partition.py [rounds]

Needs Linux, root, unshare, nsenter and ip. Two network namespaces, joined by a cable: the server and one worker are in
the first, another worker in the second. In each round that one runs three jobs when the cable is pulled: nothing says
that the server is away. It must stop its handlers before their leases end, the other side must run them, and when the
cable is back nothing that it says may be accepted. Prints what was seen, and exits non-zero when a promise was broken.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.crash.world import Process, World, schema_of_its_own, until
from tests.servers import PostgresServer

HERE, THERE = "10.231.7.1", "10.231.7.2"
JOBS, LEASE_S = 3, 4.0
INSIDE = "HOLDFAST_PARTITION"


def main(rounds: int) -> int:
    if INSIDE not in os.environ:
        again = ["unshare", "--net", sys.executable, __file__, str(rounds)]
        return subprocess.run(again, env={**os.environ, INSIDE: "1"}, check=False).returncode
    far = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
    try:
        join(far.pid)
        server = PostgresServer(settings=(f"listen_addresses=127.0.0.1,{HERE}",))
        try:
            return play(server, far.pid, rounds)
        finally:
            server.close()
    finally:
        far.kill()
        far.wait()


def join(far: int) -> None:
    """Lay the cable between this namespace and that of the process."""
    until(lambda: namespace(far) != namespace(os.getpid()), "the second namespace")
    ip("link set lo up")
    ip(f"link add near type veth peer name far netns {far}")
    ip(f"address add {HERE}/24 dev near")
    ip("link set near up")
    for words in ("link set lo up", f"address add {THERE}/24 dev far", "link set far up"):
        subprocess.run(["nsenter", "--net", "-t", str(far), "ip", *words.split()], check=True)


def ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True)


def namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def play(server: PostgresServer, far: int, rounds: int) -> int:
    with (server.folder / "data" / "pg_hba.conf").open("a") as rules:
        rules.write(f"host all all {THERE}/32 trust\n")
    server.execute("SELECT pg_reload_conf()")
    margins: list[float] = []
    takeovers: list[float] = []
    with tempfile.TemporaryDirectory() as name, schema_of_its_own(server.url, "partition") as url:
        world = World(Path(name), url=url)
        try:
            for _ in range(rounds):
                cut(world, far, margins, takeovers)
        finally:
            world.close()
    print(
        f"{rounds} rounds of {JOBS} jobs, leases of {LEASE_S:g} s: handlers stopped {min(margins):.2f} s or more before"
        f" their lease ended; started again on the other side {statistics.median(takeovers):.2f} s (median; longest"
        f" {max(takeovers):.2f} s) after the cable was pulled; everything said after it was back was refused"
    )
    return 0


def cut(world: World, far: int, margins: list[float], takeovers: list[float]) -> None:
    """Play one round; raises when a promise is broken."""
    there = worker_there(world, far)
    task = world.tasks.from_the_grave.using(lease_s=LEASE_S)
    jobs = [task.enqueue().id for _ in range(JOBS)]
    for job in jobs:
        world.until_started(job)
    before = {job: world.row(job).lease_until or 0.0 for job in jobs}
    until(lambda: all((world.row(job).lease_until or 0.0) > before[job] for job in jobs), "it beats")
    ip("link set near down")
    leases = {job: world.row(job).lease_until or 0.0 for job in jobs}
    pulled_at = world.store.now().wall
    here = world.worker("here").until_ready()
    for job in jobs:
        again = world.until_started(job, 2)
        row = world.until_state(job, "done")
        assert row.result == str(again.fence), "the successor's result stands"
        [stopped] = [each for each in world.ledger("end", job) if each.attempt == 1]
        assert stopped.wall < leases[job], "it stopped before its lease ended"
        assert stopped.wall < again.wall, "they never ran at the same time"
        margins.append(leases[job] - stopped.wall)
        takeovers.append(again.wall - pulled_at)
    ends = {job: world.row(job) for job in jobs}
    ip("link set near up")
    for job in jobs:
        until(lambda job=job: world.events(job, "stale_report"), "what it says is refused")  # type: ignore[misc]
        assert world.row(job) == ends[job], "nothing of it was accepted"
        assert len(world.events(job, "stale_report")) == 1
    for process in (there, here):
        process.kill()


def worker_there(world: World, far: int) -> Process:
    """Start a worker in the second namespace."""
    url = world.url.replace("127.0.0.1", HERE)
    command = ["-m", "holdfast", "worker", "crash_tasks:app", "--name", "there"]
    enter = (
        "import os, sys; os.execvp('nsenter', ['nsenter', '--net', '-t', sys.argv[1], sys.executable, *sys.argv[2:]])"
    )
    return world.run("there", ["-c", enter, str(far), *command], {"HOLDFAST_DB": url}).until_ready()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 5))
