"""A payment that a crash cut short is not repeated by itself: it is held until a person answers.

python examples/approve.py
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast import App, Context, Retry

app = App()


@app.task(on_crash="hold", retry=Retry(attempts_max=1))  # nor is it repeated after an exception
def charge(ctx: Context, order_id: int, cents: int) -> str:
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)  # before or after the money moved? Nobody here can know.
    return f"order {order_id}: {cents} cents charged"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOLDFAST_DB"] = app.url = f"sqlite:///{folder}/jobs.db"
        job = charge.using(key="order-42").enqueue(42, cents=999)
        worker = subprocess.Popen(
            [sys.executable, "-m", "holdfast", "worker", "approve:app"], cwd=Path(__file__).parent
        )
        try:
            while job.refresh().state != "held":
                time.sleep(0.05)
            print(f"held: {job.error}")
            # The key is still taken, so the shop's second try adds no second charge.
            assert charge.using(key="order-42").enqueue(42, cents=999).id == job.id
            # A person looked at the card's statement and found no charge: holdfast held approve ID does the same.
            app.resolve(job.id, "retry", by="ann", note="no charge on the card")
            print(job.result(timeout=30))
        finally:
            worker.terminate()
            worker.wait(30)
        print("journal:", ", ".join(event.kind for event in job.events()))
        app.close()


if __name__ == "__main__":
    main()
