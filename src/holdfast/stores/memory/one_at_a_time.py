"""One lock around each verb of a store in memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn, TypeVar

from holdfast.errors import StoreUnsupported

T = TypeVar("T")


class Forked:
    """The lock of a store in a process that was forked: nothing that is done there reaches the store."""

    def __enter__(self) -> NoReturn:
        raise StoreUnsupported(
            f"process {os.getpid()} was forked, and a store in memory belongs to the process that made it: what is "
            "stored here would be lost. Use sqlite:///jobs.db to share jobs between processes"
        )

    def __exit__(self, *_: object) -> None: ...


def one_at_a_time(store: type[T]) -> type[T]:
    """Put the store's lock around each verb. Only `wait` lets others in, and a forked process may close its copy."""
    verbs = {name: verb for name, verb in vars(store).items() if callable(verb) and not name.startswith("_")}
    for name in verbs.keys() - {"wait", "close", "after_fork_in_child"}:
        setattr(store, name, _locked(verbs[name]))
    return store


def _locked(verb: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(verb)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.lock:
            return verb(self, *args, **kwargs)

    return locked
