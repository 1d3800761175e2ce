"""Code of the user's before every enqueue: `app.enqueue_middleware`."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from holdfast.errors import UsageError
from holdfast.tasks import Draft

EnqueueLayer = Callable[[Draft[Any]], Draft[Any]] | Callable[[Draft[Any]], Awaitable[Draft[Any]]]
EL = TypeVar("EL", bound=EnqueueLayer)
R = TypeVar("R")


class EnqueueMiddleware:
    """The layers that each draft passes before it is stored, in the order of their declaration."""

    def __init__(self) -> None:
        self._layers: list[tuple[bool, Callable[[Draft[Any]], Any]]] = []  # whether it is awaited, the layer

    def __bool__(self) -> bool:
        return bool(self._layers)

    @property
    def has_async(self) -> bool:
        """Say whether a layer has to be awaited."""
        return any(is_async for is_async, _ in self._layers)

    def add(self, layer: EL) -> EL:
        """Put a layer behind those that are there."""
        if not callable(layer) or inspect.isgeneratorfunction(layer) or inspect.isasyncgenfunction(layer):
            raise UsageError(f"enqueue middleware {layer!r} must be a function that takes a draft and returns it")
        self._layers.append((inspect.iscoroutinefunction(layer), layer))
        return layer

    def apply(self, draft: Draft[R]) -> Draft[R]:
        """Return the draft as the layers that are not async change it."""
        for is_async, layer in self._layers:
            if not is_async:
                draft = _checked(layer, draft, layer(draft))
        return draft

    async def aapply(self, draft: Draft[R]) -> Draft[R]:
        """Return the draft as all layers change it."""
        for is_async, layer in self._layers:
            changed = layer(draft)
            draft = _checked(layer, draft, await changed if is_async else changed)
        return draft


def _checked(layer: Callable[..., Any], draft: Draft[R], changed: object) -> Draft[R]:
    if not isinstance(changed, Draft) or changed.task is not draft.task or changed.new.id != draft.new.id:
        name = getattr(layer, "__name__", layer)
        raise UsageError(
            f"enqueue middleware {name} returned {changed!r}; return the draft or draft.using(…), or raise"
        )
    return cast("Draft[R]", changed)
