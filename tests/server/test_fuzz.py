"""Requests that the OpenAPI document allows, and requests that it does not: none may make the server fail.

docs/guarantees.md names the command that asks more, over each store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.core import NOT_SET

from holdfast.app import App
from holdfast.core.access import Role
from holdfast.core.records import Schedule
from holdfast.core.schedule import every
from holdfast.core.verdict import Succeeded
from holdfast.server.openapi import document
from holdfast.server.problems import CODES, PROBLEM_JSON
from holdfast.server.table import PUBLIC_ROUTES
from holdfast.testing import FakeClock
from tests import conftest
from tests.factory import add, enrol, make_job, settle, start
from tests.server.client import Client, add_token
from tests.server.listener import Listener

EXAMPLES = int(os.environ.get("HOLDFAST_FUZZ_EXAMPLES", "8"))  # for each route, each way
BEHIND = os.environ.get("HOLDFAST_TEST_BEHIND", "sqlite")
STREAMS = {"/v1/events", "/v1/pulse", "/v1/workers/{id}/alive"}
_ROUTES = {(route.method, route.path): route for route in PUBLIC_ROUTES}
_OPERATIONS = {
    (found.method.upper(), found.path): found
    for found in (each.ok() for each in schemathesis.openapi.from_dict(document(PUBLIC_ROUTES)).get_all_operations())
}
_WAYS = {
    **{f"{method} {path}": (method, path, schemathesis.GenerationMode.POSITIVE) for method, path in _ROUTES},
    **{
        f"{method} {path}, wrong": (method, path, schemathesis.GenerationMode.NEGATIVE)
        for (method, path), route in _ROUTES.items()
        if route.body is not None or route.query is not None
    },
}


class House:
    """A server over a store that has one of everything."""

    def __init__(self, app: App) -> None:
        self.app = app
        app.store.migrate()
        self.client = Client(app, has_app=False, needs_token=True)
        self.secrets: dict[Role, str] = {role: add_token(app, role, role) for role in ("admin", "worker")}
        self.secrets["operator"] = add_token(app, "ann", "operator", ("mail",))
        self.fill()

    def fill(self) -> None:
        store = self.app.store
        self.worker = enrol(store, queues=["mail"])
        ended = start(store, enrol(store, queues=["mail"]), queue="mail", task="ends")
        settle(store, ended, Succeeded())
        self.running = start(store, self.worker, queue="mail")
        waiting = add(store, queue="mail", workflow=True, payload='{"a": [1]}')
        self.ids = [waiting.id, self.running.id, ended.id, self.worker]
        store.declare([Schedule(key="s", spec=every(60), tz="UTC", job=make_job(id="", queue="mail"))])

    def known(self, value: Any) -> Any:
        """Put a thing that exists into a body, so that more than the first check is reached."""
        if isinstance(value, dict):
            lease = {"id": self.running.id, "fence": self.running.fence, "claim_id": self.running.claim_id}
            known = {"worker": self.worker, "key": "s", "lease": lease, "wait_s": 0}
            return {key: known.get(key, self.known(each)) for key, each in value.items()}
        if isinstance(value, list):
            return [self.known(each) for each in value]
        return value

    def close(self) -> None:
        self.client.close()
        self.app.close()


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    url = request.getfixturevalue("postgres_server") if BEHIND == "postgres" else ""
    if url:
        conftest.empty(url)
    clock = FakeClock()
    app = App("memory://", clock=clock)
    app.opener = lambda: conftest.open_store(BEHIND, clock, tmp_path_factory.mktemp("fuzz"), url)
    house = House(app)
    yield house
    house.close()


@pytest.mark.parametrize(("method", "path", "mode"), _WAYS.values(), ids=_WAYS.keys())
def test_no_request_makes_the_server_fail(
    house: House, method: str, path: str, mode: schemathesis.GenerationMode
) -> None:
    house.fill()
    cases = _OPERATIONS[method, path].as_strategy(generation_mode=mode)

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(
        case=cases,
        identity=st.sampled_from([*house.ids, None]),
        role=st.sampled_from(sorted(house.secrets)),
        data=st.data(),
    )
    def ask(case: Any, identity: str | None, role: Role, data: st.DataObject) -> None:
        given_id = str((case.path_parameters or {}).get("id", ""))
        at = path.replace("{id}", identity or given_id or "x")
        headers = {"authorization": f"Bearer {house.secrets[role]}"}
        sent: dict[str, Any] = {}
        if case.body is not NOT_SET:
            sent["content"] = _content(house, case.body, data)
            headers["content-type"] = "application/json"
        _check(_answer(house.client, method, at, headers, case.query or {}, sent), method, at, sent)

    ask()


def _content(house: House, body: Any, data: st.DataObject) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, dict):
        body = house.known(body) if data.draw(st.booleans()) else body
        if isinstance(body.get("wait_s", 0), int | float):
            body = {**body, **({"wait_s": 0} if "worker" in body and "tasks" in body else {})}  # nobody waits here
    return json.dumps(body).encode()


def _answer(
    client: Client, method: str, path: str, headers: dict[str, str], query: dict[str, Any], sent: dict[str, Any]
) -> tuple[int, str, str]:
    texts = {
        name: ",".join(map(str, value)) if isinstance(value, list) else str(value) for name, value in query.items()
    }
    if path in STREAMS or path.endswith("/alive"):
        asked = "&".join(f"{quote(name)}={quote(value, errors='replace')}" for name, value in texts.items())
        stream = Listener(client, headers, asked, path=path)
        stream.until(lambda each: each.ended or bool(each.text))
        stream.leave()
        return stream.status or 0, "", stream.text
    texts = {
        name: value.encode("utf-8", "replace").decode()[:1_000] for name, value in texts.items()
    }  # httpx has a limit
    answer = client(method, path, params=texts, headers=headers, **sent)
    return answer.status_code, answer.headers["content-type"], answer.text


def _check(answer: tuple[int, str, str], method: str, path: str, sent: dict[str, Any]) -> None:
    status, media_type, text = answer
    assert status < 500 or status == 501, (method, path, sent, text)
    if status >= 400:
        problem = msgspec.json.decode(text)
        assert problem["code"] in CODES, text
        assert media_type in (PROBLEM_JSON, ""), media_type
