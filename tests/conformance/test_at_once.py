"""claim and settle, from several threads at once: no limit is exceeded, and a batch ends once.

HOLDFAST_ROUNDS=1000 makes so many rounds.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.core.batches import Batch, Then, then_text
from holdfast.core.limits import Places, setting
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job
from holdfast.core.verdict import Failed, Succeeded
from holdfast.ids import new_id
from holdfast.stores.protocol import Reply, Store
from holdfast.upkeep.batch_ends import end_batches
from tests.factory import claim, enrol, make_job, settle_for_good, settlement

CLAIMERS = 8
ROUNDS = int(os.environ.get("HOLDFAST_ROUNDS", "6"))


def at_once(calls: list[Callable[[], None]]) -> None:
    """Make all calls at the same time; raise what one of them raises."""
    barrier = threading.Barrier(len(calls))

    def call(each: Callable[[], None]) -> None:
        barrier.wait(60)
        each()

    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call, each) for each in calls]:
            done.result(120)


@pytest.mark.parametrize(
    ("most", "group_most", "size"), [(1, None, 1), (3, None, 3), (10, None, 500), (1, 1, 3), (3, 1, 500), (10, 2, 1)]
)
def test_claims_at_once_never_exceed_a_limit(store: Store, most: int, group_most: int | None, size: int) -> None:
    store.limit("default", setting(limit=most, group_limit=group_most))
    groups = [None] if group_most is None else [f"g{number}" for number in range(7)]
    jobs = [make_job(group=groups[number % len(groups)]) for number in range(CLAIMERS * ROUNDS)]
    store.add(jobs)
    seen: list[Places] = []
    give_up = time.monotonic() + 60 + ROUNDS

    def work() -> None:
        worker = enrol(store)
        while time.monotonic() < give_up:
            mine = store.claim(worker, new_id(), ["default"], ["t"], size)
            # Of two claims that together exceed the limit, the one that commits later sees it here.
            seen.extend(store.places("default", group) for group in {job.group for job in mine})
            for job in mine:
                assert settle_for_good(store, settlement(job, Succeeded())) is Reply.ACCEPTED
            if store.counts()["default"].get(State.DONE) == len(jobs):
                return
            if not mine:
                time.sleep(0.01)  # eight threads that ask again at once would leave no time to those that have jobs

    at_once([work] * CLAIMERS)
    assert store.counts()["default"] == {State.DONE: len(jobs)}
    assert max(places.queue for places in seen) <= most
    assert group_most is None or max(places.group for places in seen) <= group_most


@pytest.mark.parametrize("outcome", [Succeeded(), Failed("no luck")])
def test_the_last_two_jobs_of_a_batch_that_end_at_once_end_it_once(store: Store, outcome: Succeeded | Failed) -> None:
    worker = enrol(store)
    for number in range(ROUNDS):
        batch = f"batch-{number}"
        last = make_job(id="", task="last", queue="after")
        store.batches.open(Batch(id=batch, then=then_text(Then(last, ("batch_id", "counts", "complete")))))
        store.batches.add(batch, [make_job(attempts_max=1) for _ in range(2)])
        store.batches.close(batch, complete=True)
        ends = [settlement(job, outcome) for job in claim(store, worker)]

        def finish(each: int, batch: str = batch, ends: list = ends) -> None:  # type: ignore[type-arg]
            assert settle_for_good(store, ends[each]) is Reply.ACCEPTED
            end_batches(store, store.batches.get([batch]))

        at_once([lambda: finish(0), lambda: finish(1)])
        found: list[Job] = store.find(Filter(queue="after", limit=10_000))
        assert len(found) == number + 1
        assert end_batches(store, store.batches.get([batch])) == 0
