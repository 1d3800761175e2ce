"""The pages of a store, served by a real uvicorn: as a program of its own, or mounted in another application."""

from __future__ import annotations

from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.app import App
from holdfast.core.access import User
from holdfast.server import Server, ServerOptions
from tests.served import Served

PREFIX = "/ops/jobs"


class Site(Served):
    """A context manager. `url` is that of the overview, without the slash at its end."""

    def __init__(self, app: App, *, mounted: bool = False, user: User | None = None, **options: Any) -> None:
        super().__init__(ServerOptions(**{"threads": 8, "dev": True, **options}))
        self.app = app
        given: dict[str, Any] = {"user": lambda scope: user} if user is not None else {}
        self._server = Server(app, options=self._options, **given)
        self.server = self._server
        self._host = Starlette(routes=[Mount(PREFIX, self._server)]) if mounted else None
        self.url += PREFIX if mounted else ""

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        await (self._host or self.server)(scope, receive, send)
