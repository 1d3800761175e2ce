"""Which errors are the same error."""

import pytest

from holdfast.core.error_fingerprint import MESSAGE_MAX, fault, masked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ValueError: no order 42", "ValueError: no order #"),
        ("no order 42 of 7,000.50 EUR", "no order # of #,#.# EUR"),
        ("customer cus_9fA3b is gone", "customer # is gone"),
        ("job 01930f3c-8f5e-7cc1-b2a4-0d9c1a2b3c4d", "job #"),
        ("KeyError: 'order'", "KeyError: …"),
        ('no column "a b" in `t`', "no column … in …"),
        ("it can't and won't open", "it can't and won't open"),
        ("several   blanks\tand tabs", "several blanks and tabs"),
        ("the first line\nthe second one 7", "the first line"),
        ("\n\n after empty lines", "after empty lines"),
        ("", ""),
        ("   \n ", ""),
        ("größe ünïcode 9", "größe ünïcode #"),
    ],
)
def test_ids_numbers_and_quoted_text_make_no_difference(text: str, expected: str) -> None:
    assert masked(text) == expected


def test_a_long_text_is_cut() -> None:
    assert masked("word " * 10_000) == ("word " * 1_000)[:MESSAGE_MAX]


def test_the_same_error_has_the_same_fingerprint_for_ever() -> None:
    """Stores keep fingerprints, and people write them into notes: another algorithm would lose them."""
    assert fault("ValueError", "shop.pay", "no order 42").fingerprint == "66d3c143000f"
    assert fault("ValueError", "shop.pay", "no order 43").fingerprint == "66d3c143000f"


def test_type_function_and_text_each_make_a_difference() -> None:
    errors = [
        fault("ValueError", "shop.pay", "no luck"),
        fault("KeyError", "shop.pay", "no luck"),
        fault("ValueError", "shop.ship", "no luck"),
        fault("ValueError", None, "no luck"),
        fault("ValueError", "shop.pay", "no such luck"),
    ]
    assert len({each.fingerprint for each in errors}) == len(errors)
