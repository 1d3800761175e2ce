"""get: one job, or None."""

import pytest

from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.stores.protocol import Store
from tests.factory import add, delete, job_in, picture


@pytest.mark.parametrize("state", list(State))
def test_a_job_is_found_in_every_state_as_find_shows_it(store: Store, state: State) -> None:
    job = job_in(store, state)
    assert store.get(job.id) == job
    assert store.find(Filter()) == [job]


@pytest.mark.parametrize("job_id", ["", "nobody", "'", "%", "job-", "\x00", "🐈"])
def test_an_unknown_or_malformed_id_is_none(store: Store, job_id: str) -> None:
    add(store)
    assert store.get(job_id) is None


def test_what_was_read_does_not_change_when_the_job_does(store: Store) -> None:
    job = add(store)
    delete(store, job.id, State.READY, 0)
    assert (job.state, store.get(job.id)) == (State.READY, None)


def test_reading_changes_nothing(store: Store) -> None:
    job = job_in(store, State.HELD)
    before = picture(store)
    store.get(job.id)
    assert picture(store) == before
