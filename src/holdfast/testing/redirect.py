"""Every app of this process on stores of a test, whatever address its code gives it.

`App.store` is the only door to a store, so an app is redirected at its first use in the test, also one that is imported
in the test or that had a store open before it. The end of the test gives each app back what it had.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.app import App
from holdfast.clock import Clock
from holdfast.runtime.closing import Closing
from holdfast.stores.protocol import Store

OpenStore = Callable[[App, str], Store]  # of an app, whose code gives it this address

_KEPT = ("_url", "_clock", "_store", "_continuity", "_closed", "opener", "closing", "declared", "flow_looked_at")


class Redirect:
    """Opens the stores of all apps with `open_store`, from `begin` to `end`."""

    def __init__(self, open_store: OpenStore, clock: Clock) -> None:
        self._open_store = open_store
        self._clock = clock
        self._kept: dict[App, dict[str, Any]] = {}
        self._property: Any = None

    @property
    def apps(self) -> list[App]:
        """Return the apps that were used."""
        return list(self._kept)

    def begin(self) -> None:
        """Redirect every app from now on."""
        self._property = door = App.__dict__["store"]

        def store(app: App) -> Store:
            self.take(app)
            found: Store = door.fget(app)
            return found

        App.store = property(store, doc=door.__doc__)  # type: ignore[method-assign, assignment]

    def take(self, app: App) -> None:
        """Redirect this app, if it is not."""
        if app in self._kept:
            return
        self._kept[app] = kept = {name: app.__dict__[name] for name in _KEPT}
        fresh = {"_store": None, "_continuity": None, "_closed": False, "declared": False}
        opener = partial(self._open_store, app, kept["_url"])
        app.__dict__.update(
            fresh, opener=opener, closing=Closing(app.logger), _clock=self._clock, flow_looked_at=float("-inf")
        )

    def end(self) -> None:
        """Close the stores of the test, and give each app back what it had."""
        App.store = self._property  # type: ignore[method-assign]
        for app, kept in self._kept.items():
            try:
                if app.__dict__["_store"] is not None:
                    app.close()
            finally:
                app.__dict__.update(kept)
