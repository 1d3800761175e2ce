"""How soon does a job run again after kill -9?

    python bench/recovery.py [rounds] [--store postgres|redis [URL]] [--scene WORDS]

Ten rounds of each scene by default, with real processes; exits non-zero when a median misses its bound. Without a URL
a server is started for it, durable as it comes.
"""

import argparse
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.crash.recovery import BUSY_SCENES, SCENES
from tests.crash.world import World, schema_of_its_own
from tests.servers import PostgresServer, RedisServer


def main(rounds: int, kind: str, server: str, wanted: str) -> int:
    missed = 0
    print(f"{kind}: from kill -9 until the handler runs again".ljust(54), end=" ")
    print(" ".join(f"{name:>8}" for name in ("min", "median", "max", "bound")))
    for scene, (measure, bounds_s) in {**SCENES, **BUSY_SCENES}.items():
        if kind not in bounds_s or wanted not in scene:
            continue
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            url = server
            if kind == "postgres":
                url = stack.enter_context(schema_of_its_own(server, "recovery"))
            elif kind == "redis":
                url = f"{server}?prefix=recovery{len(scene)}"
            world = World(folder, url=url)
            stack.callback(world.close)
            figures = sorted(measure(world, rounds))
        median, bound_s = statistics.median(figures), bounds_s[kind]
        missed += median > bound_s
        cells = [f"{each:.3f} s" for each in (figures[0], median, figures[-1], bound_s)]
        print(f"{scene:54} " + " ".join(f"{cell:>8}" for cell in cells), flush=True)
    print(f"{rounds} rounds each; " + ("every median is within its bound" if not missed else f"{missed} MISSED"))
    return 1 if missed else 0


def run() -> int:
    parser = argparse.ArgumentParser(description="how soon a job runs again after kill -9")
    parser.add_argument("rounds", type=int, nargs="?", default=10)
    parser.add_argument("--store", nargs="+", default=["sqlite"], metavar=("KIND", "URL"))
    parser.add_argument("--scene", default="", help="only those whose name contains this")
    given = parser.parse_args()
    kind, *address = given.store
    if kind == "sqlite" or address:
        return main(given.rounds, kind, *(address or [""]), given.scene)
    server = RedisServer("--appendonly", "yes") if kind == "redis" else PostgresServer(settings=())
    try:
        return main(given.rounds, kind, server.url, given.scene)
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(run())
