"""The tasks of the crash tests; copied beside the store of each test and imported there by every process.

Each handler appends a line to the ledger when it starts and when it ends: one short write to a file opened for
appending, so lines of many processes never mix, and a line that is there was written before the process died.
"""

import asyncio
import contextlib
import ctypes
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from holdfast import App, Context, Flow, Retry, Rollback, failpoints

FOLDER = Path(os.environ["CRASH_FOLDER"])
AGAIN = Retry(attempts_max=1000, base_s=0.02, cap_s=0.05)
EFFECT = f"INSERT INTO effect VALUES ({'%s, %s' if os.environ['CRASH_STORE'] == 'postgres' else '?, ?'})"

app = App(journal="full")


def write(event: str, ctx: Context) -> None:
    line = {
        "event": event,
        "job": ctx.job.id,
        "fence": ctx.fence,
        "attempt": ctx.attempt,
        "pid": os.getpid(),
        "parent": os.getppid(),
        "at": time.clock_gettime(time.CLOCK_BOOTTIME),
        "wall": time.time(),
    }
    ledger = os.open(FOLDER / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, json.dumps(line).encode() + b"\n")
    os.close(ledger)


def work(ctx: Context, seconds: float) -> int:
    write("start", ctx)
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(0.01, left))
    write("end", ctx)
    return ctx.fence


@app.task(name="quick", retry=AGAIN, crashes_max=1000)
def quick(ctx: Context, seconds: float = 0.0) -> int:
    """Take some time; return the fence of the attempt that did it."""
    return work(ctx, seconds)


@app.task(name="aquick", retry=AGAIN, crashes_max=1000)
async def aquick(ctx: Context, seconds: float = 0.0) -> int:
    """The same on the event loop."""
    write("start", ctx)
    await asyncio.sleep(seconds)
    write("end", ctx)
    return ctx.fence


@app.task(name="careful", on_crash="hold")
def careful(ctx: Context, seconds: float = 0.0) -> int:
    """The same for work that is dangerous to repeat."""
    return work(ctx, seconds)


@app.task(name="first_hangs", retry=AGAIN)
def first_hangs(ctx: Context) -> int:
    """The first attempt never ends by itself; the next returns at once."""
    write("start", ctx)
    while ctx.attempt == 1:
        time.sleep(0.005)
    write("end", ctx)
    return ctx.fence


@app.task(name="from_the_grave", retry=AGAIN)
def from_the_grave(ctx: Context) -> int:
    """The first attempt does not stop when it is told to: it returns, and believes that it has succeeded."""
    write("start", ctx)
    with contextlib.suppress(BaseException):
        while ctx.attempt == 1:
            time.sleep(0.005)
    write("end", ctx)
    return ctx.fence


@app.task(name="told", retry=AGAIN, crashes_max=1000)
def told(ctx: Context, job_id: str, state: str) -> None:
    """Be the callback of `tells`."""
    write("start", ctx)


@app.task(name="tells", retry=Retry(attempts_max=1, on=(OSError,)), crashes_max=1000, on_done=told, on_dead=told)
def tells(ctx: Context, fails: bool, seconds: float = 0.0) -> int:
    """End as dead if it is to fail, else as done."""
    fence = work(ctx, seconds)
    if fails:
        raise ValueError("as it was told to")
    return fence


@app.task(name="says", retry=AGAIN, crashes_max=1000)
def says(ctx: Context, seconds: float) -> int:
    """Say with its beats what it is at."""
    ctx.heartbeat(file="a.csv", line=ctx.attempt)
    return work(ctx, seconds)


@app.task(name="isolated_says", retry=AGAIN, crashes_max=1000, isolate=True)
def isolated_says(ctx: Context, seconds: float) -> int:
    """Do the same in a process of its own."""
    ctx.heartbeat(file="a.csv", line=ctx.attempt)
    return work(ctx, seconds)


@app.task(name="added_up", retry=AGAIN, crashes_max=1000)
def added_up(ctx: Context, counts: dict[str, int], complete: bool) -> dict[str, int]:
    """Be the last job of a batch."""
    write("start", ctx)
    return counts | {"complete": int(complete)}


