"""Where a handler stands is asked for when it is stuck, and asking must never freeze the process that asks."""

import subprocess
import sys

import pytest

LOOKS = """
import gc, threading
from holdfast.worker.handler import _frame_of

gc.freeze()  # what is there already is not looked through two thousand times
for number in range(2_000):
    gc.collect()
    gc.set_threshold(1 + number % 40)  # the collector comes after so many new objects: in some rounds just there
    garbage = [threading.local()]
    garbage[0].value = 1
    garbage.append(garbage)
    del garbage
    assert _frame_of(threading.get_ident()) is not None
assert gc.isenabled()
gc.disable()
_frame_of(threading.get_ident())
assert not gc.isenabled()
print("looked")
"""


@pytest.mark.slow  # a process of its own, because a failure freezes it
def test_looking_at_a_thread_while_the_collector_finds_thread_locals_does_not_freeze_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", LOOKS], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "looked\n"), done.stderr
