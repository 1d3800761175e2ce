"""Transfers whose writes commit together with the end of the job: never half, never twice, whatever dies.

python examples/ledger.py
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast import App, Context

app = App()


@app.task
def transfer(ctx: Context, number: int, cents: int) -> int:
    with ctx.transaction() as db:
        db.execute("UPDATE account SET cents = cents - ? WHERE name = 'ann'", (cents,))
        if number % 10 == 0 and is_first(number):
            os.kill(os.getpid(), signal.SIGKILL)  # in the middle of the transfer
        db.execute("UPDATE account SET cents = cents + ? WHERE name = 'bob'", (cents,))
    return number


def is_first(number: int) -> bool:
    """Say whether nobody asked this before. `ctx.attempt` counts claims, and a worker that dies may not have begun all
    that it had claimed."""
    mark = Path(os.environ["LEDGER_MARKS"], str(number))
    if mark.exists():
        return False
    mark.touch()
    return True


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LEDGER_MARKS"] = folder
        os.environ["HOLDFAST_DB"] = app.url = f"sqlite:///{folder}/jobs.db"
        jobs = app.enqueue_many([transfer.job(number, cents=100) for number in range(1, 31)])
        db = sqlite3.connect(f"{folder}/jobs.db", isolation_level=None)  # the same file holds both
        db.execute("CREATE TABLE account (name TEXT PRIMARY KEY, cents INTEGER)")
        db.execute("INSERT INTO account VALUES ('ann', 3000), ('bob', 0)")
        worker = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", "ledger:app", "--slots", "1"], cwd=Path(__file__).parent
        )
        try:
            assert [job.result(timeout=60) for job in jobs] == list(range(1, 31))
        finally:
            worker.terminate()
            worker.wait(30)
        accounts = dict(db.execute("SELECT name, cents FROM account"))
        db.close()
        killed = {event.detail["pid"] for job in jobs for event in job.events() if event.kind == "zombie"}
        print(f"{accounts} after 30 transfers; {len(killed)} worker processes were killed on the way")
        assert accounts == {"ann": 0, "bob": 3000}
        assert len(killed) == 3
        app.close()


if __name__ == "__main__":
    main()
