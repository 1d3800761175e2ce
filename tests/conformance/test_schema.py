"""schema, migrate, check, now, transaction: the house around the verbs."""

from pathlib import Path

import pytest

from holdfast.core.machine import State
from holdfast.errors import LeaseLost, StoreUnsupported
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.conftest import open_store
from tests.factory import STALE, add, job_in, picture, start

KINDS = ["memory", "sqlite"]


def test_a_migrated_store_has_the_schema_that_is_wanted(store: Store) -> None:
    schema = store.schema()
    assert schema.found == schema.wanted >= 1
    assert not schema.is_stale
    assert not schema.is_too_new


def test_migrating_again_changes_nothing(store: Store) -> None:
    add(store)
    before = picture(store)
    schema = store.migrate()
    assert schema.found == schema.wanted
    assert picture(store) == before


@pytest.mark.parametrize("kind", KINDS)
def test_migrating_says_what_was_found_before(kind: str, clock: FakeClock, tmp_path: Path) -> None:
    store = open_store(kind, clock, tmp_path)
    wanted = store.schema().wanted
    assert store.migrate()[:2] in ((0, wanted), (wanted, wanted))
    assert store.schema()[:2] == (wanted, wanted)
    store.close()


def test_a_healthy_store_has_nothing_wrong_with_it(store: Store) -> None:
    assert store.check() == []
    for state in State:
        job_in(store, state)
    assert store.check() == []


def test_now_is_the_clock_of_the_store(store: Store, clock: FakeClock) -> None:
    clock.advance(3)
    now = store.now()
    assert (now.wall, now.lease) == (clock.wall(), clock.lease())


@pytest.mark.parametrize("stale", STALE.values(), ids=STALE.keys())
def test_a_transaction_is_not_opened_for_a_stale_lease(store: Store, stale: object) -> None:
    lease = stale(store)  # type: ignore[operator]
    with pytest.raises((LeaseLost, StoreUnsupported)), store.transaction(lease, 5.0):
        pytest.fail("the transaction was opened")


def test_a_store_without_sql_says_what_to_use_instead(clock: FakeClock, tmp_path: Path) -> None:
    store = open_store("memory", clock, tmp_path)
    with pytest.raises(StoreUnsupported, match="sqlite:///"):
        store.transaction(start(store).lease, 5.0)
