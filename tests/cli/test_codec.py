"""An app with a codec of its own: its workers can read what people answer on the command line, or nothing is stored."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import App
from holdfast.cli.loading import load_app
from holdfast.core.records import Job, Published
from holdfast.stores import open_store
from holdfast.stores.protocol import Store
from tests.cli.conftest import Run
from tests.factory import EXPIRED, a_step, claim, enrol, picture, record, row, settle

MODULE = """
import base64, json
from holdfast import App, Flow, Retry

class Sealed:
    def encode(self, plain):
        return "sealed:" + base64.b64encode(json.dumps(plain).encode()).decode()

    def decode(self, text):
        if not text.startswith("sealed:"):
            raise ValueError("this is not sealed")
        return json.loads(base64.b64decode(text.removeprefix("sealed:")))

class Envelope(Sealed):
    def encode(self, plain):
        return json.dumps({"sealed": super().encode(plain)})

    def decode(self, text):
        return super().decode(json.loads(text)["sealed"])

app = App("sqlite:///sealed.db", codec=CODEC())
other = App("sqlite:///sealed.db")

@app.workflow(name="ask", retry=Retry(attempts_max=1))
def ask(flow: Flow) -> bool:
    return flow.approve("Ship it?")

@app.workflow(name="wait", retry=Retry(attempts_max=1))
def wait(flow: Flow) -> dict[str, int]:
    return flow.wait("paid")

def pay(order: int) -> str:
    raise AssertionError("it happened before")

@app.workflow(name="charge", retry=Retry(attempts_max=1))
def charge(flow: Flow, order: int = 7) -> str:
    return flow.step(pay, order, repeatable=False)

@app.task(name="careful", on_crash="hold")
def careful() -> str: ...
"""
REFUSAL = (
    "holdfast: job {id} was stored with another codec than this app has; its workers could not read what this app "
    "writes, so nothing was changed. Use the app that declares '{task}': on the command line, add --app MODULE:NAME\n"
)


@pytest.fixture(autouse=True, params=["Sealed", "Envelope"])
def module(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`sealed.py`, with an app; afterwards no trace of it is left in this process."""
    (folder / "sealed.py").write_text(MODULE.replace("CODEC", request.param))
    monkeypatch.setenv("HOLDFAST_DB", "sqlite:///sealed.db")
    path = list(sys.path)
    yield
    sys.modules.pop("sealed", None)
    sys.path[:] = path


@contextmanager
def the_app() -> Iterator[App]:
    """The user's app, as in a new process."""
    sys.modules.pop("sealed", None)
    with load_app("sealed:app") as app:
        yield app
    sys.modules.pop("sealed", None)


@contextmanager
def a_living_worker() -> Iterator[Store]:
    """A worker of the app, which publishes its tasks; it claims nothing."""
    with closing(open_store("sqlite:///sealed.db")) as store:
        tasks = {name: Published("default", own_codec=True) for name in ("ask", "wait", "charge", "careful")}
        worker = enrol(store, tasks=tasks)
        yield store
        store.retire(worker, "the test is over")


def waiting(task: str) -> str:
    with the_app() as app:
        job = app.tasks[task].enqueue()
        app.tick(30)
        assert job.refresh().state == "waiting"
        return job.id


def held(task: str) -> str:
    """A job whose worker was lost; of a workflow: in a step that must not be repeated."""
    with the_app() as app:
        job: Any = app.tasks[task].enqueue()
        [lost] = claim(app.store, tasks=[task])
        if lost.workflow:
            step = a_step(name="pay", state="started", repeatable=False)
            record(app.store, lost, step, open_step="pay")
        settle(app.store, row(app.store, lost.id), EXPIRED)
        assert job.refresh().state == "held"
        return str(job.id)


def outcome(job_id: str) -> Any:
    """Let a worker of the app go on, and return the result."""
    with the_app() as app:
        app.tick(30)
        return app.get(job_id).result(timeout=0)


def refused(run: Run, job_id: str, *words: str) -> None:
    with a_living_worker() as store:
        before: Job = row(store, job_id)
        seen = picture(store)
        assert run(*words, code=2).stderr == REFUSAL.format(id=job_id, task=before.task)
        assert picture(store) == seen


@pytest.mark.parametrize(("word", "answer"), [("approve", True), ("fail", False)])
def test_a_question_is_answered_with_the_codec_of_the_app_or_not_at_all(run: Run, word: str, answer: bool) -> None:
    job_id = waiting("ask")
    refused(run, job_id, "held", word, job_id)
    run("held", word, job_id, "--app", "sealed:app")
    assert outcome(job_id) is answer


def test_a_signal_is_sent_with_the_codec_of_the_app_or_not_at_all(run: Run) -> None:
    job_id = waiting("wait")
    words = ("workflows", "signal", job_id, "paid", '{"cents": 5}')
    refused(run, job_id, *words)
    run(*words, "--app", "sealed:app")
    assert outcome(job_id) == {"cents": 5}


@pytest.mark.parametrize("task", ["charge", "careful"])
def test_a_result_is_stored_with_the_codec_of_the_app_or_not_at_all(run: Run, task: str) -> None:
    job_id = held(task)
    words = ("held", "done", job_id, "--result", '"receipt"')
    refused(run, job_id, *words)
    run(*words, "--app", "sealed:app")
    assert outcome(job_id) == "receipt"


def test_a_fork_gets_other_arguments_with_the_codec_of_the_app_or_not_at_all(run: Run) -> None:
    job_id = held("charge")
    run("held", "fail", job_id)
    words = ("workflows", "fork", job_id, '{"order": 8}', "--from-step", "pay", "--repeat-step")
    refused(run, job_id, *words)
    [forked] = run.json(*words, "--app", "sealed:app")
    with the_app() as app:
        assert app.codec.decode(app.get(forked["id"]).row.payload) == {"order": 8}


def test_an_answer_that_is_not_stored_needs_no_app(run: Run) -> None:
    again, given_up, happened = held("careful"), held("careful"), held("careful")
    with a_living_worker() as store:
        run("held", "approve", again)
        run("held", "fail", given_up)
        run("held", "done", happened)
        assert [row(store, each).state for each in (again, given_up, happened)] == ["ready", "dead", "done"]


def test_an_app_without_the_task_answers_for_no_job(run: Run) -> None:
    job_id, waits = waiting("ask"), waiting("wait")
    said = run("held", "approve", job_id, "--app", "sealed:other", code=2).stderr
    assert said == "holdfast: sealed:other has no task 'ask'; name the app that declares it\n"
    sys.modules.pop("sealed", None)
    said = run("workflows", "signal", waits, "paid", "--app", "sealed:other", code=2).stderr
    assert said == "holdfast: sealed:other has no task 'wait'; name the app that declares it\n"


@pytest.mark.parametrize("module", ["Sealed"], indirect=True)
def test_no_worker_has_to_live_where_the_text_is_not_json(run: Run) -> None:
    job_id = waiting("ask")
    assert run("held", "approve", job_id, code=2).stderr == REFUSAL.format(id=job_id, task="ask")
