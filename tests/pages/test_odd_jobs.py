"""Jobs that are very large, and names that look like others: their pages stay small, and say what is there."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from holdfast.app import App
from holdfast.server.pages.render import _coded
from holdfast.server.pages.tree import DEPTH_MAX
from tests.factory import a_step, a_worker, add, enrol, make_job, record, start_flow
from tests.pages.test_pages import read
from tests.server.client import Client

SPOOF = "pay\u202egnp.exe\u2066\u200b\ufeffok\x1b"
SHOWN = "pay[U+202E]gnp.exe[U+2066][U+200B][U+FEFF]ok[U+001B]"


@pytest.fixture
def client(app: App) -> Iterator[Client]:
    client = Client(app, dev=True)
    yield client
    client.close()


def test_arguments_of_any_depth_and_size_are_shown(app: App, client: Client) -> None:
    depth = 10 * DEPTH_MAX
    deep = add(app.store, payload="[" * depth + "]" * depth)
    wide = add(app.store, payload=json.dumps(["x" * 1_000_000, list(range(100_000))]))
    assert read(client, f"/jobs/{deep.id}").count("<ul>") < 2 * DEPTH_MAX
    assert len(read(client, f"/jobs/{wide.id}")) < 500_000


def test_characters_that_nobody_sees_are_written_as_numbers_and_sent_back_as_they_are(app: App, client: Client) -> None:
    job = add(app.store, task=SPOOF, queue=SPOOF, key=SPOOF, payload=json.dumps({SPOOF: SPOOF}))
    for path in ("/jobs", f"/jobs/{job.id}", "/queues"):
        html = read(client, path)
        assert SHOWN in html
        assert f">{SPOOF}" not in html
    assert f'value="{SPOOF}"' in read(client, "/jobs"), "the filter asks for the queue by its real name"
    joined = add(app.store, task="\U0001f469\u200d\U0001f4bb")
    assert "[U+200D]" not in read(client, f"/jobs/{joined.id}")


def test_a_workflow_with_ten_thousand_steps_has_a_small_page(app: App, client: Client) -> None:
    flow = start_flow(app.store, id="flow", lease_s=600.0)
    for first in range(1, 10_001, 500):
        record(app.store, flow, *(a_step(n, fence=flow.fence) for n in range(first, first + 500)))
    html = read(client, "/jobs/flow")
    assert len(html) < 150_000
    assert "9,800 earlier steps" in html
    assert "step-10000" in html
    assert len(read(client, "/workflows/flow")) < 400_000


def test_lists_of_very_many_queues_and_workers_are_bounded(app: App, client: Client) -> None:
    app.store.add([make_job(queue=f"queue-{number}") for number in range(1_000)])
    for number in range(300):
        enrol(app.store, name=f"worker-{number:03}")
    assert "queue-500" not in read(client, "/jobs?task=none"), "the name is typed"
    html = read(client, "/workers")
    assert html.count("data-row") == 200
    assert "100 more workers" in html


def test_an_id_that_a_program_chose_is_not_cut_to_that_of_another_job(app: App, client: Client) -> None:
    worker = a_worker(name="box")
    app.store.enroll(worker)
    add(app.store, id="order-1234")
    assert len(app.store.claim(worker.id, "c", ["default"], ["t"], 1)) == 1
    assert ">order-1234</code>" in read(client, "/zombies")


def test_commands_in_sentences_are_code_and_markup_in_them_is_text() -> None:
    assert _coded("start `holdfast <x>` now") == "start <code>holdfast &lt;x&gt;</code> now"
    assert _coded("one ` and <b>") == "one ` and &lt;b&gt;"
