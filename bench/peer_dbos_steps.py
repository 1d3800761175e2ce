"""DBOS, steps that do nothing: python peer_dbos_steps.py FILE WORKFLOWS STEPS

On SQLite, or on PostgreSQL where $BENCH_URL is set; all settings its defaults. Counted when stored.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from dbos import DBOS
from peer_dbos import address
from watch import counter, watch


@DBOS.step()
def nothing() -> None:
    pass


@DBOS.workflow()
def many(steps: int) -> None:
    for _ in range(steps):
        nothing()


def recorded(path: Path) -> Callable[[], int]:
    if "BENCH_URL" in os.environ:
        from pgpeer import counter as ask

        return ask("SELECT count(*) FROM dbos.operation_outputs")
    return counter(path, "SELECT count(*) FROM operation_outputs")


def main(path: Path, workflows: int, steps: int) -> None:
    DBOS(config={"name": "bench", "system_database_url": address(path), "log_level": "ERROR"})
    DBOS.launch()

    def start() -> None:
        for _ in range(workflows):
            DBOS.start_workflow(many, steps)

    threading.Thread(target=start, daemon=True).start()
    found = watch(recorded(path), workflows * steps, cap_s=20.0, every_s=0.1)
    print(json.dumps({"rate": found.rate, "steps": found.jobs}), flush=True)
    os._exit(0)  # what is left of them is not waited for


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
