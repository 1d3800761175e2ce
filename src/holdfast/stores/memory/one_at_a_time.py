"""One lock around each verb of a store in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

T = TypeVar("T")


def one_at_a_time(store: type[T]) -> type[T]:
    """Put the store's lock around each verb; only `wait` lets others in."""
    verbs = {name: verb for name, verb in vars(store).items() if callable(verb) and not name.startswith("_")}
    for name in verbs.keys() - {"wait"}:
        setattr(store, name, _locked(verbs[name]))
    return store


def _locked(verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return verb(self, *args, **kwargs)

    return locked
