"""The pulse of open pages: who gets it, when it says that something has changed, and when it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.app import App
from holdfast.server.pages import pulse
from holdfast.server.pages.snapshot import Snapshot
from holdfast.stores.memory import MemoryStore
from tests.factory import add
from tests.server.client import PEER, Client, add_token
from tests.server.listener import Listener

pytestmark = pytest.mark.slow  # a beat is a second


@pytest.fixture
def app() -> Iterator[App]:
    """Return an app on the real clock: a stream takes its time."""
    with App("memory://") as app:
        yield app


@pytest.fixture
def serve(app: App) -> Iterator[Callable[..., Client]]:
    opened: list[Client] = []

    def serve(**options: Any) -> Client:
        opened.append(Client(app, **options))
        return opened[-1]

    yield serve
    for client in opened:
        client.close()


def beats(listener: Listener) -> list[dict[str, Any]]:
    return [json.loads(line) for line in re.findall(r"^data: (.*)$", listener.text, re.MULTILINE)]


@pytest.mark.parametrize("path", ["/pulse", "/v1/pulse"])
def test_the_pulse_beats_and_says_when_something_has_changed(serve: Callable[..., Client], app: App, path: str) -> None:
    listener = Listener(serve(), {}, path=path)
    listener.until(lambda each: len(beats(each)) >= 2)
    assert all(beat["at"].endswith("Z") for beat in beats(listener))
    before = beats(listener)[-1]["version"]
    add(app.store)
    listener.until(lambda each: beats(each)[-1]["version"] > before)
    topics = beats(listener)[-1]["topics"]
    assert topics == {"jobs": 2, "journal": 1}
    app.store.pause("mail", True)
    listener.until(lambda each: beats(each)[-1]["topics"] == {"jobs": 2, "journal": 2})
    listener.leave()


@pytest.mark.parametrize("path", ["/pulse", "/v1/pulse"])
def test_a_token_with_queues_feels_the_pulse_of_its_queues(serve: Callable[..., Client], app: App, path: str) -> None:
    secret = add_token(app, "ann", "viewer", queues=["mail"])
    listener = Listener(serve(peer=PEER), {"authorization": f"Bearer {secret}"}, path=path, peer=PEER)
    listener.until(lambda each: bool(beats(each)))
    add(app.store, queue="other")
    many = len(beats(listener))
    listener.until(lambda each: len(beats(each)) >= many + 3)
    assert {beat["topics"]["jobs"] for beat in beats(listener)} == {1}
    add(app.store, queue="mail")
    listener.until(lambda each: beats(each)[-1]["topics"] == {"jobs": 2})
    listener.leave()


def test_one_look_a_second_serves_every_page(serve: Callable[..., Client], monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[float] = []
    counts = MemoryStore.counts

    def counted(store: MemoryStore) -> Any:
        reads.append(store.now().wall)
        return counts(store)

    monkeypatch.setattr(MemoryStore, "counts", counted)
    client = serve()
    pages = [Listener(client, {}, path="/pulse") for _ in range(20)]
    for page in pages:
        page.until(lambda each: len(beats(each)) >= 3)
    assert len(reads) <= 2 + (reads[-1] - reads[0]) / 0.9
    for page in pages:
        page.leave()
    assert client.server.pages.pulse.streams == 0


@pytest.mark.parametrize("path", ["/pulse", "/v1/pulse"])
def test_a_stranger_gets_no_pulse_and_a_revoked_token_ends_it(
    serve: Callable[..., Client], app: App, path: str
) -> None:
    secret, client = add_token(app, "ann", "viewer"), serve(peer=PEER)
    assert client.get(path).status_code == 401
    listener = Listener(client, {"authorization": f"Bearer {secret}"}, path=path, peer=PEER)
    listener.until(lambda each: bool(beats(each)))
    app.store.tokens.revoke("ann")
    listener.until(lambda each: each.ended)


def test_more_pages_than_the_server_can_serve_are_refused(
    serve: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "STREAMS_MAX", 1)
    client = serve()
    first = Listener(client, {}, path="/pulse")
    first.until(lambda each: bool(beats(each)))
    assert client.get("/pulse").status_code == 503
    first.leave()


def test_the_snapshot_is_read_once_for_many(app: App) -> None:
    snapshot = Snapshot(app)
    assert snapshot.read() is snapshot.read()