@app.task(name="chatty", retry=AGAIN)
def chatty(ctx: Context) -> None:
    """Say what it does; the first attempt never ends by itself."""
    write("start", ctx)
    ctx.log.info("attempt %d opened postgresql://ann:hunter2@db/shop", ctx.attempt)
    logging.getLogger("shop.till").warning("attempt %d has %s", ctx.attempt, "token=hunter2")
    while ctx.attempt == 1:
        time.sleep(0.005)


@app.task(name="wait", retry=AGAIN)
def wait(ctx: Context) -> int:
    """Return when the file `go` appears."""
    write("start", ctx)
    while not (FOLDER / "go").exists():
        time.sleep(0.005)
    write("end", ctx)
    return ctx.fence


@app.task(name="deaf", timeout_s=1.5, retry=Retry(attempts_max=1))
def deaf(ctx: Context) -> None:
    """Read from a pipe that nobody writes to: no interrupt gets through."""
    write("start", ctx)
    os.read(os.pipe()[0], 1)


@app.task(name="poison", retry=AGAIN)
def poison(ctx: Context) -> None:
    """Kill the process, with all who are in it, when the file `strike` appears."""
    write("start", ctx)
    while not (FOLDER / "strike").exists():
        time.sleep(0.005)
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(name="leaver", retry=AGAIN)
def leaver(ctx: Context) -> None:
    """End the process, by its own code, when the file `strike` appears."""
    write("start", ctx)
    while not (FOLDER / "strike").exists():
        time.sleep(0.005)
    os._exit(3)


@app.task(name="ends_a_thread", retry=AGAIN)
def ends_a_thread(ctx: Context, name: str) -> int:
    """The first attempt ends a thread of its worker; the next returns at once."""
    write("start", ctx)
    if ctx.attempt == 1:
        [thread] = [each for each in threading.enumerate() if each.name == name]
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
        time.sleep(120)
    write("end", ctx)
    return ctx.fence


def freeze() -> None:
    """Stop this process, at this line. Sent to the process, the signal may go to another thread, and this one runs on
    for a moment: long enough to commit."""
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


@app.task(name="freezes", retry=AGAIN, lease_s=3.0)
def freezes(ctx: Context) -> int:
    """The first attempt stops its whole process, which lives on and does nothing."""
    write("start", ctx)
    if ctx.attempt == 1:
        freeze()
    write("end", ctx)
    return ctx.fence


@app.task(name="breed", retry=AGAIN)
def breed(ctx: Context) -> int:
    """Start a process of its own that would go on for long, then wait."""
    child = subprocess.Popen(["sleep", "600"])
    (FOLDER / "grandchild").write_text(str(child.pid))
    return int(wait(ctx))


@app.task(name="hog", crashes_max=1)
def hog() -> None:
    """Take all the memory that there is."""
    hoard = []
    while True:
        hoard.append(bytearray(b"x") * (8 << 20))


@app.task(name="careful_wait", on_crash="hold")
def careful_wait(ctx: Context) -> int:
    return int(wait(ctx))


@app.task(name="blocks", retry=AGAIN)
async def blocks(ctx: Context, seconds: float) -> int:
    """Block the event loop, as nobody should."""
    write("start", ctx)
    time.sleep(seconds)
    write("end", ctx)
    return ctx.fence


@app.task(name="bulky", retry=AGAIN)
def bulky(ctx: Context, text: str) -> int:
    """Take up room."""
    return work(ctx, 0.0)


@app.task(name="large_result", retry=AGAIN)
def large_result(ctx: Context) -> str:
    """Need room for its result."""
    write("start", ctx)
    return "x" * 60_000


@app.task(name="pay", retry=AGAIN, crashes_max=1000)
def pay(ctx: Context, seconds: float = 0.0) -> int:
    """Write an effect that commits with the end of this attempt; die on the way if somebody kills us."""
    write("start", ctx)
    with ctx.transaction() as db:
        db.execute(EFFECT, (ctx.job.id, ctx.fence))
        time.sleep(seconds)
    write("end", ctx)
    return ctx.fence


