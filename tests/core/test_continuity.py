"""What a worker takes for a store that was replaced, rewound or emptied, and what not."""

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.continuity import Standing, compare

BEFORE = Standing(
    schema=1,
    works_with=1,
    identity="store",
    at=100.0,
    incarnation=3,
    accepted_at=50.0,
    removals=7,
    beats=10,
    beats_of_all=40,
    newest=["job"],
    missing=[],
    runs_again=False,
    doubts=0,
)


def found(beats: int = 12, **changed: Any) -> tuple[str, str] | None:
    doubt = compare(BEFORE, beats, replace(BEFORE, **{"beats": beats, **changed}))
    return (doubt.kind, doubt.evidence) if doubt is not None else None


def test_a_store_that_went_on_is_what_it_was() -> None:
    assert found() is None
    assert found(beats=12, newest=["another"], removals=8) is None
    assert found(doubts=1) is None


@pytest.mark.parametrize(
    ("changed", "doubt"),
    [
        ({"identity": "other"}, ("replaced", "identity")),
        ({"incarnation": 2}, ("rewound", "incarnation")),
        ({"removals": 6}, ("rewound", "removals")),
        ({"runs_again": True}, ("rewound", "settled job")),
        ({"beats_of_all": 39}, ("rewound", "beats")),
        ({"missing": ["job", "another"]}, ("emptied", "known job")),
        ({"missing": ["job"], "newest": []}, ("emptied", "known job")),
    ],
)
def test_each_sign_is_noticed(changed: dict[str, Any], doubt: tuple[str, str]) -> None:
    assert found(**changed) == doubt


def test_a_beat_that_was_acknowledged_and_is_not_there_is_noticed() -> None:
    doubt = compare(BEFORE, 12, replace(BEFORE, beats=11))
    assert doubt is not None
    assert (doubt.kind, doubt.evidence, doubt.seen, doubt.found) == ("rewound", "beats", "12", "11")


def test_a_beat_whose_answer_was_lost_is_no_sign() -> None:
    assert compare(BEFORE, 12, replace(BEFORE, beats=13)) is None


def test_a_row_that_is_missing_is_a_sign_unless_rows_were_removed() -> None:
    for missing in ({"beats": None}, {"beats_of_all": 39}, {"missing": ["job", "another"]}):
        assert compare(BEFORE, 10, replace(BEFORE, **missing)) is not None
        assert compare(BEFORE, 10, replace(BEFORE, **missing, removals=8)) is None


def test_a_worker_that_had_no_row_before_does_not_miss_it() -> None:
    unknown = replace(BEFORE, beats=None)
    assert compare(unknown, 0, unknown) is None


def test_a_job_that_is_missing_is_no_sign_while_a_program_removes_jobs_uncounted() -> None:
    missing = replace(BEFORE, missing=["job", "another"])
    assert compare(replace(BEFORE, uncounted=True), 10, missing) is None
    assert compare(BEFORE, 10, replace(missing, uncounted=True)) is None


def test_an_empty_store_that_stays_empty_is_what_it_was() -> None:
    empty = replace(BEFORE, newest=[])
    assert compare(empty, 10, empty) is None


def test_one_job_that_a_person_has_deleted_is_not_a_sign() -> None:
    assert found(missing=["job"]) is None


def test_what_a_person_has_accepted_is_not_doubted() -> None:
    assert found(incarnation=4, accepted_at=100.0, beats=0, missing=["job", "another"]) is None


def test_an_incarnation_that_was_known_is_not_an_acceptance_though_the_clock_was_set_back() -> None:
    assert found(accepted_at=101.0, removals=6) == ("rewound", "removals")


def test_another_store_is_not_taken_for_an_accepted_one() -> None:
    assert found(incarnation=4, accepted_at=101.0, identity="other") == ("replaced", "identity")


def test_a_copy_that_was_accepted_before_it_was_put_there_is_not_an_accepted_store() -> None:
    assert found(incarnation=4, accepted_at=99.0) == ("rewound", "incarnation")
