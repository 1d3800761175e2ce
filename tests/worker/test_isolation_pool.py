"""The pool of cells: it hears everybody who calls, and what keeps it from starting a cell keeps nobody else."""

import sys
import threading
from collections.abc import Iterator

import pytest

from holdfast import App
from holdfast.worker.homes import Homes
from holdfast.worker.options import WorkerOptions
from holdfast.worker.pool import Hands, Pool


@pytest.fixture
def pool() -> Iterator[Pool]:
    """A pool that has no cells and expects no attempts: only a call can wake it."""
    app = App("memory://")
    hands = Hands(*[lambda *_: None] * 4)
    pool = Pool(app.clock, Homes(app, None, worker_wide=False), WorkerOptions(), hands, "w")
    yield pool
    pool.close()


def test_a_pool_that_many_threads_call_hears_every_one(pool: Pool) -> None:
    unheard: list[int] = []

    def call(times: int) -> None:
        for turn in range(times):
            heard = threading.Event()
            pool._do(heard.set)
            if not heard.wait(5):
                unheard.append(turn)
                return

    threads = [threading.Thread(target=call, args=(1000,)) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert unheard == []
