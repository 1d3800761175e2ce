"""Names and lots."""

import uuid

from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import chance, new_id, new_job_id
from holdfast.testing import FakeClock


@given(wall=st.floats(min_value=0, max_value=2**47 / 1000))
def test_a_job_id_is_a_uuid_of_version_seven_that_carries_its_millisecond(wall: float) -> None:
    made = uuid.UUID(new_job_id(FakeClock(wall=wall)))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == int(wall * 1000)


@given(earlier=st.integers(0, 2**40), later=st.integers(1, 2**40))
def test_job_ids_sort_by_the_time_of_their_making(earlier: int, later: int) -> None:
    clock = FakeClock(wall=earlier / 1000)
    first = new_job_id(clock)
    clock.set_wall((earlier + later) / 1000 + 0.001)
    assert first < new_job_id(clock)


def test_a_job_id_is_written_as_uuids_are() -> None:
    text = new_job_id(FakeClock())
    assert text == str(uuid.UUID(text))


def test_no_two_names_are_alike() -> None:
    clock = FakeClock()
    assert len({new_job_id(clock) for _ in range(10_000)}) == 10_000
    assert len({new_id() for _ in range(10_000)}) == 10_000


def test_a_name_has_128_bits_and_fits_into_a_file_name() -> None:
    assert len(new_id()) == 32
    assert int(new_id(), 16) >= 0


def test_lots_are_drawn_from_zero_up_to_one() -> None:
    lots = [chance() for _ in range(10_000)]
    assert all(0 <= lot < 1 for lot in lots)
    assert 0.45 < sum(lots) / len(lots) < 0.55
    assert len(set(lots)) > 9_990
