"""The workflows of the sweep: copied into the folder of a world as its module of tasks, and imported by every process.

Each carries the place at which its process is to die: a named point of the program and at which passing, or a place in
its own code. A process runs one workflow at a time, so that a point belongs to it, also one in another thread.
"""

import contextlib
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast import App, Flow, Retry, Rollback, failpoints

FOLDER = Path(os.environ["CRASH_FOLDER"])
STEPS = ("reserve", "charge", "pack", "label", "ship", "mail")
UNDONE = ("reserve", "charge", "label")  # those that have an undo
ONCE = ("charge", "ship")  # those that must not be repeated
EFFECT = f"INSERT INTO effect VALUES ({'%s, %s' if os.environ['CRASH_STORE'] == 'postgres' else '?, ?'})"
AGAIN = Retry(attempts_max=1000, base_s=0.02, cap_s=0.05)

app = App(journal="full")


class Scene:
    """One attempt: writes to the ledger, and dies where it was told to, once in the life of its workflow."""

    def __init__(self, flow: Flow, kill: str) -> None:
        self._flow = flow
        self._kill = kill
        self._passed: Counter[str] = Counter()

    def write(self, event: str, step: str, value: Any = None) -> None:
        line = {"event": event, "step": step, "job": self._flow.id, "fence": self._flow.ctx.fence, "value": value}
        line |= {"pid": os.getpid(), "at": time.clock_gettime(time.CLOCK_BOOTTIME)}
        ledger = os.open(FOLDER / "orders", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(ledger, json.dumps(line).encode() + b"\n")
        os.close(ledger)

    def passes(self, place: str) -> None:
        if place.startswith("record") and self._flow.job.rolling_back:
            place = f"undo {place}"
        self._passed[place] += 1
        if f"{place}:{self._passed[place]}" == self._kill and self._first(f"killed-{self._flow.id}"):
            os.kill(os.getpid(), signal.SIGKILL)

    def waits(self) -> None:
        """Wait until the file `go` appears, whoever wants this attempt to stop meanwhile."""
        while not (FOLDER / "go").exists():
            with contextlib.suppress(BaseException):
                time.sleep(0.002)

    @staticmethod
    def _first(name: str) -> bool:
        try:
            os.close(os.open(FOLDER / name, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


_scene: Scene | None = None


def _fire(name: str) -> None:
    if _scene is not None:
        _scene.passes(name)


failpoints._armed = {name: [] for name in failpoints.POINTS if name.startswith(("step", "undo", "record"))}
failpoints._fire = _fire


def do(scene: Scene, name: str) -> str:
    scene.write("begin", name)
    scene.passes("inside")
    result = f"{name} is done"
    scene.write("end", name, result)
    return result


def act(name: str) -> str:
    """Do it in the scene of this process: the arguments of a step that can be undone are recorded, and are plain."""
    assert _scene is not None
    return do(_scene, name)


def undo(result: str | None, name: str) -> None:
    assert _scene is not None
    _scene.write("undo", name, result)
    _scene.passes("undoing")
    _scene.write("undone", name, result)


def _order(flow: Flow, kill: str, fails: bool) -> list[str]:
    global _scene  # it stays: undos run after the code
    _scene = scene = Scene(flow, kill)
    done = []
    for name in STEPS:
        undoes = undo if name in UNDONE else None
        done.append(flow.step(act, name, undo=undoes, repeatable=name not in ONCE, name=name))
        scene.passes("between")
    if fails:
        raise Rollback("the house does not exist")
    return done


@app.workflow(name="order", retry=AGAIN, crashes_max=1000)
def order(flow: Flow, kill: str, fails: bool = False) -> list[str]:
    """Six steps, of which some can be undone and some must not be repeated."""
    return _order(flow, kill, fails)


@app.workflow(name="order_or_nothing", retry=AGAIN, crashes_max=1000, on_crash="rollback")
def order_or_nothing(flow: Flow, kill: str) -> list[str]:
    """The same; after a death what was done is undone."""
    return _order(flow, kill, False)


# ----------------------------------------------------------------------------------------- who comes back


@app.task(name="child")
def child() -> str:
    return "done"


@app.workflow(name="other")
def other(flow: Flow) -> str:
    """Wait for a signal."""
    return str(flow.wait("news"))


def pay(db: Any, flow: Flow) -> int:
    db.execute(EFFECT, (flow.id, flow.ctx.fence))
    return flow.ctx.fence


@app.workflow(name="zombie", retry=AGAIN)
def zombie(flow: Flow, deed: str, other_id: str) -> int:
    """Wait in the middle, then do something that must be done once."""
    scene = Scene(flow, "")
    flow.step(do, scene, "first", name="first")
    scene.write("comes", deed)
    scene.waits()
    if deed == "step":
        flow.step(do, scene, "second", name="second")
    elif deed == "signal":
        flow.signal(other_id, "news", flow.ctx.fence)
    elif deed == "start":
        flow.start(child)
    elif deed == "transaction":
        flow.transaction(pay, flow, name="pay")
    return flow.ctx.fence
