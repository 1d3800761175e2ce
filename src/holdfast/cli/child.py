"""The program of one worker process; started by the supervisor, never by hand.

The main thread only listens: to orders of the supervisor, to signals, and for the end of the runner. When the pipe of
the supervisor closes, the supervisor is dead: give back what runs and leave.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import sys
import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.app import App
from holdfast.cli.loading import load_app
from holdfast.cli.logs import log_to_stderr
from holdfast.core.child_exit import EXIT_TOO_OLD, EXIT_UNSUPPORTED, EXIT_UNUSABLE
from holdfast.errors import SchemaMismatch, StoreError, StoreUnsupported, UsageError, is_passing
from holdfast.runtime.store_backoff import StoreBackoff
from holdfast.stores.sqlite import protected
from holdfast.stores.sqlite.connection import out_of_files
from holdfast.worker.launch import Launch
from holdfast.worker.measuring import Measures
from holdfast.worker.options import WorkerOptions
from holdfast.worker.runner import Runner
from holdfast.worker.signals import catch_signals, handle_signals, see_children_end

log = logging.getLogger("holdfast.worker")

COLLECT_AFTER = 20_000  # objects that were made and not removed since the collector looked last
_USUAL = gc.get_threshold()  # before any code of the user


def main() -> None:
    handle_signals(lambda *_: os._exit(0))  # while it is loaded there is nothing to give back
    protected.install()
    launch = Launch.now()
    orders = int(sys.argv[1])
    for inherited in sys.argv[1:]:
        os.set_inheritable(int(inherited), False)
    settings = _first_order(orders)
    os.set_blocking(orders, False)
    options = msgspec.convert(settings["options"], WorkerOptions)
    log_to_stderr(options.log_level.upper(), options.log_format, settings["name"])
    app = _load(settings["app"], settings["db"], options.imports)
    measures = Measures(app.clock) if len(sys.argv) > 2 else None
    if measures is not None:
        measures.watch_store(app)
    ended, signals = os.pipe(), catch_signals()
    see_children_end()
    if not _opens(app, [orders, signals]):
        logging.shutdown()
        os._exit(0)
    runner = Runner(
        app,
        options,
        name=settings["name"],
        app_ref=settings["app"],
        supervisor=settings["supervisor"],
        launch=launch,
        may_exit=True,
        on_beat=lambda beat_s: _tell(orders, f"{beat_s}\n"),
        measures=measures,
    )
    if measures is not None:
        measures.sender(int(sys.argv[2]), lambda: runner.running, options.slots).start()
    _collect_less_often()
    codes: list[int] = []

    def run() -> None:
        try:
            codes.append(runner.run())
        except StoreUnsupported as error:
            log.error("%s", error)
            codes.append(EXIT_UNSUPPORTED)
        except BaseException as error:
            if isinstance(error, OSError) and (short := out_of_files()) is not None:
                log.error("the worker failed: %s", short)
            else:
                log.exception("the worker failed")
        finally:
            os.write(ended[1], b".")

    threading.Thread(target=run, name="holdfast-runner", daemon=True).start()
    sources = [orders, signals, ended[0]]
    while ended[0] not in (ready := select.select(sources, [], [])[0]):
        if signals in ready:
            os.read(signals, 64)
            runner.stop()  # the same signal often reaches the whole group: only an order of the supervisor means now
        if orders in ready:
            words = _hear(orders)
            if b"now" in words or not words:
                runner.stop_now()
            else:
                runner.stop()
            if not words:
                log.warning("the supervisor is gone; giving back what runs")
                sources.remove(orders)
    if measures is not None:
        measures.send(int(sys.argv[2]))
    logging.shutdown()
    os._exit(codes[0] if codes else 1)  # a handler thread that would not stop must not keep us


def _collect_less_often() -> None:
    """Let the garbage collector skip the app, which stays until the end, and look less often: the jobs of a batch leave
    no garbage behind, and to look through them took a fifth of the time of short jobs. If the app has set a threshold
    of its own, that stays."""
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _USUAL:
        gc.set_threshold(max(COLLECT_AFTER, _USUAL[0]), *_USUAL[1:])


def _load(ref: str, url: str, imports: Sequence[str]) -> App:
    """Import the app and give it the supervisor's store; if that cannot be, say why and end."""
    try:
        app = load_app(ref, imports=imports)
        app.url = url  # a module may use the store while it is imported; then it must be the same one
        return app
    except UsageError as error:
        log.error("the worker cannot start: %s", error)
        logging.shutdown()
        os._exit(EXIT_UNUSABLE)  # a thread of the user's module must not keep us


def _opens(app: App, sources: list[int]) -> bool:
    """Wait until the store can be opened. False: stopped first.

    To end instead would look like a child that dies young: the supervisor would start it later and later, and not soon
    after the store is back.
    """
    backoff = StoreBackoff(log, app.clock, "the worker starts when it is back")
    while True:
        try:
            app.store.schema()
            backoff.recovered()
            return True
        except SchemaMismatch as error:
            log.error("%s", error)
            logging.shutdown()
            os._exit(EXIT_TOO_OLD)
        except StoreError as error:
            if not is_passing(error):
                raise
            if select.select(sources, [], [], backoff.failed(error))[0]:
                return False


def _hear(supervisor: int) -> bytes:
    """Return its orders; nothing: it is gone, perhaps before it has read all that we sent it."""
    with contextlib.suppress(ConnectionError):
        return os.read(supervisor, 64)
    return b""


def _tell(supervisor: int, words: str) -> None:
    with contextlib.suppress(OSError):  # it is gone, or does not listen
        os.write(supervisor, words.encode())


def _first_order(orders: int) -> dict[str, Any]:
    """Read the settings, the supervisor's first line: an address with a password has no place among the arguments."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(orders, 1)
        if not byte:
            sys.exit("the supervisor is gone")
        line += byte
    settings: dict[str, Any] = msgspec.json.decode(line)
    return settings


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        log.exception("the worker cannot start")
    logging.shutdown()
    os._exit(1)  # a thread of the user's module must not keep us
