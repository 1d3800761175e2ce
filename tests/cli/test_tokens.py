"""`holdfast tokens`: made once, shown without the secret, revoked."""

from __future__ import annotations

from holdfast.core.access import digest_of
from holdfast.stores.protocol import Store
from tests.cli.conftest import Run


def test_a_token_is_printed_once_and_only_its_digest_is_stored(run: Run, store: Store) -> None:
    made = run("tokens", "add", "ann", "--role", "operator", "--queues", "mail,media", "--expires", "90d")
    secret = made.stdout.strip()
    assert secret.startswith("hf_")
    assert len(secret) == 3 + 43
    [token] = store.tokens.all()
    assert (token.name, token.role, token.queues) == ("ann", "operator", ("mail", "media"))
    assert token.sha256 == digest_of(secret)
    assert token.expires_at is not None
    assert round(token.expires_at - token.created_at) == 90 * 86400
    listed = run("tokens", "list")
    assert "operator" in listed.stdout
    assert secret not in listed.stdout + str(run.json("tokens", "list"))


def test_every_token_is_another_and_a_name_is_taken_once(run: Run, store: Store) -> None:
    first = run.json("tokens", "add", "a", "--role", "admin")
    second = run.json("tokens", "add", "b", "--role", "viewer")
    assert first["token"] != second["token"]
    assert (first["queues"], first["expires_at"], first["expired"]) == (None, None, False)
    assert "revoke it" in run("tokens", "add", "a", "--role", "viewer", code=6).stderr
    assert "one word" in run("tokens", "add", "a b", "--role", "viewer", code=2).stderr
    run("tokens", "add", "c", "--role", "king", code=2)
    assert [token.name for token in store.tokens.all()] == ["a", "b"]


def test_a_revoked_token_is_gone(run: Run, store: Store) -> None:
    run("tokens", "add", "a", "--role", "admin")
    assert run.json("tokens", "revoke", "a") == {"name": "a", "revoked": True}
    assert run("tokens", "revoke", "a", code=5).stderr
    assert run("tokens", "list").stderr.startswith("There are no tokens yet")
