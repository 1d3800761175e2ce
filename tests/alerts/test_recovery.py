"""Nothing that a notifier does holds up recovery."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.alerts import Alert, webhook
from holdfast.alerts.notifier import Notifier
from holdfast.alerts.rules import Thresholds
from holdfast.alerts.webhook import Webhook
from holdfast.clock import SystemClock
from holdfast.core.machine import State
from holdfast.runtime.hooks import Hooks
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.upkeep import reaper_service
from tests.alerts.receiver import receiving
from tests.alerts.test_notifier import has_sent
from tests.alerts.waiting import FOR_EVER_S, until
from tests.factory import EXPIRED, enrol, row, settle, start

SECRET = "s3cret-s3cret"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A real file with a real clock."""
    opened = SqliteStore(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    opened.migrate()
    yield opened
    for worker in opened.workers():
        opened.retire(worker.id, "the test is over")
    opened.close()


@contextmanager
def reaping(store: Store) -> Iterator[None]:
    stop = threading.Event()
    named = {"hooks": Hooks(), "name": "r", "interval_s": 0.1}
    reaper = threading.Thread(target=reaper_service.serve, args=(store, SystemClock(), stop), kwargs=named)
    reaper.start()
    try:
        yield
    finally:
        stop.set()
        reaper.join()


def test_a_server_that_hangs_delays_no_recovery(
    store: Store, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real reaper beside a webhook that never answers."""
    monkeypatch.setattr(webhook, "SEND_S", FOR_EVER_S)
    boot_id = SystemClock().boot_id
    answer = threading.Event()
    with receiving(before=lambda: answer.wait(FOR_EVER_S)) as receiver:
        hook = Webhook(f"{receiver.url}?t=t0ken", secret=SECRET, private=True)
        alert = Alert(("held",), Thresholds(), (hook,))
        with Notifier(store, SystemClock(), [alert], name="a", interval_s=0.05) as telling:
            try:
                settle(store, start(store, enrol(store, boot_id=boot_id), on_crash="hold"), EXPIRED)
                until(lambda: len(receiver.requests) == 1)  # and from now on it hangs
                lost = start(store, enrol(store, boot_id=boot_id), lease_s=0.2)
                with reaping(store):
                    until(lambda: row(store, lost.id).state is State.READY)
                assert not has_sent(telling, 0)  # the message is still on its way
            finally:
                answer.set()
    assert not [secret for secret in (SECRET, "t0ken") if secret in caplog.text]