@app.task(name="pay_with", retry=AGAIN, crashes_max=1000)
def pay_with(ctx: Context, orm: str, seconds: float = 0.0) -> int:
    """The same, by an ORM: flushed, and not yet committed."""
    from tests.integrations.orms import ORMS

    way = ORMS[orm](os.environ["HOLDFAST_DB"])
    with ctx.transaction() as db, way.block(db) as door:
        way.write(door, ctx.job.id, ctx.fence)
    time.sleep(seconds)
    return ctx.fence


@app.task(name="stops_inside", retry=AGAIN)
def stops_inside(ctx: Context) -> int:
    """The first attempt is frozen by the system inside its write."""
    write("start", ctx)
    with ctx.transaction() as db:
        db.execute(EFFECT, (ctx.job.id, ctx.fence))
        if ctx.attempt == 1:
            freeze()
    return ctx.fence


def arm_the_first_child() -> None:
    """$CRASH_POINT arms a point in the first child of a supervisor: not in the parent, nor in a restarted child."""
    order = os.environ.get("CRASH_POINT")
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    if not order or spec is None or spec.name != "holdfast.cli.child":
        return
    try:
        os.close(os.open(FOLDER / "armed", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    name, _, action = order.partition("=")
    failpoints._armed[name] = [*action.split(":"), "1"][:2]


arm_the_first_child()


# ------------------------------------------------------------------------------------------- an order


def enter(order: str, what: str) -> str:
    """Do something in the world outside: a line that stays."""
    ledger = os.open(FOLDER / f"order-{order}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(ledger, what.encode() + b"\n")
    os.close(ledger)
    return f"{what}!"


def take_back(result: str | None, order: str, what: str) -> None:
    enter(order, f"undo {what} {result}")


@app.workflow(name="order", retry=AGAIN, crashes_max=1000)
def order(flow: Flow, number: str, wanted: bool = True) -> str:
    """Six steps; two of them must not be repeated, and four have an undo."""
    flow.step(enter, number, "reserve", undo=take_back, name="reserve")
    flow.step(enter, number, "charge", undo=take_back, repeatable=False, name="charge")
    flow.step(enter, number, "pack", name="pack")
    flow.step(enter, number, "invoice", undo=take_back, name="invoice")
    flow.step(enter, number, "ship", undo=take_back, repeatable=False, name="ship")
    done = flow.step(enter, number, "mail", name="mail")
    if not wanted:
        raise Rollback("nobody wants it")
    return done


def fail_twice(order: str) -> str:
    enter(order, "try")
    if (FOLDER / f"order-{order}").read_text().count("try") <= 2:
        raise OSError("nobody answers")
    return "tried"


@app.workflow(name="stubborn", retry=AGAIN)
def stubborn(flow: Flow, number: str, careful: bool) -> str:
    """A workflow whose only step has three tries, and needs them."""
    three = Retry(attempts_max=3, base_s=0.05, jitter="none")
    return flow.step(fail_twice, number, retry=three, repeatable=not careful, name="try")


def die(order: str, what: str, deaths: int) -> str:
    """Do something, and end the process so many times."""
    enter(order, what)
    if (FOLDER / f"order-{order}").read_text().count(what) <= deaths:
        os.kill(os.getpid(), signal.SIGKILL)
    return what


def linger(order: str) -> str:
    """Wait for the file `go`, and end the process the first time."""
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    return die(order, "linger", 1)


@app.workflow(name="lingering", retry=AGAIN)
def lingering(flow: Flow, number: str) -> str:
    """A workflow whose second step takes its time and kills its process. Nothing is written down before it."""
    flow.step(enter, number, "begin", name="begin")
    flow.step(linger, number, name="linger")
    return flow.step(enter, number, "end", name="end")


@app.workflow(name="naps")
def naps(flow: Flow) -> None:
    """A workflow that another process than its own has to wake."""
    flow.sleep(0.5)


@app.workflow(name="deadly", retry=AGAIN, crashes_max=3)
def deadly(flow: Flow, number: str, deaths: int, careful: bool = False) -> str:
    """A workflow whose second step kills its process; it waits for a moment before."""
    flow.step(enter, number, "begin", name="begin")
    flow.sleep(1.1)
    return flow.step(die, number, "die", deaths, repeatable=not careful, name="die")
