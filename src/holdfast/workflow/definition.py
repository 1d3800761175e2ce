"""Workflows as they are declared: tasks whose first argument is the flow."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from holdfast.errors import UsageError
from holdfast.tasks import JobOptions, Task, TaskOptions, check_whole, default_name

if TYPE_CHECKING:
    from holdfast.app import App
    from holdfast.workflow.flow import AsyncFlow, Flow

P = ParamSpec("P")
R = TypeVar("R")


class WorkflowOptions(TaskOptions, total=False):
    """The options of `app.workflow`."""

    version: int


class Workflow(Task[P, R]):
    """A function whose steps are recorded. Its version is part of the name that the store knows it by."""

    is_workflow = True

    def __init__(
        self,
        app: App,
        fn: Callable[..., Any],
        options: JobOptions,
        name: str | None = None,
        *,
        version: int = 1,
        **limits: Any,
    ) -> None:
        self.version = check_whole("version", version)
        self.family = name if name is not None else default_name(fn)  # what all its versions are called
        known = self.family if version == 1 else f"{self.family}@{version}"
        super().__init__(app, fn, options, known, **limits)
        if not self.takes_context:
            raise UsageError(
                f"workflow {self.name}: its first argument must be the flow: `def {self.fn.__name__}(flow: Flow, …)`"
            )


if TYPE_CHECKING:
    # To a type checker a declared workflow is a `Workflow` that is called as its function is, flow first.

    class SyncWorkflow(Workflow[P, R]):
        def __call__(self, flow: Flow, /, *args: P.args, **kwargs: P.kwargs) -> R: ...

    class AsyncWorkflow(Workflow[P, R]):
        def __call__(self, flow: AsyncFlow, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]: ...


class DeclareWorkflow(Protocol):
    """The type of `app.workflow` and `app.workflow(…)`: they turn a function into a workflow with its own signature."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # an async function fits the next one too
        self, fn: Callable[Concatenate[AsyncFlow, P], Coroutine[Any, Any, R]], /
    ) -> AsyncWorkflow[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[Flow, P], R], /) -> SyncWorkflow[P, R]: ...
    @overload
    def __call__(self, fn: None = None, /, **options: Unpack[WorkflowOptions]) -> DeclareWorkflow: ...
