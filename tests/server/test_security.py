"""Who may come in: Host, origin, token, cookie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.app import App
from holdfast.core.access import User, session_of
from holdfast.errors import StoreUnavailable, UsageError
from holdfast.server import ServerOptions
from holdfast.server.options import is_loopback, networks
from holdfast.server.problems import Problem
from holdfast.server.security import Failures
from holdfast.testing import FakeClock
from tests.server.client import PEER, Client, add_token, code

Serve = Callable[..., Client]


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "api.localhost", "127.0.0.1", "[::1]:9", "10.1.2.3"])
def test_addresses_and_localhost_are_always_names_of_the_server(client: Client, host: str) -> None:
    assert client.get("/v1/me", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "jobs.example.org.evil", "", "a b", "localhost@evil.example"])
@pytest.mark.parametrize("path", ["/v1/me", "/health/live", "/nothing"])
def test_a_rebound_name_reads_nothing_on_any_path(client: Client, host: str, path: str) -> None:
    assert code(client.get(path, headers={"host": host}), 421) == "wrong_host"
    assert code(client.post(path, {}, headers={"host": host}), 421) == "wrong_host"


def test_an_allowed_host_is_a_name_of_the_server(serve: Serve) -> None:
    client = serve(allowed_hosts=("Jobs.example.org",))
    assert client.get("/v1/me", headers={"host": "jobs.EXAMPLE.org:8787"}).status_code == 200
    assert code(client.get("/v1/me", headers={"host": "example.org"}), 421) == "wrong_host"


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"sec-fetch-site": "same-origin"}, True),
        ({"sec-fetch-site": "same-origin", "origin": "http://evil.example"}, True),
        ({"sec-fetch-site": "same-site"}, False),
        ({"sec-fetch-site": "cross-site"}, False),
        ({"sec-fetch-site": "none"}, False),
        ({"origin": "http://localhost"}, True),
        ({"origin": "https://localhost"}, False),
        ({"origin": "http://localhost:81"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"origin": "null"}, False),
        ({"cookie": "a=b"}, False),
        ({"cookie": "a=b", "origin": "http://localhost"}, True),
        ({"cookie": "a=b", "sec-fetch-site": "same-origin"}, True),
    ],
)
def test_a_page_of_another_site_cannot_act(client: Client, headers: dict[str, str], passes: bool) -> None:
    answer = client.post("/v1/logout", headers=headers)
    if passes:
        assert answer.status_code == 200
    else:
        assert code(answer, 403) == "cross_site"
    assert client.get("/v1/me", headers=headers).status_code == 200, "reading is no act"


def test_a_program_with_a_token_is_not_a_page(app: App, client: Client) -> None:
    secret = add_token(app, "ann")
    assert client.post("/v1/logout", token=secret, headers={"origin": "http://evil.example"}).status_code == 200


def test_on_loopback_no_token_is_needed_and_from_elsewhere_it_is(app: App, serve: Serve) -> None:
    assert serve().get("/v1/me").json() == {"name": "anonymous", "role": "admin", "queues": None}
    for options in ({"peer": PEER}, {"needs_token": True}):
        assert code(serve(**options).get("/v1/me"), 401) == "unauthenticated"


@pytest.mark.parametrize("header", ["x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded-host"])
def test_a_request_that_a_proxy_on_this_machine_forwards_needs_a_token(client: Client, header: str) -> None:
    assert code(client.get("/v1/me", headers={header: "203.0.113.9"}), 401) == "unauthenticated"


def test_a_token_gives_its_name_role_and_queues(app: App, serve: Serve) -> None:
    secret = add_token(app, "edge", "worker", ("mail",))
    client = serve(peer=PEER)
    assert client.get("/v1/me", token=secret).json() == {"name": "edge", "role": "worker", "queues": ["mail"]}
    for wrong in (secret + "x", secret[:-1], "", "é", "x" * 600):
        assert code(client.get("/v1/me", headers={"authorization": f"Bearer {wrong}".encode()}), 401)
    assert code(client.get("/v1/me", headers={"authorization": f"Basic {secret}"}), 401) == "unauthenticated"


def test_a_wrong_token_is_not_an_anonymous_admin_on_loopback(client: Client) -> None:
    assert code(client.get("/v1/me", token="wrong"), 401) == "unauthenticated"


def test_a_revoked_or_expired_token_is_refused_within_five_seconds(app: App, serve: Serve, clock: FakeClock) -> None:
    first, second = serve(peer=PEER), serve(peer=PEER)
    secret, short = add_token(app, "ann"), add_token(app, "bob", expires_at=clock.wall() + 60)
    for client in (first, second):
        assert client.get("/v1/me", token=secret).status_code == 200
        assert client.get("/v1/me", token=short).status_code == 200
    app.store.tokens.revoke("ann")
    clock.advance(4.9)
    for client in (first, second):
        assert code(client.get("/v1/me", token=secret), 401) == "unauthenticated"
    clock.advance(55.2)
    assert code(first.get("/v1/me", token=short), 401) == "unauthenticated"


def test_a_store_that_cannot_be_read_lets_tokens_in_for_five_seconds_only(
    app: App, serve: Serve, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, secret = serve(peer=PEER), add_token(app, "ann")
    assert client.get("/v1/me", token=secret).status_code == 200

    def fails() -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(app.store.tokens, "all", fails)
    clock.advance(4.5)
    assert client.get("/v1/me", token=secret).status_code == 200
    clock.advance(0.6)
    answer = client.get("/v1/me", token=secret)
    assert code(answer, 503) == "store_down"
    assert answer.headers["retry-after"]


def test_the_last_use_of_a_token_is_noted_once_a_minute(app: App, serve: Serve, clock: FakeClock) -> None:
    client, secret = serve(peer=PEER), add_token(app, "ann")

    def used_at() -> float | None:
        client.get("/v1/me", token=secret)
        client.get("/v1/me", token=secret)
        return app.store.tokens.all()[0].used_at

    first = clock.wall()
    assert used_at() == first
    clock.advance(30)
    assert used_at() == first
    clock.advance(31)
    assert used_at() == first + 61


def test_a_cookie_stands_for_its_token_until_that_is_revoked_or_twelve_hours_are_over(
    app: App, serve: Serve, clock: FakeClock
) -> None:
    secret = add_token(app, "ann", "operator", ("mail",))
    client = serve(peer=PEER, trusted_proxies=networks([PEER]))
    headers = {"x-forwarded-proto": "https", "x-forwarded-host": "localhost", "origin": "https://localhost"}
    answer = client.post("/v1/login", {"token": secret}, headers=headers)
    assert answer.json() == {"name": "ann", "role": "operator", "queues": ["mail"]}
    [cookie] = [answer.headers["set-cookie"]]
    assert {"HttpOnly", "SameSite=Lax", "Secure", "Path=/"} <= {each.strip() for each in cookie.split(";")}
    assert secret not in cookie
    client.http.cookies.clear()
    value = cookie.partition(";")[0]

    def me(value: str) -> int:
        return client.get("/v1/me", headers={"cookie": value, **headers}).status_code

    assert me(value) == 200
    for forged in (value[:-1] + "x", value.replace("ann", "bob"), "holdfast_session=", "holdfast_session=1.2.ann"):
        assert me(forged) == 401, forged
    clock.advance(12 * 3600 - 10)
    assert me(value) == 200
    clock.advance(11)
    assert me(value) == 401
    again = client.post("/v1/login", {"token": secret}, headers=headers).headers["set-cookie"].partition(";")[0]
    assert me(again) == 200
    app.store.tokens.revoke("ann")
    add_token(app, "ann", "admin")  # the same name and secret, another role
    clock.advance(3)
    assert me(again) == 401
    client.http.cookies.clear()


def test_a_reader_of_the_store_cannot_make_a_cookie(app: App, serve: Serve, clock: FakeClock) -> None:
    client, secret = serve(peer=PEER), add_token(app, "ann")
    [token] = app.store.tokens.all()
    forged = session_of(token, "what the store has of it: " + token.sha256, clock.wall())
    made = session_of(token, secret, clock.wall())
    for cookie, status in ((forged, 401), (made, 200)):
        assert client.get("/v1/me", headers={"cookie": f"holdfast_session={cookie}"}).status_code == status
    assert secret not in made
    assert secret.encode().hex() not in made


def test_a_login_in_clear_from_another_machine_is_refused(app: App, serve: Serve) -> None:
    secret = add_token(app, "ann")
    assert code(serve(peer=PEER).post("/v1/login", {"token": secret}), 403) == "forbidden"
    assert serve(peer=PEER, insecure=True).post("/v1/login", {"token": secret}).status_code == 200


def test_failed_logins_are_slowed_down_per_address(app: App, serve: Serve, clock: FakeClock) -> None:
    secret = add_token(app, "ann")
    client = serve(needs_token=True)
    for _ in range(5):
        assert code(client.post("/v1/login", {"token": "wrong"}), 401) == "unauthenticated"
    limited = client.post("/v1/login", {"token": secret})
    assert code(limited, 429) == "rate_limited"
    assert 0 < int(limited.headers["retry-after"]) <= 60
    assert client.get("/v1/me", token=secret).status_code == 200, "a program with a valid token is let in"
    other = serve(peer=PEER, insecure=True)
    assert other.post("/v1/login", {"token": secret}).status_code == 200
    clock.advance(61)
    assert client.post("/v1/login", {"token": secret}).status_code == 200


def test_one_network_of_ipv6_is_one_client(app: App, clock: FakeClock) -> None:
    failures = Failures(clock)
    for number in range(5):
        failures.note(f"2001:db8:1:2::{number}")
    failures.check("2001:db8:1:3::1")
    failures.check("192.0.2.1")
    with pytest.raises(Problem, match="too many logins"):
        failures.check("2001:db8:1:2:9::7")
    for _ in range(5):
        failures.note("::ffff:192.0.2.9")
    failures.check("192.0.2.1")
    with pytest.raises(Problem, match="too many logins"):
        failures.check("192.0.2.9")


def test_headers_of_a_proxy_count_only_if_it_is_trusted(app: App, serve: Serve) -> None:
    trusting = serve(peer="10.0.0.1", trusted_proxies=networks(["10.0.0.0/8"]), insecure=False)
    secret = add_token(app, "ann")
    given = {"x-forwarded-proto": "https", "x-forwarded-host": "localhost"}
    assert trusting.post("/v1/login", {"token": secret}, headers=given).status_code == 200
    trusting.http.cookies.clear()
    stranger = serve(peer="11.0.0.1", trusted_proxies=networks(["10.0.0.0/8"]))
    assert code(stranger.post("/v1/login", {"token": secret}, headers=given), 403) == "forbidden"


def test_a_read_only_server_changes_nothing_and_lets_people_in(app: App, serve: Serve) -> None:
    client, secret = serve(read_only=True), add_token(app, "ann")
    assert client.post("/v1/login", {"token": secret}).status_code == 200
    client.http.cookies.clear()
    assert client.get("/v1/me").status_code == 200


def test_every_answer_has_strict_headers_and_a_request_id(client: Client) -> None:
    for answer in (client.get("/health/live"), client.get("/nothing"), client.post("/v1/login", {})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert len(answer.headers["x-request-id"]) == 32
    given = client.get("/health/live", headers={"x-request-id": "mine-7"})
    assert given.headers["x-request-id"] == "mine-7"
    for wrong in ("a b", "x" * 65, "<script>"):
        assert client.get("/health/live", headers={"x-request-id": wrong}).headers["x-request-id"] != wrong


def test_a_body_must_be_json_of_the_right_shape(client: Client, serve: Serve) -> None:
    def post(content: bytes, kind: str = "application/json") -> Any:
        return client.post("/v1/login", content=content, headers={"content-type": kind})

    assert code(post(b'{"token": "x"}', "text/plain"), 415) == "unsupported_media"
    assert code(post(b'{"token": "x"}', "application/x-www-form-urlencoded"), 415) == "unsupported_media"
    assert code(post(b"{"), 400) == "not_json"
    assert code(post(b"\xff"), 400) == "not_json"
    answer = post(b'{"token": 5}')
    assert code(answer, 422) == "invalid"
    assert answer.json()["errors"][0]["pointer"] == "/token"
    assert code(post(b'{"token": "x", "strange": 1}'), 422) == "invalid"
    assert code(post(b'{"token": ' + b"[" * 65 + b"]" * 65 + b"}"), 413) == "too_large"
    assert code(post(b'{"token": "' + b"[" * 100 + b'"}'), 401) == "unauthenticated"
    assert code(post(b'{"token": "' + b"x" * (1 << 20) + b'"}'), 413) == "too_large"


def test_the_body_is_counted_while_it_is_read(client: Client) -> None:
    async def pieces() -> Any:
        for _ in range(20):
            yield b"x" * 100_000

    answer = client.post(
        "/v1/login", content=pieces(), headers={"content-type": "application/json", "content-length": "5"}
    )
    assert code(answer, 413) == "too_large"


def test_an_application_that_mounts_the_server_says_who_the_user_is(app: App, serve: Serve) -> None:
    async def later(scope: Any) -> User:
        return User("dave", "viewer", ("mail",))

    users: list[Any] = [lambda _: User("carol", "operator"), later, lambda _: None]
    found = [serve(user=user, peer=PEER).get("/v1/me", headers={"host": "shop.example"}) for user in users]
    assert [answer.status_code for answer in found] == [200, 200, 401]
    assert [answer.json()["name"] for answer in found[:2]] == ["carol", "dave"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.9.1"])
def test_loopback_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", ""])
def test_what_others_can_reach_is_known(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize("given", [{"prefix": "ops"}, {"prefix": "/ops/"}, {"allowed_hosts": ("http://x",)}])
def test_an_option_that_cannot_work_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ServerOptions(**given)
    with pytest.raises(UsageError):
        networks(["10.0.0.1/8/9"])
