"""Clients that mean harm, or that have gone wrong: none of them keeps the server from answering the others."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import insight
from holdfast.app import App
from holdfast.core.published import PublishedTask
from holdfast.core.verdict import Succeeded
from holdfast.server import call as reading
from holdfast.server import connection, events, jobs
from holdfast.testing import FakeClock
from tests.factory import add, enrol, make_job, settle, start
from tests.served import Served
from tests.server.client import Client, add_token, code

JSON = {"content-type": "application/json"}


@pytest.fixture
def served(app: App) -> Iterator[Served]:
    with Served() as served:
        served.serve(app.store, app.clock)
        yield served


def connect(served: Served) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    opened = socket.create_connection((host, int(port)))
    opened.settimeout(20)
    return opened


def all_of(opened: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    said = b""
    while piece := opened.recv(65536):
        said += piece
    return said


@pytest.mark.parametrize("end", [b"", b"\\", b'"'])
def test_a_body_of_quotes_and_brackets_takes_no_time(client: Client, end: bytes) -> None:
    body = b"[" * 65 + b'"' + b'\\"' * 490_000 + end
    began = time.monotonic()
    assert code(client.post("/v1/jobs", content=body, headers=JSON), 413) == "too_large"
    assert time.monotonic() - began < 10  # with a pattern that tries again at each quote it took hours


@pytest.mark.parametrize("deep", ["[" * 65 + "]" * 65, '{"a":' * 65 + "1" + "}" * 65, '[{"a":' * 33 + "1" + "}]" * 33])
def test_levels_are_counted_through_lists_and_objects(client: Client, deep: str) -> None:
    body = '{"task": "t", "on_crash": "retry", "kwargs": {"x": %s}}'
    assert code(client.post("/v1/jobs", content=(body % deep).encode(), headers=JSON), 413) == "too_large"
    flat = "[" + ",".join(["[]", "{}"] * 500) + "]"
    assert client.post("/v1/jobs", content=(body % flat).encode(), headers=JSON).status_code == 201


def test_a_head_without_an_end_is_refused(served: Served) -> None:
    with connect(served) as opened:
        try:
            for _ in range(64):
                opened.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * (1 << 16))
            said = all_of(opened)
        except ConnectionError:  # the server has closed it while there was more to come
            return
    assert said.startswith(b"HTTP/1.1 4")


def test_what_follows_a_body_has_a_limit(served: Served) -> None:
    head = b"POST /v1/login HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    with connect(served) as opened:
        opened.sendall(head)
        with pytest.raises(ConnectionError):
            opened.sendall((b"x: " + b"a" * 1_000 + b"\r\n") * 20_000)


def test_a_connection_that_asks_nothing_is_closed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.2)
    with connect(served) as silent, connect(served) as slow:
        slow.sendall(b"GET /health/live HTTP/1.1\r\nhost: local")
        assert all_of(silent) == b""
        assert all_of(slow) == b""


def test_a_second_request_on_a_connection_has_no_more_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "HEAD_S", 0.2)
    with connect(served) as opened:
        opened.settimeout(4)  # the five seconds of uvicorn would not do
        opened.sendall(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\nGET /he")
        assert all_of(opened).startswith(b"HTTP/1.1 200")


def test_a_body_that_does_not_come_is_not_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BODY_S", 0.2)
    head = (
        b"POST /v1/login HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 90\r\n\r\n{"
    )
    with connect(served) as opened:
        opened.sendall(head)
        said = all_of(opened)
    assert said.startswith(b"HTTP/1.1 408")
    assert b'"too_slow"' in said


def test_a_long_body_has_time_for_its_length(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "BODY_S", 0.1)
    monkeypatch.setattr(reading, "BODY_RATE", 10)
    pieces = [b" " * 20, b"a", b"b"]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.0 if len(pieces) == 3 else 0.3)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    assert client.wait(reading.read_body(receive, {}, 1_000)) == b" " * 20 + b"ab"


def test_asking_for_the_head_of_a_stream_ends(client: Client) -> None:
    assert client("HEAD", "/v1/events").status_code == 200
    assert client.server.feed.streams == 0


def test_a_slow_reader_gets_nothing_more_once_its_token_is_revoked(
    app: App, serve: Callable[..., Client], clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PAGE", 3)
    client, secret = serve(peer="192.0.2.7"), add_token(app, "ann", "viewer")
    for job in [add(app.store) for _ in range(10)]:
        app.cancel(job.id)
    first = app.store.journal()[0].seq
    sent: list[bytes] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if b"event: cancelled" in sent[-1]:  # the reader dawdles, and meanwhile its token is revoked
            app.store.tokens.revoke("ann")
            clock.advance(5)

    headers = {"host": "localhost", "authorization": f"Bearer {secret}", "last-event-id": str(first)}
    scope = {
        "type": "http", "method": "GET", "path": "/v1/events", "query_string": b"", "scheme": "http",
        "client": ("192.0.2.7", 1), "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    client.wait(client.server(scope, receive, send))
    assert 1 <= b"".join(sent).count(b"event: cancelled") <= 3
    assert client.server.feed.streams == 0


def test_a_stream_resumes_over_many_pages_in_their_order(
    app: App, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PAGE", 3)
    for job in [add(app.store) for _ in range(11)]:
        app.cancel(job.id)
    numbers = [event.seq for event in app.store.journal()]
    for since in (0, numbers[0], numbers[4], numbers[-1]):
        ends = events._pages_since(client.server, since)
        found = [each[0] for end in ends for each in events._page_since(client.server, since, end)]
        assert found == [number for number in numbers if number > since]


def test_slow_reads_of_people_delay_no_worker(app: App, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = threading.Event()

    def slow(store: object) -> list[Any]:
        assert answer.wait(30)
        return []

    monkeypatch.setattr(insight, "queue_views", slow)
    reads = [client.submit(client.http.get("/v1/queues")) for _ in range(20)]
    try:
        worker = client.post("/v1/workers", {"name": "w"}).json()["id"]
        assert client.post("/v1/beat", {"worker": worker}).status_code == 200
        assert client.post("/v1/jobs", {"task": "t", "on_crash": "retry"}).status_code == 201
        assert not any(read.done() for read in reads)
    finally:
        answer.set()
    assert [read.result(30).status_code for read in reads] == [200] * 20


def test_an_operator_of_one_queue_declares_no_worker_dead_that_serves_others(app: App, client: Client) -> None:
    secret = add_token(app, "ann", "operator", ("mail",))
    both, one = enrol(app.store, queues=["mail", "money"]), enrol(app.store, queues=["mail"])
    assert code(client.post(f"/v1/workers/{both}/gone", token=secret), 404) == "not_found"
    assert client.post(f"/v1/workers/{one}/gone", token=secret).status_code == 200


def test_a_page_of_large_results_ends_early_and_goes_on(
    app: App, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAGE_BYTES", 2_500)
    worker = enrol(app.store)
    for length in (1_000, 1_000, 5_000, 1_000, 1_000):
        settle(app.store, start(app.store, worker), Succeeded(json.dumps("x" * length)))
    sizes, cursor = [], ""
    while cursor is not None:
        page = client.get(f"/v1/jobs?limit=500{cursor and '&cursor='}{cursor}").json()
        sizes.append(len(page["items"]))
        cursor = page["next"]
    assert sizes == [2, 1, 2]


# ------------------------------------------------------------------------- through the verbs of the store


UNLESS = {"kind": "unless", "name": "cancel"}


def stored(client: Client, token: str, **odd: Any) -> Any:
    """Send a job as a program of Holdfast would, with odd fields."""
    job = {"id": "j1", "task": "t", "payload": '{"a":[],"k":{}}', "queue": "mail", **odd}
    return client.post("/v1/store/add", {"jobs": [job]}, token=token)


@pytest.mark.parametrize(
    "odd",
    [
        {"id": "a\r\nb"}, {"id": "x" * 65}, {"task": "\x1b[31m"}, {"task": "x" * 201}, {"queue": "\0"},
        {"priority": 10**30}, {"run_at": 1e308}, {"run_at": -1.0}, {"delay_s": 1e308}, {"delay_s": -1e300},
        {"expires_s": -1.0}, {"payload": "\0"}, {"key": ""}, {"key": "k" * 5_000}, {"group": ""}, {"group": "g\n"},
        {"tags": "{"}, {"tags": "[1]"}, {"meta": "[]"}, {"meta": '{"a": 1}'}, {"callbacks": "{"},
        {"callbacks": '{"done":{"job":{"id":"","task":"\\u0000","payload":""},"takes":[]}}'},
        {"callbacks": '{"done":{"job":{"id":"","task":"t","payload":""},"takes":["secret"]}}'},
        {"key": "k", "key_rule": {"scope": -1.0}}, {"awaits": [{"kind": "job", "name": "x"}]},
        {"awaits": [{"kind": "after", "name": "a b"}, UNLESS]}, {"awaits": [{"kind": "after", "name": "x"}]},
        {"awaits": [{"kind": "after", "name": "x"}, {"kind": "unless", "name": "explode"}]},
    ],
)  # fmt: skip
def test_a_row_that_no_app_would_store_is_refused(app: App, client: Client, odd: dict[str, Any]) -> None:
    producer = add_token(app, "p", "producer")
    assert code(stored(client, producer, **odd), 422) == "invalid"
    assert app.find() == []
    assert stored(client, producer).status_code == 200


LAST = {"id": "", "task": "t", "payload": "{}"}


@pytest.mark.parametrize(
    "odd",
    [
        {"id": "a\r\nb"}, {"id": "x" * 65}, {"abandon_s": -1.0}, {"abandon_s": 1e300}, {"then": "{"},
        {"then": {"job": {**LAST, "task": "\0"}, "takes": []}}, {"then": {"job": LAST, "takes": ["secret"]}},
        {"then": {"job": {**LAST, "priority": 10**30}, "takes": []}},
        {"then": {"job": {**LAST, "callbacks": "{"}, "takes": []}},
    ],
)  # fmt: skip
def test_a_batch_that_no_app_would_open_is_refused(app: App, client: Client, odd: dict[str, Any]) -> None:
    producer = add_token(app, "p", "producer")
    given = {"id": "b", "abandon_s": 60.0, "then": {"job": LAST, "takes": ["batch_id"]}}
    for each, status in ((given | odd, 422), (given, 200)):
        then = each["then"] if isinstance(each["then"], str) else json.dumps(each["then"])
        body = {"batch": [each["id"], then, each["abandon_s"]]}
        assert client.post("/v1/store/batches.open", body, token=producer).status_code == status
    assert [batch.id for batch in app.store.batches.find()] == ["b"]


def test_a_row_of_another_program_does_not_break_the_lists(app: App, client: Client) -> None:
    add(app.store, run_at=1e308)
    add(app.store, run_at=-1e308)
    [late, early] = [item["run_at"] for item in client.get("/v1/jobs").json()["items"]]
    assert sorted([late, early]) == ["0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.000Z"]


@pytest.mark.parametrize("on_taken", ["cancel", "replace"])
def test_a_key_reaches_no_job_of_another_queue(app: App, client: Client, on_taken: str) -> None:
    secret = add_token(app, "p", "producer", ("mail",))
    other = add(app.store, queue="money", key="k")
    body = {"task": "t", "on_crash": "retry", "queue": "mail", "key": "k", "on_taken": on_taken}
    assert code(client.post("/v1/jobs", body, token=secret), 404) == "not_found"
    assert code(client.post("/v1/jobs/bulk", {"jobs": [body]}, token=secret), 404) == "not_found"
    rule = {"scope": "live", "on_taken": on_taken}
    assert code(stored(client, secret, key="k", key_rule=rule), 404) == "not_found"
    assert app.get(other.id).state == "ready"
    assert len(app.find()) == 1
    assert client.post("/v1/jobs", {**body, "key": "mine"}, token=secret).status_code == 201


def test_an_id_of_another_queue_shows_nothing_of_its_job(app: App, client: Client) -> None:
    secret = add_token(app, "p", "producer", ("mail",))
    other, own = add(app.store, queue="money"), add(app.store, queue="mail")
    body = {"task": "t", "on_crash": "retry", "queue": "mail", "id": other.id}
    assert code(client.post("/v1/jobs", body, token=secret), 404) == "not_found"
    assert code(client.post("/v1/jobs/bulk", {"jobs": [body]}, token=secret), 404) == "not_found"
    assert code(stored(client, secret, id=other.id), 404) == "not_found"
    assert stored(client, secret, id=own.id).json()["value"] == [[own.id, True]]


def test_a_job_runs_after_no_job_of_another_queue(app: App, client: Client) -> None:
    secret = add_token(app, "p", "producer", ("mail",))
    other, own = add(app.store, queue="money"), add(app.store, queue="mail")
    body = {"task": "t", "on_crash": "retry", "queue": "mail", "after": [other.id]}
    assert code(client.post("/v1/jobs", body, token=secret), 404) == "not_found"
    assert code(client.post("/v1/jobs/bulk", {"jobs": [body]}, token=secret), 404) == "not_found"
    awaits = [{"kind": "after", "name": other.id}, UNLESS]
    assert code(stored(client, secret, awaits=awaits), 404) == "not_found"
    assert len(app.find()) == 2
    answer = client.post("/v1/jobs", {**body, "after": [own.id], "after_failed": "hold"}, token=secret)
    assert (answer.status_code, answer.json()["state"], answer.json()["after"]) == (201, "waiting", [own.id])
    assert stored(client, secret, awaits=[{"kind": "after", "name": own.id}, UNLESS]).status_code == 200
    assert app.get("j1").state == "waiting"


def test_a_callback_reaches_another_queue_only_if_the_task_declares_it(app: App, client: Client) -> None:
    callbacks = '{"done":{"job":{"id":"","task":"evil","payload":"","queue":"money"},"takes":[]}}'
    secret = add_token(app, "p", "producer", ("mail",))
    assert code(stored(client, secret, callbacks=callbacks), 404) == "not_found"
    assert stored(client, secret, callbacks=callbacks.replace("money", "mail")).status_code == 200
    task = PublishedTask(job=make_job(id="", task="t", queue="mail", callbacks=callbacks))
    app.store.publish([task])
    assert stored(client, secret, id="j2", callbacks=callbacks).status_code == 200


def test_only_a_workflow_has_children(app: App, client: Client) -> None:
    parent = add(app.store, queue="mail", workflow=True)
    assert code(stored(client, add_token(app, "p", "producer"), parent=parent.id), 403) == "forbidden"


def test_a_worker_asks_for_no_more_jobs_than_a_request_may_have(app: App, client: Client) -> None:
    secret = add_token(app, "w", "worker")
    assert code(client.post("/v1/store/find", {"where": {"limit": 10**12}}, token=secret), 422) == "invalid"
