"""The ASGI application: takes a request through the checks of `security.py` to its handler, and answers.

holdfast.server.Server(app)                               as a program of its own, behind uvicorn
host.mount("/ops/jobs", Server(app, user=who_is_it))      in FastAPI or Starlette
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import replace
from urllib.parse import unquote

import msgspec

from holdfast.app import App
from holdfast.core.access import Token, User
from holdfast.enqueueing.by_name import publish
from holdfast.errors import StoreUnsupported
from holdfast.ids import new_id
from holdfast.runtime.metrics import Registry, watch_duties
from holdfast.server.call import Call, Disconnected, Receive, Scope, Send, decoded, exact, query_of, read_body
from holdfast.server.events import Feed
from holdfast.server.liveness import Liveness
from holdfast.server.metrics import StoreFacts, Traffic
from holdfast.server.options import ServerOptions, is_loopback
from holdfast.server.pages.forms import fields_of, form_of
from holdfast.server.pages.render import Pages, wants_page
from holdfast.server.pages.table import PAGE_ROUTES, PAGES
from holdfast.server.polls import Polls
from holdfast.server.problems import PROBLEM_JSON, Problem, problem_of
from holdfast.server.routes import OPEN, Answer, Route, Router, Stream
from holdfast.server.security import HEADERS, Gate, Origin, bearer_of, check_host, check_site, origin_of, session_cookie
from holdfast.server.services import Services
from holdfast.server.table import ROUTES
from holdfast.server.thread_pool import ThreadPool
from holdfast.stores.protocol import Store

log = logging.getLogger("holdfast.server")

FindUser = Callable[[Scope], User | Awaitable[User | None] | None]
LARGE = 64 << 10  # bytes of a body that is decoded on a thread
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SLASH = "\0"  # stands for a slash that a client has encoded
_ROUTER = Router((*ROUTES, *PAGE_ROUTES))


def check_own_store(store: Store) -> None:
    """Raise `StoreUnsupported` if the store is behind another server."""
    if store.is_served:
        raise StoreUnsupported(
            f"{store.url} is a server already; give this one the store behind it: sqlite:///… or postgresql://…"
        )


class Server:
    """One ASGI application over the store of an app.

    user: in an application of yours, a function of the ASGI scope that returns the user, or None to refuse; it may be
    async. Without it the server asks for tokens. services: run the reaper, the scheduler, timers and pruning while it
    is open. Where the host application does not forward lifespan events, open and close it: `async with Server(…)`.
    """

    def __init__(
        self,
        app: App,
        *,
        options: ServerOptions | None = None,
        user: FindUser | None = None,
        services: bool = False,
        has_app: bool = True,
        registry: Registry | None = None,
    ) -> None:
        self.app = app
        self.options = options or ServerOptions(allowed_hosts=None if user is not None else ())
        self.has_app = has_app and bool(app.tasks)
        self._find_user = user
        self._runs_services = services
        self._pool: ThreadPool | None = None
        self._people: ThreadPool | None = None  # so that slow reads of people never delay a beat
        self._gate: Gate | None = None
        self._services: Services | None = None
        self._opening = asyncio.Lock()
        self._polls: Polls | None = None
        self.feed = Feed(self)
        self.pages = Pages(self, PAGES)
        self.registry = registry or Registry()
        if services:
            watch_duties(app.hooks, self.registry)
        self.facts = StoreFacts(lambda: app.store, app.clock.lease)
        self._traffic = Traffic(self.registry)
        self.liveness = Liveness(self)
        self.ticking = asyncio.Lock()
        self.stopping = asyncio.Event()

    # -------------------------------------------------------------------------------- opened and closed

    async def open(self) -> None:
        """Open the store and start the threads. Requests do it, too."""
        async with self._opening:
            if self._gate is None:
                self._pool = ThreadPool(self.options.threads, self.options.waiting_max)
                self._people = ThreadPool(max(1, self.options.threads // 2), self.options.waiting_max)
                store = await self._pool.run(lambda: self.app.store)
                check_own_store(store)
                if self._runs_services:
                    self._services = Services(self.app, reaps=self.options.reaper, grace_s=self.options.grace_s)
                    await self._pool.run(self._services.start)
                if self.has_app:
                    await self._pool.run(publish, store, self.app.tasks)
                self._polls = Polls(store, self.app.clock, asyncio.get_running_loop())
                self._gate = Gate(store, self.app.clock, self.options)
                self.liveness.begin()

    async def close(self) -> None:
        """End streams and long polls, and stop the threads. The app stays open."""
        self.stop_streams()
        async with self._opening:
            pools, services, polls = (self._pool, self._people), self._services, self._polls
            self._pool = self._people = self._gate = self._services = self._polls = None
            await self.feed.stop()
            await self.pages.pulse.stop()
            await self.liveness.stop()
            if polls is not None:
                await asyncio.to_thread(polls.stop)
            if services is not None:
                await asyncio.to_thread(services.stop)
            for pool in pools:
                if pool is not None:
                    pool.close()

    def stop_streams(self) -> None:
        """End every stream and long poll: a server that waits for them would never stop."""
        self.stopping.set()
        if self._polls is not None:
            self._polls.end()

    async def __aenter__(self) -> Server:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def pool(self) -> ThreadPool:
        """Return the threads that call the store."""
        if self._pool is None:
            raise Problem("overloaded", "the server is stopping")
        return self._pool

    @property
    def people(self) -> ThreadPool:
        """Return the threads that call the store for people."""
        if self._people is None:
            raise Problem("overloaded", "the server is stopping")
        return self._people

    @property
    def has_login(self) -> bool:
        """Say whether people log in here, and not at the application that mounts this server."""
        return self._find_user is None

    @property
    def polls(self) -> Polls:
        """Return the long polls."""
        if self._polls is None:
            raise Problem("overloaded", "the server is stopping")
        return self._polls

    @property
    def gate(self) -> Gate:
        """Return the check of tokens."""
        if self._gate is None:
            raise Problem("overloaded", "the server is stopping")
        return self._gate

    @property
    def judges(self) -> bool:
        """Say whether it declares workers dead whose connection has closed."""
        return self._runs_services and self.options.reaper

    def is_plain_allowed(self, origin: Origin) -> bool:
        """Say whether a token may come over plain HTTP: from this machine, or where that was accepted."""
        return self.options.insecure or is_loopback(origin.client)

    # ------------------------------------------------------------------------------------- one request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    await self.open()
                except Exception as error:
                    log.error("the server cannot start: %s", error)
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else new_id()
        base = str(scope.get("root_path", "")) + self.options.prefix
        answer: Answer | Stream
        route: Route | None = None
        began = self.app.clock.lease()
        try:
            peer = (scope.get("client") or ("", 0))[0]
            origin = origin_of(peer, scope.get("scheme") == "https", headers, self.options)
            check_host(origin.host, self.options)
            if self._gate is None and not self.stopping.is_set():
                await self.open()
            route, parameters = self._routed(scope)
            user, token = await self._admit(scope, headers, origin, route)
            call = Call(self, route, user, token, origin, parameters, headers, receive, request_id, base, scope)
            call.peer = scope.get("client")
            call.cookie = session_cookie(headers) if bearer_of(headers) is None else None
            await self._read(call, scope)
            answer = await self._handled(call)
        except Disconnected:
            return
        except Exception as error:
            problem = problem_of(error)
            if problem.code == "unauthenticated" and (bearer_of(headers) is not None or _is_login(route)):
                self._traffic.count_refused_token()
            answer = self._refusal(problem, error, request_id, base, route, headers, scope)
        status = answer.status if isinstance(answer, Answer) else 200
        self._traffic.count(route, scope["method"], status, self.app.clock.lease() - began)
        await _send(send, scope["method"], answer, request_id, self.stopping, receive)

    def _routed(self, scope: Scope) -> tuple[Route, dict[str, str]]:
        path = _path_of(scope)
        prefix = self.options.prefix
        if prefix:
            if path != prefix and not path.startswith(prefix + "/"):
                raise Problem("not_found", f"this server answers below {prefix}/")
            path = path.removeprefix(prefix)
        route, parameters = _ROUTER.find(str(scope["method"]).upper(), path or "/")
        return route, {name: value.replace(_SLASH, "/") for name, value in parameters.items()}

    async def _admit(
        self, scope: Scope, headers: dict[str, str], origin: Origin, route: Route
    ) -> tuple[User, Token | None]:
        """Return the user of a request that may use the route. Raises `Problem`."""
        if self.options.read_only and not route.is_safe and not route.while_read_only:
            raise Problem("read_only", "the server was started with --read-only: it changes nothing")
        user, token = await self._user(scope, headers, origin, route)
        if not route.is_safe and bearer_of(headers) is None:
            check_site(headers, origin)
        if route.roles and not user.has(route.roles):
            needed = " or ".join(sorted(route.roles))
            raise Problem("forbidden", f"the role {user.role} may not do this; it needs {needed}")
        if route.scope == "whole" and user.queues is not None:
            raise Problem("not_found", "this is about all queues, and the token is limited to some")
        return user, token

    async def _read(self, call: Call, scope: Scope) -> None:
        route = call.route
        if route.query is not None:
            text = scope.get("query_string", b"")
            call.query = fields_of(route.query, text) if route.is_page else query_of(route.query, text)
        if route.form is not None:
            call.body = form_of(
                route.form,
                await read_body(call.receive, call.headers, route.body_max or self.options.body_max),
                call.headers,
            )
        if route.body is not None:
            most = route.body_max or (self.options.bulk_body_max if route.bulk else self.options.body_max)
            body = await read_body(call.receive, call.headers, most)
            if len(body) <= LARGE:
                call.body = decoded(route.body, body, call.headers, optional=route.optional_body)
            else:  # other requests need the event loop meanwhile
                call.body = await self.pool.run(decoded, route.body, body, call.headers, optional=route.optional_body)

    async def _user(
        self, scope: Scope, headers: dict[str, str], origin: Origin, route: Route
    ) -> tuple[User, Token | None]:
        if route.roles is OPEN or (route.path == "/metrics" and self.options.open_metrics):
            return User("anonymous", "admin"), None
        if self._find_user is not None:
            user = await self._found_user(scope)
            if user is None:
                raise Problem("unauthenticated", "the application that mounts this server knows no such user")
            return user, None
        gate = self.gate
        known = gate.known_user(headers)
        return known if known is not None else await self.pool.run(gate.user, headers, origin)

    async def _found_user(self, scope: Scope) -> User | None:
        found = self._find_user(scope) if self._find_user is not None else None
        return await found if inspect.isawaitable(found) else found

    async def still_admits(self, call: Call) -> bool:
        """Say whether a request that lasts would be let in now. A host application is asked for its user again."""
        if self._find_user is not None:
            return await self._found_user(call.scope) == call.user
        if call.token is None or self.gate.tokens.is_fresh:
            return self.gate.still_holds(call.token, call.cookie)
        return await self.pool.run(self.gate.still_holds, call.token, call.cookie)

    async def _handled(self, call: Call) -> Answer | Stream:
        handler = call.route.handler
        pool = self._people if call.route.is_for_people and self._people is not None else self.pool
        done = await handler(call) if inspect.iscoroutinefunction(handler) else await pool.run(handler, call)
        answer = done if isinstance(done, Answer | Stream) else Answer(done)
        wanted = {getattr(each, "integers", None) for each in (call.query, call.body)}
        if isinstance(answer, Answer) and "string" in wanted:
            return replace(answer, data=exact(answer.data))
        return answer

    def _refusal(
        self,
        problem: Problem,
        error: Exception,
        request_id: str,
        base: str,
        route: Route | None,
        headers: dict[str, str],
        scope: Scope,
    ) -> Answer:
        if problem.code == "internal":
            log.exception("request %s failed", request_id, exc_info=error)
        if (route is None or route.is_page) and wants_page(headers):
            query = scope.get("query_string", b"").decode("ascii", "replace")
            path = _path_of(scope).removeprefix(self.options.prefix) + (f"?{query}" if query else "")
            is_get = scope["method"] in ("GET", "HEAD")
            return self.pages.refusal(problem, headers, base, request_id, path if is_get else "/")
        document = problem.document(request_id, base)
        return Answer(document, problem.kind.status, problem.headers, media_type=PROBLEM_JSON)


def _is_login(route: Route | None) -> bool:
    return route is not None and route.path == "/v1/login"


def _path_of(scope: Scope) -> str:
    """Return the path below the place where a host application has mounted the server."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    raw = scope.get("raw_path") or b""
    if b"%2f" in raw.lower():  # a slash in an id does not divide the path
        parts = raw.partition(b"?")[0].decode("latin-1").split("/")
        path = "/".join(unquote(part).replace("/", _SLASH) for part in parts)
    return path.removeprefix(root) if root and (path == root or path.startswith(root + "/")) else path


