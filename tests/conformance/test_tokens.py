"""The tokens of the HTTP API: rows with a digest, and never the secret."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.access import Token, digest_of
from holdfast.stores.protocol import Store

# Behind a server there are none to be had; see tests/stores/test_remote.py.
pytestmark = pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"], indirect=True)


def a_token(name: str = "ann", **given: Any) -> Token:
    fields: dict[str, Any] = {"role": "viewer", "sha256": digest_of(name), "created_at": 5.0}
    return Token(name=name, **fields | given)


def test_a_token_comes_back_whole(store: Store) -> None:
    wanted = a_token("é'\"", role="worker", queues=("mail", "é"), expires_at=99.5)
    assert store.tokens.all() == []
    assert store.tokens.add(wanted) is True
    assert store.tokens.all() == [wanted]


def test_a_name_is_taken_only_once(store: Store) -> None:
    first = a_token()
    store.tokens.add(first)
    assert store.tokens.add(a_token(role="admin", sha256=digest_of("other"))) is False
    assert store.tokens.all() == [first]


def test_tokens_are_listed_by_name_and_an_empty_scope_is_not_all_queues(store: Store) -> None:
    for name in ("b", "a", "C"):
        store.tokens.add(a_token(name, queues=()))
    found = store.tokens.all()
    assert [token.name for token in found] == ["C", "a", "b"]
    assert {token.queues for token in found} == {()}


def test_a_revoked_token_is_gone_and_its_name_is_free(store: Store) -> None:
    store.tokens.add(a_token("a"))
    store.tokens.add(a_token("b"))
    assert store.tokens.revoke("a") is True
    assert store.tokens.revoke("a") is False
    assert [token.name for token in store.tokens.all()] == ["b"]
    assert store.tokens.add(a_token("a")) is True


def test_the_last_use_only_rises_and_others_are_left_alone(store: Store) -> None:
    for name in ("a", "b"):
        store.tokens.add(a_token(name))
    store.tokens.used({"a": 50.0, "unknown": 60.0})
    store.tokens.used({"a": 40.0})
    store.tokens.used({})
    assert [token.used_at for token in store.tokens.all()] == [pytest.approx(50.0), None]
