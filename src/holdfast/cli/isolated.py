"""The program of an isolated process; started by a worker's pool, never by hand.

It imports what the worker's own program consists of: the app that the worker was started with or, for a worker that was
built in code, the module in which the task's function stands. A job never says what to import.
"""

from __future__ import annotations

import importlib
import logging
import multiprocessing.spawn
import os
import socket
import sys
from typing import Any

from holdfast.app import App
from holdfast.clock import SystemClock
from holdfast.errors import UsageError
from holdfast.interrupts import shield_logging
from holdfast.runtime.tracebacks import describe
from holdfast.stores.sqlite import protected
from holdfast.tasks import Task
from holdfast.worker.isolated import child, protocol, task_locator
from holdfast.worker.log_capture import enable_our_loggers, keep_handler


def main() -> None:
    protected.install()
    line, dump = child.WorkerConnection(socket.socket(fileno=int(sys.argv[1]))), int(sys.argv[2])
    line.socket.set_inheritable(False)
    os.set_inheritable(dump, False)
    child.settle_in(dump)
    setup = line.receive_setup()
    root = logging.getLogger()
    root.setLevel(setup.log_level)
    root.handlers = [child.Forward(line)]
    try:
        tasks = Tasks(setup)
    except UsageError as error:
        line.send(protocol.Unusable(str(error)))
        os._exit(2)  # a thread of the user's module must not keep us
    root.handlers = []  # the worker has those that the user's modules set up
    keep_handler(root, child.Forward(line))
    enable_our_loggers()
    shield_logging()
    line.send(protocol.Ready())
    child.IsolatedChild(line, tasks.find, SystemClock()).serve()
    logging.shutdown()
    os._exit(0)


class Tasks:
    """The tasks that this process knows."""

    def __init__(self, setup: protocol.Setup) -> None:
        self._setup = setup
        self._found: dict[str, Task[..., Any]] = {}
        self._app: App | None = None
        sys.path[:] = setup.sys_path
        task_locator.become_isolated()
        if setup.app is not None:
            from holdfast.cli.loading import load_app

            self._app = child.adopt(load_app(setup.app, imports=setup.imports), setup.url)
        elif setup.main:
            try:
                multiprocessing.spawn.prepare(dict(setup.main))
            except (Exception, SystemExit) as error:
                raise UsageError(f"the worker's own program could not be loaded: {describe(error)}") from error

    def find(self, order: protocol.StartAttempt) -> Task[..., Any]:
        """Return the task of this attempt. Raises `UsageError` when this process does not have it."""
        name = order.job.task
        if name not in self._found:
            self._found[name] = self._look_for(name, order)
        return self._found[name]

    def _look_for(self, name: str, order: protocol.StartAttempt) -> Task[..., Any]:
        home = order.home
        if self._app is not None:
            if name in self._app.tasks:
                return self._app.tasks[name]
            raise UsageError(_missing(name, f"{self._setup.app} does not have it when it is imported there"))
        if home is None:
            raise UsageError(_missing(name, "its function has no module"))
        try:
            module = importlib.import_module("__mp_main__" if home.module == "__main__" else home.module)
        except (Exception, SystemExit) as error:
            raise UsageError(_missing(name, f"module {home.module!r} cannot be imported: {describe(error)}")) from error
        for value in vars(module).values():
            if isinstance(value, Task) and value.name == name:
                child.adopt(value.app, self._setup.url)
                return value
            if isinstance(value, App) and name in value.tasks:
                return child.adopt(value, self._setup.url).tasks[name]
        if order.retry_is_code:
            raise UsageError(_missing(name, "its Retry has on, never or backoff, and the app is not in its module"))
        return self._declare(name, home, module)

    def _declare(self, name: str, home: protocol.TaskLocation, module: object) -> Task[..., Any]:
        """Make a task of a function that the worker's program has made one of elsewhere."""
        fn: object = module
        for part in home.qualname.split("."):
            fn = getattr(fn, part, None)
        if fn is None or not callable(fn):
            raise UsageError(_missing(name, f"module {home.module!r} has no {home.qualname}"))
        if self._setup.own_codec:
            raise UsageError(_missing(name, "the app with its codec is not at the top of the module"))
        app = App(self._setup.url, journal="full" if self._setup.journal == "full" else "short")
        return child.adopt(app, self._setup.url).task(name=name)(fn)


def _missing(name: str, why: str) -> str:
    return (
        f"task {name} cannot be found in a process of its own: {why}; declare it at the top of a module, or start the "
        "worker with `holdfast worker module:app`"
    )


if __name__ == "__main__":
    main()
