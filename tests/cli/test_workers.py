"""holdfast workers: ask workers to drain, stop and resume from anywhere, and see what one did last."""

import pytest

from holdfast.core.machine import State
from holdfast.core.records import EndedAttempt, Recent
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.cli.conftest import PAST_S, Run
from tests.factory import enrol, start


@pytest.fixture(autouse=True)
def now(clock: FakeClock) -> None:
    """Workers that enrol in a test beat now."""
    clock.advance(PAST_S)


def test_drain_names_the_workers_that_it_reaches(run: Run, store: Store) -> None:
    for name in ("box/1", "box/2"):
        enrol(store, name=name, supervisor="s")
    enrol(store, name="other")
    said = run("workers", "drain", "box", "--by", "ann", "--note", "a new kernel").stdout
    assert said == "box: 2 workers will drain within 20 s; it stands until: holdfast workers resume box\n"
    assert run.json("workers", "drain", "box") == {"name": "box", "act": "drain", "workers": ["box/1", "box/2"]}
    listed = {each["name"]: (each["state"], each["order"]) for each in run.json("workers", "list")}
    order = listed["box/1"][1]
    assert {name: state for name, (state, _) in listed.items()} == {
        "box/1": "draining",
        "box/2": "draining",
        "other": "alive",
    }
    assert (order["name"], order["act"], order["by"], order["note"]) == ("box", "drain", "ann", "a new kernel")
    assert "to drain by ann: a new kernel" in run("workers", "list").stdout


def test_a_worker_is_drained_when_it_claims_nothing_and_runs_nothing(run: Run, store: Store) -> None:
    worker = enrol(store, name="box")
    start(store, worker)
    run("workers", "drain", "box")
    store.beat(worker, [], stopping=True)
    assert [each["state"] for each in run.json("workers", "list")] == ["draining"]
    idle = enrol(store, name="box")
    store.beat(idle, [], stopping=True)
    assert [each["state"] for each in run.json("workers", "list")] == ["draining", "drained"]


def test_a_name_that_no_worker_has_is_not_found(run: Run, store: Store) -> None:
    refused = run("workers", "stop", "bocks", code=5).stderr
    assert "there is no worker 'bocks', and none has gone lately" in refused
    assert store.orders() == []


def test_a_worker_that_has_gone_can_be_drained_before_it_comes_back(run: Run, store: Store) -> None:
    store.retire(enrol(store, name="box"), "left")
    said = run("workers", "drain", "box").stdout
    assert said == "box: none is alive now; it stands until: holdfast workers resume box\n"


def test_resume_takes_the_order_back(run: Run, store: Store) -> None:
    enrol(store, name="box/1", supervisor="s")
    run("workers", "stop", "box")
    refused = run("workers", "resume", "box/1", code=6).stderr
    assert "the order stands for all workers of box: holdfast workers resume box" in refused
    assert run.json("workers", "resume", "box", "--by", "ann") == {"resumed": ["box"]}
    assert [each["state"] for each in run.json("workers", "list")] == ["alive"]
    assert "nothing was asked of workers named 'box'" in run("workers", "resume", "box", code=5).stderr
    assert [event.detail["order"] for event in store.journal(kinds=["ordered"])] == ["stop", "resume"]


def test_show_tells_what_a_worker_runs_ended_and_logged(run: Run, store: Store, clock: FakeClock) -> None:
    worker = enrol(store, name="box/1", supervisor="s")
    job = start(store, worker, task="mail.send")
    ended = [
        EndedAttempt("job-a", "mail.send", "succeeded", State.DONE, clock.wall() - 2, 0.5),
        EndedAttempt("job-b", "mail.send", "failed", State.READY, clock.wall() - 1, None),
    ]
    store.beat(worker, [], recent=Recent(tuple(ended), "INFO holdfast.worker: ready\nWARNING: \x1b[31mno"))
    [report] = run.json("workers", "show", "box")
    assert [(each["id"], each["outcome"], each["state"], each["took_s"]) for each in report["endings"]] == [
        ("job-b", "failed", "ready", None),
        ("job-a", "succeeded", "done", 0.5),
    ]
    assert [each["id"] for each in report["jobs"]] == [job.id]
    shown = run("workers", "show", "box/1").stdout
    for words in ("box/1  alive  h  pid 1", job.id, "job-b", "succeeded", "INFO holdfast.worker: ready", r"\x1b[31mno"):
        assert words in shown
    assert "\x1b" not in shown
    store.retire(worker, "left")
    assert [each["name"] for each in run.json("workers", "show", "box")] == ["box/1"]
    assert "there is no worker 'nobody'" in run("workers", "show", "nobody", code=5).stderr
