"""A server in this process, and a client of it that needs no network."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import httpx

from holdfast.app import App
from holdfast.core.access import Role, Token, digest_of
from holdfast.server import Server, ServerOptions

PEER = "192.0.2.7"  # an address that is not this machine's


class Client:
    """Sends requests to a `Server` on an event loop of its own, from a test that has none."""

    def __init__(self, app: App, *, peer: str = "127.0.0.1", services: bool = False, **options: Any) -> None:
        self.app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        has_app = options.pop("has_app", True)
        user = options.pop("user", None)
        if user is not None:
            options.setdefault("allowed_hosts", None)
        given = ServerOptions(**{"threads": 4, **options})
        self.server = Server(app, options=given, services=services, has_app=has_app, user=user)
        transport = httpx.ASGITransport(self.server, client=(peer, 4711))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        self.wait(self.server.open())

    def submit(self, work: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def wait(self, work: Any) -> Any:
        return self.submit(work).result(30)

    def __call__(
        self, method: str, path: str, body: Any = None, *, token: str | None = None, **given: Any
    ) -> httpx.Response:
        headers: dict[str, str] = {**given.pop("headers", {})}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        if body is not None:
            given["json"] = body
        return self.wait(self.http.request(method, path, headers=headers, **given))  # type: ignore[no-any-return]

    def get(self, path: str, **given: Any) -> httpx.Response:
        return self("GET", path, **given)

    def post(self, path: str, body: Any = None, **given: Any) -> httpx.Response:
        return self("POST", path, body, **given)

    def close(self) -> None:
        self.wait(self.http.aclose())
        self.wait(self.server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


def add_token(app: App, name: str, role: Role = "admin", queues: tuple[str, ...] | None = None, **given: Any) -> str:
    """Store a token; return its secret."""
    secret = f"secret-of-{name}"
    app.store.tokens.add(
        Token(name=name, role=role, queues=queues, sha256=digest_of(secret), created_at=app.clock.wall(), **given)
    )
    return secret


def code(answer: httpx.Response, status: int) -> str:
    """Return the code of a problem; the answer must be one, with this status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: Mapping[str, Any] = answer.json()
    assert document["status"] == status
    assert document["type"].endswith(f"/problems/{document['code']}")
    assert document["request_id"] == answer.headers["x-request-id"]
    return str(document["code"])
