"""A job whose worker process is killed in the middle is run again by the next one.

python examples/survive.py
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from holdfast import App, Context

app = App()  # the store is what $HOLDFAST_DB says


@app.task
def build(ctx: Context, name: str) -> str:
    ctx.log.info("building %s, attempt %d", name, ctx.attempt)
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # what the kernel does when memory runs out
    return f"{name} built at attempt {ctx.attempt}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_DB"] = app.url = f"sqlite:///{folder}/jobs.db"
        job = build.enqueue("house")  # on disk when the call returns
        worker = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", "survive:app"], cwd=Path(__file__).parent
        )
        try:
            print(job.result(timeout=30))
        finally:
            worker.terminate()
            worker.wait(30)
        for event in job.events():
            print(f"{event.kind}: {event.detail['cause']}; decision: {event.detail['decision']}")
        app.close()


if __name__ == "__main__":
    main()
