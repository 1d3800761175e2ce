"""A platform with a time limit kills a function in the middle of a job. The next call recovers the job and finishes.

python examples/serverless.py
"""

import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from holdfast import App, Context

app = App(keep={"done": "7d"})  # the store is what $HOLDFAST_DB says


@app.task
def resize(ctx: Context, path: str) -> str:
    if path == "huge.mov" and ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # what a platform does when the time or the memory is used up
    return f"{path} resized"


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Run what is due, as a function of AWS Lambda would."""
    report = app.tick(budget_s=max(1.0, context.get_remaining_time_in_millis() / 1000 - 2))
    return {"settled": report.settled, "recovered": report.recovered, "finished": report.finished}


@dataclass
class Limit:
    """What a platform gives to a function: how long it may run."""

    seconds: float

    def get_remaining_time_in_millis(self) -> int:
        return int(self.seconds * 1000)


def call() -> str:
    """Call the function in a process of its own, as a platform does."""
    done = subprocess.run([sys.executable, __file__, "function"], stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else f"killed by signal {-done.returncode}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_DB"] = app.url = f"sqlite:///{folder}/jobs.db"
        jobs = app.enqueue_many([resize.job(path) for path in ("a.mov", "huge.mov", "b.mov")])
        print("first call: ", call())
        print("second call:", call())
        for job in jobs:
            print(f"{job.result(timeout=0)}, crashes: {job.refresh().row.zombies}")
        app.close()


if __name__ == "__main__":
    if sys.argv[1:] == ["function"]:
        print(handler({}, Limit(seconds=30)))
    else:
        main()
