"""Jobs, 4 workers, and kill -9 at random.  python bench/storm.py [jobs] [kills] [seed] [--store postgres|redis [URL]]

5,000 jobs and 40 kills by default. With --minutes N it goes on for so long, and so many jobs are kept waiting. On
PostgreSQL and Redis the server is killed too, unless its address was given. On PostgreSQL every third job writes to a
table of the user's inside ctx.transaction(). Every job must be done, by its newest attempt, once; every effect must be
there once; nobody may be taken for dead who was not killed. Prints what was seen, and exits non-zero when a promise was
broken.
"""

import argparse
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.crash.storm import Plan, storm
from tests.crash.world import schema_of_its_own
from tests.servers import PostgresServer, RedisServer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="kill -9 at random, and what it costs")
    parser.add_argument("jobs", type=int, nargs="?")
    parser.add_argument("kills", type=int, nargs="?", default=40)
    parser.add_argument("seed", type=int, nargs="?", default=1)
    parser.add_argument("--store", nargs="+", default=["sqlite"], metavar=("KIND", "URL"))
    parser.add_argument("--minutes", type=float, default=0.0)
    return parser.parse_args()


def main(given: argparse.Namespace) -> int:
    kind, *address = given.store
    jobs = given.jobs or (500 if given.minutes else 5_000)
    minutes = given.minutes
    plan = Plan(jobs=jobs, kills=0 if minutes else given.kills, minutes=minutes, refill=minutes > 0, seed=given.seed)
    plan = replace(plan, slots=8, patience_s=900.0)
    amount = f"{jobs} always waiting, {given.minutes:g} minutes" if given.minutes else f"{jobs}, {given.kills} kills"
    print(f"{kind}: jobs of 20 to 200 ms, {amount}, 2 groups of 2 workers, seed {given.seed}", flush=True)
    with ExitStack() as stack:
        folder, url, server = Path(stack.enter_context(tempfile.TemporaryDirectory())), "", None
        if kind == "postgres":
            plan = replace(plan, effects=True, pause_s=(0.3, 2.0))
            if not address:
                server = PostgresServer(settings=())  # durable: as it comes
                stack.callback(server.close)
                plan = replace(plan, server_share=0.15)
            url = stack.enter_context(schema_of_its_own(address[0] if server is None else server.url, "storm"))
        elif kind == "redis":
            plan = replace(plan, pause_s=(0.3, 2.0))
            if not address:
                server = RedisServer("--appendonly", "yes", "--appendfsync", "always")
                stack.callback(server.close)
                plan = replace(plan, server_share=0.15)
            url = address[0] if server is None else server.url
        figures = storm(folder, plan, url, server)
    print("\n".join(figures.lines()))
    return 1 if figures.wrong else 0


if __name__ == "__main__":
    sys.exit(main(arguments()))
