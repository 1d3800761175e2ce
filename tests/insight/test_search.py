"""The search in jobs: words, and typed conditions on arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.records import Job
from holdfast.insight import TextSearch
from tests.factory import a_job

ARGUMENTS: dict[str, Any] = {
    "order_id": 42,
    "name": "42",
    "big": 9007199254740993,
    "price": 4.5,
    "paid": True,
    "note": None,
    "user": {"mail": "ann@example.org", "full.name": "Ann Lee"},
    "items": [{"sku": "cat"}, {"sku": "dog"}],
    "word": "true",
}


def a_call(arguments: object = ARGUMENTS) -> Job:
    return a_job(id="j", task="shop.order", payload=json.dumps(arguments), error="TimeoutError")


@pytest.mark.parametrize(
    "text",
    [
        *("args.order_id:42", "args.order_id:42.0", "args.name:42", 'args.name:"42"', "args.big:9007199254740993"),
        *("args.price:4.5", "args.paid:true", "args.note:null", "args.user.mail:ann@example.org"),
        *("args.items.1.sku:dog", "args.word:true", "args.order_id:42 args.paid:true", "timeout args.order_id:42"),
        *("args.order_id:42  SHOP.order", "shop", "timeout", "order_id", "42,", "ann@"),
    ],
)
def test_what_is_asked_is_found(text: str) -> None:
    assert TextSearch(text).matches(a_call())


@pytest.mark.parametrize(
    "text",
    [
        *('args.order_id:"42"', "args.order_id:43", "args.big:9007199254740992", "args.paid:1", "args.paid:false"),
        *("args.note:0", "args.gone:null", "args.items.2.sku:dog", "args.items.sku:dog", "args.user:ann"),
        *("args.order_id:42 args.paid:false", "nothing args.order_id:42", "args.order_id:42 nothing", "args.name:4"),
        *(
            "args.user.full.name:Ann",
            "args.order_id:4x",
            'args.name:"4',
            "args.items.99999999999999999999:1",
            "args.order_id:" + "[" * 60_000,
        ),
    ],
)
def test_what_is_not_so_is_not_found(text: str) -> None:
    assert not TextSearch(text).matches(a_call())


def test_positional_arguments_have_their_place_and_other_payloads_are_no_trouble() -> None:
    assert TextSearch("args.0:cat").matches(a_call(["cat"]))
    assert not TextSearch("args.0:cat").matches(a_call("cat"))
    assert not TextSearch("args.x:1").matches(a_job(id="j", payload="no JSON {"))