def _headers(scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        found[key] = f"{found[key]}; {text}" if key == "cookie" and key in found else text
    return found


async def _send(
    send: Send, method: str, answer: Answer | Stream, request_id: str, stopping: asyncio.Event, receive: Receive
) -> None:
    if isinstance(answer, Stream):
        await _send_stream(send, method, answer, request_id, receive)
        return
    content = answer.content if answer.content is not None else msgspec.json.encode(answer.data)
    headers = {
        **HEADERS,
        "content-type": answer.media_type,
        "content-length": str(len(content)),
        "cache-control": "no-store",
        "x-request-id": request_id,
        **answer.headers,
    }
    if stopping.is_set():
        headers["connection"] = "close"
    await send({"type": "http.response.start", "status": answer.status, "headers": _encoded(headers)})
    await send({"type": "http.response.body", "body": b"" if method == "HEAD" else content})


async def _send_stream(send: Send, method: str, answer: Stream, request_id: str, receive: Receive) -> None:
    headers = {
        **HEADERS,
        "content-type": answer.media_type,
        "cache-control": "no-store",
        "x-accel-buffering": "no",
        "x-request-id": request_id,
        **answer.headers,
    }
    await send({"type": "http.response.start", "status": 200, "headers": _encoded(headers)})
    if method == "HEAD":
        async with aclosing(answer.pieces) as pieces:
            await anext(pieces, None)  # a generator that has not begun would not close what it has opened
        await send({"type": "http.response.body", "body": b""})
        return

    async def pump() -> None:
        async with aclosing(answer.pieces) as pieces:
            async for piece in pieces:
                await send({"type": "http.response.body", "body": piece, "more_body": True})

    pumping, leaving = asyncio.ensure_future(pump()), asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({pumping, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (pumping, leaving):
            each.cancel()
        with suppress(asyncio.CancelledError):
            await pumping
        with suppress(asyncio.CancelledError):
            await leaving
    with suppress(OSError):
        await send({"type": "http.response.body", "body": b""})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encoded(headers: Mapping[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1", "replace")) for name, value in headers.items()]
