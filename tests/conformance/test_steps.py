"""steps: what a workflow has recorded, in the order of the first writing, in pages."""

from typing import Any

import pytest

from holdfast.core import acts
from holdfast.core.verdict import Failed
from holdfast.stores.protocol import Store
from tests.conformance.test_add import AWKWARD
from tests.factory import a_record, a_step, again, move, record, row, settle, start_flow


def test_a_workflow_without_steps_has_none(store: Store) -> None:
    assert store.steps(start_flow(store).id) == []
    assert store.steps("nobody") == []


def test_each_workflow_has_its_own(store: Store) -> None:
    one, other = start_flow(store), start_flow(store)
    record(store, one, a_step(1))
    record(store, other, a_step(1, name="else"), a_step(2))
    assert store.steps(one.id) == [a_step(1)]
    assert store.steps(other.id) == [a_step(1, name="else"), a_step(2)]


def test_everything_that_was_written_is_read(store: Store) -> None:
    job = start_flow(store)
    full: dict[str, Any] = {"path": "4.1.2", "kind": "transaction", "name": "pay", "attempt": 3, "fence": 2**40}
    full |= {"has_undo": True, "repeatable": False, "arguments": "[[1], {}]", "result": "1.50", "error": "no"}
    full |= {"error_kind": "ValueError", "started_at": 1_700_000_000.25, "ended_at": 1_700_000_001.5}
    full |= {"tries": 7, "retry_at": 1_700_000_002.75}
    steps = [a_step(1, **full), a_step(2, started_at=None, ended_at=None), a_step(3, result="", error="")]
    record(store, job, *steps)
    assert store.steps(job.id) == steps


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD.keys())
def test_any_text_comes_back_as_it_was(store: Store, text: str) -> None:
    job = start_flow(store)
    texts: dict[str, Any] = dict.fromkeys(("name", "arguments", "result", "error", "error_kind", "path"), text)
    record(store, job, a_step(1, **texts), open_step=text or "x")
    assert store.steps(job.id) == [a_step(1, **texts)]
    assert row(store, job.id).open_step == (text or "x")


def test_the_order_is_that_of_the_positions_whatever_came_first(store: Store) -> None:
    job = start_flow(store)
    for positions in ([12, 3], [100], [1, 2], [20]):
        record(store, job, *map(a_step, positions))
    assert [step.position for step in store.steps(job.id)] == [1, 2, 3, 12, 20, 100]


def test_pages_have_everything_once(store: Store) -> None:
    job = start_flow(store)
    steps = [a_step(number) for number in range(1, 26)]
    store.record([a_record(job, step) for step in steps])
    read, after = [], 0
    while page := store.steps(job.id, after, limit=10):
        read += page
        after = page[-1].position
    assert read == steps
    assert store.steps(job.id, 25) == []
    assert store.steps(job.id, 24) == steps[24:]
    assert store.steps(job.id, limit=1) == steps[:1]
    assert store.steps(job.id, limit=0) == []


def test_those_that_were_set_aside_are_read_only_on_demand(store: Store) -> None:
    job = start_flow(store, attempts_max=1)
    record(store, job, a_step(1), a_step(2), a_step(3))
    settle(store, job, Failed("x"))
    dead = row(store, job.id)
    steps = store.steps(job.id)
    verdict = acts.retry_from(dead, steps[1], steps, store.now().wall, actor="ann")
    assert move(store, dead.id, dead.state, dead.fence, verdict) is True
    successor = again(store, row(store, job.id))
    record(store, successor, a_step(2, name="new", attempt=2))
    aside = [a_step(2, aside=dead.fence), a_step(3, aside=dead.fence)]
    assert store.steps(job.id) == [a_step(1), a_step(2, name="new", attempt=2)]
    assert store.steps(job.id, aside=True) == [a_step(1), a_step(2, name="new", attempt=2), *aside]
    assert store.steps(job.id, 2, aside=True) == aside[1:]
    assert store.steps(job.id, 2) == []
