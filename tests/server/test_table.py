"""Every route with every role, in scope, out of scope and read-only, walked from the table that is also the router."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from holdfast.acts.workers import order_workers
from holdfast.app import App
from holdfast.core.access import ROLES, Role
from holdfast.core.batches import Batch
from holdfast.core.limits import Setting
from holdfast.core.records import Schedule
from holdfast.core.schedule import every
from holdfast.core.verdict import Succeeded
from holdfast.ids import new_id
from holdfast.server.openapi import document
from holdfast.server.problems import CODES
from holdfast.server.routes import OPEN, Route
from holdfast.server.table import PUBLIC_ROUTES, ROUTES
from holdfast.stores.remote.verbs import VERBS
from holdfast.testing import FakeClock
from tests.factory import add, enrol, make_job, row, settle, start
from tests.server.client import PEER, Client, add_token
from tests.server.listener import Listener
from tests.server.verbs import arguments

Serve = Callable[..., Client]
STREAMS = {"/v1/events", "/v1/pulse", "/v1/workers/{id}/alive"}
ELSEWHERE = ("elsewhere",)
EACH = pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")

LEASE = {"id": "RUNNING", "fence": 9, "claim_id": "c"}
# A body that each route accepts, about the job, worker or schedule that `world` makes.
BODIES: dict[str, Any] = {
    "POST /v1/login": {"token": "unknown"},
    "POST /v1/jobs": {"task": "t", "on_crash": "hold", "queue": "mail"},
    "POST /v1/jobs/bulk": {"jobs": [{"task": "t", "on_crash": "hold", "queue": "mail"}]},
    "POST /v1/jobs/act": {"act": "cancel", "filter": {"state": ["ready"], "queue": "mail"}},
    "POST /v1/jobs/{id}/move": {"priority": 3},
    "POST /v1/jobs/{id}/signals": {"name": "go"},
    "POST /v1/workers": {"name": "w", "queues": ["mail"], "tasks": ["t"]},
    "POST /v1/claim": {"worker": "WORKER", "queues": ["mail"], "tasks": ["none"], "wait_s": 0},
    "POST /v1/beat": {"worker": "WORKER", "leases": [{"id": "RUNNING", "fence": 1, "claim_id": "c"}]},
    "POST /v1/settle": {
        "outcomes": [{"outcome": "succeeded", "lease": {"id": "RUNNING", "fence": 9, "claim_id": "c"}}]
    },
    "POST /v1/record": {"lease": LEASE, "steps": [{"name": "a"}]},
    "POST /v1/workers/drain": {"name": "NAMED"},
    "POST /v1/workers/stop": {"name": "NAMED"},
    "POST /v1/workers/resume": {"name": "NAMED"},
    "POST /v1/queues/pause": {"queue": "mail"},
    "POST /v1/queues/resume": {"queue": "mail"},
    "PATCH /v1/limits": {"queue": "mail", "limit": 5},
    "POST /v1/schedules/pause": {"key": "s"},
    "POST /v1/schedules/resume": {"key": "s"},
    "POST /v1/schedules/fire": {"key": "s"},
    "POST /v1/workflows/{id}/retry": {"step": "a"},
    "POST /v1/workflows/{id}/fork": {"step": "a"},
    "POST /v1/store/wait": {"queues": ["mail"], "tasks": ["none"], "wait_s": 0},
}
NAMES = {verb.name for verb in VERBS}
# Answers that mean: it was let in, and the job is in another state than the act needs.
LET_IN = {200, 201, 409}


class World:
    """A store with one of everything, all in the queue mail."""

    names: ClassVar[list[str]] = []  # of what the last one has made

    def __init__(self, app: App) -> None:
        store = self.store = app.store
        self.worker = enrol(store, queues=["mail"])
        self.job = add(store, queue="mail", workflow=True).id
        self.running = start(store, self.worker, queue="mail").id
        store.declare([Schedule(key="s", spec=every(60), tz="UTC", job=make_job(id="", queue="mail"))])
        self.batch = store.batches.open(Batch(id=new_id())).id
        self.named = next(worker.name for worker in store.workers() if worker.id == self.worker)
        World.names[:] = [self.worker, self.job, self.running]

    def seen(self) -> list[Any]:
        return [row(self.store, self.job), row(self.store, self.running), self.store.queues(), self.store.schedules()]

    def ask(self, client: Client, route: Route, token: str | None = None) -> Any:
        identity = self.worker if "workers" in route.path else self.batch if "batches" in route.path else self.job
        if route.path == "/v1/workers/resume":
            order_workers(self.store, self.named, "drain", "ann", None)
        if route.method == "DELETE" and "jobs" in route.path:
            identity = self.ended()
        path = route.path.replace("{id}", identity)
        if route.path in STREAMS:
            return self.listen(client, path, token)
        verb = route.path.removeprefix("/v1/store/")
        if verb in NAMES:
            body = arguments(self.store, verb, self.worker, self.job, self.running)
            return client(route.method, path, body, token=token, headers={"holdfast-workers": self.worker})
        body = BODIES.get(f"{route.method} {route.path}")
        if body is not None:
            text = json.dumps(body).replace("WORKER", self.worker).replace("RUNNING", self.running)
            text = text.replace("NAMED", self.named)
            body = json.loads(text)
        return client(route.method, path, body, token=token)

    def listen(self, client: Client, path: str, token: str | None) -> httpx.Response:
        """Return the beginning of a stream."""
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        stream = Listener(client, headers, path=path, peer=PEER)
        stream.until(lambda each: each.ended or bool(each.text))
        stream.leave()
        assert stream.status is not None
        return httpx.Response(stream.status, text=stream.text)

    def ended(self) -> str:
        worker = enrol(self.store, queues=["done"])
        job = start(self.store, worker, queue="mail", task="ends")
        settle(self.store, job, Succeeded())
        return job.id


@EACH
def test_every_route_says_what_the_document_and_these_tests_need(route: Route) -> None:
    assert route.summary
    assert not route.summary.endswith(".")
    assert route.scope in ("filter", "refuse", "whole", "none")
    assert route.handler.__doc__
    if route.is_safe:
        assert route.body is None
    else:
        assert route.repeat, "say how a repeated call is safe"
        has_body = f"{route.method} {route.path}" in BODIES or route.path.removeprefix("/v1/store/") in NAMES
        assert route.body is None or route.optional_body or has_body


Walk = Callable[..., Iterator[tuple[Role, httpx.Response]]]


@pytest.fixture
def walk(app: App, clock: FakeClock, serve: Serve) -> Walk:
    """Ask a route with a token of each role; the world is a new one each time."""

    def walk(route: Route, queues: tuple[str, ...] | None, **options: Any) -> Iterator[tuple[Role, httpx.Response]]:
        client = serve(peer=PEER, **options)
        for role in ROLES:
            world = World(app)
            before = world.seen()
            yield role, world.ask(client, route, add_token(app, role, role, queues))
            if queues == ELSEWHERE or options:
                assert before == world.seen(), f"the role {role} has changed something"
            app.store.tokens.revoke(role)
            clock.advance(3)
            for worker in app.store.workers():
                app.store.retire(worker.id, "the next role")
            app.store.pause("mail", False)
            app.store.limit("mail", Setting())

    return walk


def is_let_in(route: Route, answer: httpx.Response) -> bool:
    if route.path == "/v1/login":
        return answer.status_code == 403  # over plain HTTP
    return answer.status_code in LET_IN or (answer.status_code == 404 and route.path.startswith("/v1/workflows/"))


def refusal(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


@EACH
def test_only_the_roles_of_the_table_use_a_route(app: App, serve: Serve, walk: Walk, route: Route) -> None:
    for role, answer in walk(route, None):
        if route.roles is OPEN or role in route.roles:
            assert is_let_in(route, answer), (role, answer.text)
        else:
            assert refusal(answer) == (403, "forbidden"), (role, answer.text)
    nameless = World(app).ask(serve(peer=PEER), route)
    if route.roles is not OPEN:
        assert nameless.status_code == 401


@EACH
def test_a_token_of_another_queue_finds_nothing(walk: Walk, route: Route) -> None:
    for role, answer in walk(route, ELSEWHERE):
        if route.roles is not OPEN and role not in route.roles:
            assert refusal(answer) == (403, "forbidden"), (role, answer.text)
        elif route.scope == "filter":
            assert answer.status_code in (200, 404)
            assert not any(word in answer.text for word in (*World.names, '"mail"')), (role, answer.text)
        elif route.scope != "none":
            assert refusal(answer) == (404, "not_found"), (role, answer.text)


@EACH
def test_a_token_of_the_queue_sees_it(walk: Walk, route: Route) -> None:
    for role, answer in walk(route, ("mail", "media")):
        if route.roles is not OPEN and role not in route.roles:
            assert refusal(answer) == (403, "forbidden"), (role, answer.text)
        elif route.scope == "whole":
            assert refusal(answer) == (404, "not_found"), (role, answer.text)
        else:
            assert is_let_in(route, answer), (role, answer.text)
            if route.scope == "filter" and route.path in ("/v1/jobs", "/v1/queues", "/v1/workers", "/v1/schedules"):
                assert "mail" in answer.text


@EACH
def test_a_read_only_server_refuses_every_unsafe_method(walk: Walk, route: Route) -> None:
    for role, answer in walk(route, None, read_only=True):
        if not (route.is_safe or route.while_read_only):
            assert refusal(answer) == (403, "read_only"), (role, answer.text)
        elif route.roles is OPEN or role in route.roles:
            assert is_let_in(route, answer), (role, answer.text)
        else:
            assert refusal(answer) == (403, "forbidden"), (role, answer.text)


def test_a_route_without_a_scope_or_roles_is_an_error() -> None:
    stated = {"method": "GET", "path": "/x", "summary": "x", "handler": print, "roles": OPEN, "scope": "none"}
    Route(**stated)
    for name in ("roles", "scope"):
        with pytest.raises(TypeError, match=name):
            Route(**{key: value for key, value in stated.items() if key != name})


def test_these_routes_alone_tell_nothing_about_queues_or_need_no_token() -> None:
    """A new route is not open, and not without an effect of a scope, by an oversight."""
    of_store = {f"/v1/store/{name}" for name in ("orders", "now", "ping", "schema", "standing")}
    open_ones = {"/health/live", "/health/ready", "/v1/openapi.json", "/v1/login", "/v1/logout"}
    assert {route.path for route in ROUTES if route.roles is OPEN} == open_ones
    assert {route.path for route in ROUTES if route.scope == "none"} == open_ones | {"/v1/me"} | of_store


@EACH
def test_a_route_is_found_by_its_path_and_no_other_method(client: Client, route: Route) -> None:
    path = route.path.replace("{id}", "x")
    allowed = {each.method for each in ROUTES if each.path == route.path}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - allowed:
        if any(_fits(each, path) and each.method == method for each in ROUTES):
            continue
        answer = client(method, path)
        assert answer.status_code == 405, (method, path)
        assert allowed <= {each.strip() for each in answer.headers["allow"].split(",")}


def _fits(route: Route, path: str) -> bool:
    return bool(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route.path), path))


def test_the_document_describes_every_route_and_every_code(client: Client) -> None:
    served = client.get("/v1/openapi.json").json()
    assert served == json.loads(json.dumps(document(PUBLIC_ROUTES)))
    assert served["openapi"] == "3.1.0"
    described = {(method.upper(), path) for path, methods in served["paths"].items() for method in methods}
    assert described == {(route.method, route.path) for route in PUBLIC_ROUTES}
    operations = [each["operationId"] for methods in served["paths"].values() for each in methods.values()]
    assert len(operations) == len(set(operations))
    assert served["components"]["schemas"]["Problem"]["properties"]["code"]["enum"] == list(CODES)
    text = json.dumps(served)
    for name in set(json.loads(text)["components"]["schemas"]):
        assert f"#/components/schemas/{name}" in text, f"{name} is not used"


def test_every_reference_of_the_document_exists() -> None:
    text = json.dumps(document(PUBLIC_ROUTES))
    names = set(re.findall(r'"#/components/schemas/([^"]+)"', text))
    assert names <= set(document(PUBLIC_ROUTES)["components"]["schemas"])


def test_the_page_lists_every_route_and_every_code() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "http-api.md").read_text("utf-8")
    listed = re.findall(r"^\| `([A-Z]+) (\S+)` \| ([a-z, ]+) \| (\w+) \| (.+) \|$", page, re.MULTILINE)

    def shown(route: Route) -> str:
        if route.roles is OPEN or route.roles == set(ROLES):
            return "open" if route.roles is OPEN else "any"
        return ", ".join(role for role in ROLES if role in route.roles and role != "admin") or "admin"

    wanted = [(route.method, route.path, shown(route), route.scope, route.summary) for route in PUBLIC_ROUTES]
    assert listed == wanted
    codes = re.findall(r"^\| `(\w+)` \| (\d+) \| (.+) \|$", page, re.MULTILINE)
    assert codes == [(code, str(kind.status), kind.title) for code, kind in CODES.items()]
