"""Find the tasks of the worker in an isolated process. Only the worker's own program says so, never a job."""

from __future__ import annotations

import logging
import multiprocessing.spawn
import sys
from typing import TYPE_CHECKING, Any

from holdfast.core.payload import JSON
from holdfast.errors import UsageError
from holdfast.tasks import Task
from holdfast.worker.isolated import protocol
from holdfast.worker.launch import Launch
from holdfast.worker.options import WorkerOptions

if TYPE_CHECKING:
    from holdfast.app import App


_is_isolated = False


def become_isolated() -> None:
    """Mark this process as isolated: it must not start a worker, which would start isolated processes, and so on."""
    global _is_isolated
    _is_isolated = True


class TaskLocator:
    """The tasks of one worker.

    `ref` is the `module:name` that the worker was started with, `imports` are further modules with tasks of that app: a
    process imports the same. A worker that was built in
    code has none; then an isolated process imports the module in which the task's function stands.

    A `patient` worker claims no jobs of isolated tasks while no isolated process can be started: others may claim them.
    """

    def __init__(
        self,
        app: App,
        ref: str | None,
        options: WorkerOptions,
        *,
        patient: bool = True,
        launch: Launch | None = None,
    ) -> None:
        if _is_isolated:
            raise UsageError(
                "no worker can be started in the process of an isolated task; if your program starts one while it is "
                'loaded, put that under if __name__ == "__main__":'
            )
        self._app = app
        self._ref = ref
        self._patient = patient
        self.launch = launch or Launch.now()
        self._imports = options.imports
        self._in_process = options.in_process
        isolated = [task for task in app.tasks.values() if task.isolate or options.isolate]
        declared = [] if options.in_process else isolated
        self._names = list(app.tasks)
        self._declared = {task.name for task in declared}
        self.closed = False  # no isolated process can be started, and none is free; written by the pool
        self.expected = bool(declared)  # isolated attempts will come
        self.limited = any(task.memory_max_mb is not None for task in declared)
        for task in declared:
            if not self.knows(task) and not self._is_whole(task):
                raise UsageError(
                    f"task {task.name} is to be isolated, but a process of its own would import only "
                    f"{task.fn.__module__}, and the app's middleware, resources or worker hooks are declared in "
                    f"{', '.join(sorted(app.around))}; declare them in one module, or start the worker with "
                    "`holdfast worker module:app`"
                )
            if not self.knows(task):
                raise UsageError(
                    f"task {task.name} is to be isolated, but a process of its own could not find it: it is declared "
                    "inside a function or at a prompt; declare it at the top of a module, or start the worker with "
                    "`holdfast worker module:app`"
                )

    def claimable(self) -> list[str]:
        """Return the tasks whose jobs can be run now."""
        if self.closed and self._patient:
            return [name for name in self._names if name not in self._declared]
        return self._names

    def expects(self, task: Task[..., Any]) -> bool:
        """Say whether all attempts of the task are isolated, so that it is not claimed while no process can start."""
        return task.name in self._declared

    def knows(self, task: Task[..., Any]) -> bool:
        """Say whether another process may run the task, and finds it there with all that its app runs around it."""
        if self._in_process:
            return False
        return self._ref is not None or (location_of(task) is not None and self._is_whole(task))

    def _is_whole(self, task: Task[..., Any]) -> bool:
        """Say whether the module of the task's function declares all the middleware, resources and hooks of its app."""
        home = location_of(task)
        return home is None or self._app.around <= {home.module}

    def setup(self) -> bytes:
        """Return the first frame for an isolated process."""
        homes = [] if self._ref is not None else [location_of(task) for task in self._app.tasks.values()]
        return protocol.frame(
            protocol.Setup(
                app=self._ref,
                main=_main() if any(home is not None and home.module == "__main__" for home in homes) else {},
                sys_path=list(sys.path),
                url=self._app.url,
                journal=self._app.journal,
                own_codec=self._app.codec is not JSON,
                log_level=min(logging.getLogger().getEffectiveLevel(), self._app.logger.getEffectiveLevel()),
                imports=list(self._imports),
            )
        )


def _main() -> dict[str, str]:
    """Return what `multiprocessing` would need to load the main module in another process; empty at a prompt."""
    data = multiprocessing.spawn.get_preparation_data("cell")
    return {name: data[name] for name in ("init_main_from_name", "init_main_from_path") if name in data}


def location_of(task: Task[..., Any]) -> protocol.TaskLocation | None:
    """Return where the task's function stands; None: where only this process can look."""
    module, qualname = getattr(task.fn, "__module__", None), getattr(task.fn, "__qualname__", None)
    if not module or not qualname or "<" in qualname:
        return None
    if module in ("__main__", "__mp_main__"):
        return protocol.TaskLocation("__main__", qualname) if _main() else None
    return protocol.TaskLocation(module, qualname)
