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

_KEPT = (
    "_url",
    "_clock",
    "_store",
    "_continuity",
    "_closed",
    "opener",
    "closing",
    "declared",
    "flow_looked_at",
    "in_test",
)


class Redirect:
    """Opens the stores of all apps with `open_store`, from `begin` to `end`."""

    def __init__(self, open_store: OpenStore, clock: Clock) -> None:
        self._open_store = open_store
        self._clock = clock
        self._kept: dict[App, dict[str, Any]] = {}
        self._properties: dict[str, Any] = {}

    @property
    def apps(self) -> list[App]:
        """Return the apps that were used."""
        return list(self._kept)

    def begin(self) -> None:
        """Redirect every app from now on."""
        self._properties = {name: App.__dict__[name] for name in ("store", "url")}
        door, address = self._properties["store"], self._properties["url"]

        def store(app: App) -> Store:
            self.take(app)
            found: Store = door.fget(app)
            return found

        def url(app: App) -> str:
            if app not in self._kept:
                store(app)  # it gets the address of the test's store
            return str(address.fget(app))

        App.store = property(store, doc=door.__doc__)  # type: ignore[method-assign, assignment]
        App.url = property(url, address.fset, doc=address.__doc__)  # type: ignore[method-assign, assignment]

    def take(self, app: App) -> None:
        """Redirect this app, if it is not."""
        if app in self._kept:
            return
        self._kept[app] = kept = {name: app.__dict__[name] for name in _KEPT}
        fresh = {"_store": None, "_continuity": None, "_closed": False, "declared": False, "in_test": True}
        opener = partial(self._open_store, app, kept["_url"])
        app.__dict__.update(
            fresh, opener=opener, closing=Closing(app.logger), _clock=self._clock, flow_looked_at=float("-inf")
        )

    def end(self) -> None:
        """Close the stores of the test, and give each app back what it had."""
        for name, kept_property in self._properties.items():
            setattr(App, name, kept_property)
        for app, kept in self._kept.items():
            try:
                if app.__dict__["_store"] is not None:
                    app.close()
            finally:
                app.__dict__.update(kept)
