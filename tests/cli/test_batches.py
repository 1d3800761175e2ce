"""holdfast batches: how far batches are, and which of their jobs went wrong."""

from __future__ import annotations

from holdfast.core.batches import Batch, Then, then_text
from holdfast.core.verdict import Failed, Succeeded
from holdfast.stores.protocol import Store
from holdfast.upkeep.batch_ends import end_batches
from tests.cli.conftest import Run
from tests.factory import claim, make_job, settle


def fill(store: Store, name: str, jobs: int) -> None:
    last = make_job(id="", task="reports.summarise", payload="{}")
    store.batches.open(Batch(id=name, then=then_text(Then(last, ("counts",)))))
    store.batches.add(name, [make_job(id=f"{name}-{number}") for number in range(jobs)])


def test_nothing_to_list(run: Run, store: Store) -> None:
    assert "app.batch(…) makes one" in run("batches", "list").stderr
    assert "no batch 'x'" in run("batches", "show", "x", code=5).stderr


def test_the_list_shows_how_far_they_are(run: Run, store: Store) -> None:
    fill(store, "films", 4)
    store.batches.close("films", complete=True)
    [bad] = claim(store, limit=1)
    settle(store, bad, Failed("no", final=True))
    [view] = run.json("batches", "list")
    assert (view["id"], view["state"], view["jobs"], view["progress"]) == ("films", "running", 4, 0.25)
    assert (view["counts"]["dead"], view["then"], view["then_task"]) == (1, "films:then:0", "reports.summarise")
    text = run("batches", "list").stdout
    assert "25 %" in text
    assert "reports.summarise" in text


def test_one_batch_is_shown_from_its_opening_to_its_end(run: Run, store: Store) -> None:
    fill(store, "films", 2)
    assert "films: open, with 2 jobs by now; its producer may add more" in run("batches", "show", "films").stdout
    store.batches.close("films", complete=False)
    shown = run("batches", "show", "films").stdout
    assert "0 % of 2 jobs ended" in shown
    assert "then: reports.summarise, job films:then:0, stored when all jobs have ended" in shown
    bad, fine = claim(store)
    settle(store, bad, Failed("no", final=True))
    settle(store, fine, Succeeded())
    end_batches(store, store.batches.get(["films"]))
    shown = run("batches", "show", "films", "--jobs", "dead").stdout
    assert "ended, with 2 jobs; its producer did not finish it" in shown
    assert f"  {bad.id}  t  dead" in shown
    [listed] = run.json("batches", "show", "films", "--jobs", "dead")["listed"]
    assert (listed["id"], listed["batch"]) == (bad.id, "films")
    assert "batch" in run("jobs", "show", bad.id).stdout
