"""What running jobs costs the rest of the process:   .venv-3.12/bin/python bench/interpreter.py

Times calls of a pure-Python function: before the first job, after a sync job, and after one that was
interrupted by its `timeout_s`. Each ratio must stay below 1.05: an embedded worker must not slow its host down.
"""

from __future__ import annotations

import sys
import time

from holdfast import App, Retry

ROUNDS = 100
CALLS = 100_000
LIMIT = 1.05


def main() -> int:
    """Print the ratios; return 1 when one is over the limit."""
    app = App("memory://")

    @app.task
    def quick() -> None: ...

    @app.task(timeout_s=0.2, retry=Retry(attempts_max=1))
    def slow() -> None:
        while True:
            time.sleep(0.01)

    before = seconds()
    quick.enqueue()
    app.tick(budget_s=5)
    after_a_job = seconds()
    slow.enqueue()
    app.tick(budget_s=5)
    after_an_interrupt = seconds()
    app.close()
    version = ".".join(map(str, sys.version_info[:3]))
    ratios = (after_a_job / before, after_an_interrupt / before)
    print(f"Python {version}: after a sync job {ratios[0]:.3f}, after an interrupted one {ratios[1]:.3f}")
    return int(max(ratios) >= LIMIT)


def seconds() -> float:
    """Return the CPU seconds of the fastest round: what is slower was disturbed by other programs."""
    return min(one_round() for _ in range(ROUNDS))


def one_round() -> float:
    """Return the CPU seconds of one round of calls."""

    def nothing() -> None: ...

    began = time.thread_time()
    for _ in range(CALLS):
        nothing()
    return time.thread_time() - began


if __name__ == "__main__":
    sys.exit(main())
