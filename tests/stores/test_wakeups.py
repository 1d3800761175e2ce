"""Hints between the threads of one process."""

import gc
import threading

from holdfast.clock import SystemClock
from holdfast.stores.wakeups import Wakeups


def test_a_hint_reaches_every_thread_that_waits() -> None:
    hints, clock, waiting = Wakeups(), SystemClock(), threading.Barrier(4)
    heard: list[bool] = []

    def wait() -> None:
        hints.wait(clock, 0.0)
        waiting.wait(30)
        heard.append(hints.wait(clock, 60.0))

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    waiting.wait(30)
    hints.wake()
    for thread in threads:
        thread.join(60)
    assert heard == [True] * 3


def test_threads_that_have_ended_leave_nothing_behind() -> None:
    hints, together = Wakeups(), threading.Barrier(8)

    def wait() -> None:
        hints.wait(SystemClock(), 0.0)
        together.wait(30)

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    gc.collect()
    assert len(hints._hints) == 0
