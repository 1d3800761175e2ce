"""The webhook against a real server: signed, checked addresses, no redirects, bounds on time and size."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import logging
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.alerts import webhook as module
from holdfast.alerts.messages import a_test
from holdfast.alerts.webhook import Webhook, is_public
from holdfast.clock import SystemClock, pause
from tests.alerts.receiver import Receiver, certificate_for, receiving
from tests.alerts.waiting import FOR_EVER_S, PATIENCE_S

SECRET = "a secret of sixteen"
STORE = "postgresql://app:hunter2@db/jobs"
MESSAGE = a_test(1_700_000_000.0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let names resolve to these addresses, one list per question, the last for ever; return the names asked for."""
    asked: list[str] = []
    left = list(answers)

    def getaddrinfo(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        asked.append(host)
        found = left.pop(0) if len(left) > 1 else left[0]
        return [
            (socket.AF_INET6 if ":" in ip else socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in found
        ]

    monkeypatch.setattr(module.socket, "getaddrinfo", getaddrinfo)
    return asked


def no_connections(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let nobody out of here; return where to they wanted."""
    wanted: list[Any] = []

    def connect(_: Any, where: Any) -> Any:
        wanted.append(where)
        raise ConnectionRefusedError(111, "not in a test")

    monkeypatch.setattr(socket.socket, "connect", connect)
    return wanted


# ----------------------------------------------------------------------------------------- the request


def test_a_message_arrives_as_json_with_a_signature_that_the_recipe_verifies(receiver: Receiver) -> None:
    sent = Webhook(receiver.url, secret=SECRET, private=True).send(MESSAGE, STORE)
    assert (sent.told, sent.words) == (True, "answered 204")
    [(path, headers, body)] = receiver.requests
    assert path == "/hook"
    assert json.loads(body)["text"] == "a test of this channel; nothing is wrong"
    assert json.loads(body)["store"] == "postgresql://app:***@db/jobs"
    assert headers["Content-Type"] == "application/json"
    wanted = hmac.new(SECRET.encode(), headers["Holdfast-Timestamp"].encode() + b"." + body, hashlib.sha256)
    assert headers["Holdfast-Signature"] == f"v1={wanted.hexdigest()}"
    assert abs(int(headers["Holdfast-Timestamp"]) - SystemClock().wall()) < 60


def test_without_a_secret_there_is_no_signature(receiver: Receiver) -> None:
    Webhook(receiver.url, private=True).send(MESSAGE, STORE)
    [(_, headers, _)] = receiver.requests
    assert "Holdfast-Signature" not in headers


def test_path_query_and_login_are_sent_and_never_shown(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    hook = Webhook(f"http://ann:hunter2@127.0.0.1:{receiver.port}/T0/k3y?t=t0ken", secret=SECRET, private=True)
    assert hook.send(MESSAGE, STORE).told
    [(path, headers, _)] = receiver.requests
    assert path == "/T0/k3y?t=t0ken"
    assert headers["Authorization"] == "Basic YW5uOmh1bnRlcjI="
    assert headers["Host"] == f"127.0.0.1:{receiver.port}"
    assert hook.name == f"webhook http://127.0.0.1:{receiver.port}/…"
    shown = caplog.text + repr(hook) + hook.name
    assert not [secret for secret in ("hunter2", "k3y", "t0ken", SECRET) if secret in shown]


@pytest.mark.parametrize(
    ("status", "told", "again"),
    [(200, True, False), (301, False, False), (307, False, False), (400, False, False), (410, False, False)]
    + [(status, False, True) for status in (408, 429, 500, 503)],
)
def test_what_an_answer_means(status: int, told: bool, again: bool) -> None:
    with receiving(answers=[status]) as receiver:
        sent = Webhook(receiver.url, private=True).send(MESSAGE, STORE)
    assert (sent.told, sent.again) == (told, again)
    assert str(status) in sent.words


def test_a_redirect_is_not_followed(receiver: Receiver) -> None:
    with receiving(answers=[307], headers={"Location": receiver.url}) as first:
        sent = Webhook(first.url, private=True).send(MESSAGE, STORE)
    assert not sent.told
    assert "follows no redirect" in sent.words
    assert (len(first.requests), len(receiver.requests)) == (1, 0)


# ----------------------------------------------------------------------------------------- the address

PRIVATE = ["127.0.0.1", "10.0.0.1", "172.16.9.9", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0", "::1"]
PRIVATE += ["fe80::1", "fc00::1", "fec0::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"]
PRIVATE += ["224.0.0.1", "ff02::1", "::", "255.255.255.255", "240.0.0.1", "2001:0:7f00:1::"]


@pytest.mark.parametrize("address", PRIVATE)
def test_an_address_that_is_not_public_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_public(ipaddress.ip_address(address))
    resolve_to(monkeypatch, [address])
    wanted = no_connections(monkeypatch)
    sent = Webhook("https://hooks.example.org/").send(MESSAGE, STORE)
    assert (sent.told, sent.again, wanted) == (False, False, [])
    assert "refused" in sent.words


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_a_public_address_is_not_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_public(ipaddress.ip_address(address))
    resolve_to(monkeypatch, [address])
    wanted = no_connections(monkeypatch)
    Webhook("https://hooks.example.org/").send(MESSAGE, STORE)
    assert [where[0] for where in wanted] == [address]


def test_a_private_server_hears_nothing_unless_that_is_allowed(receiver: Receiver) -> None:
    sent = Webhook(f"https://127.0.0.1:{receiver.port}/").send(MESSAGE, STORE)
    assert "refused: its address is private" in sent.words
    assert receiver.requests == []


@pytest.mark.parametrize("private", [False, True])
def test_the_name_is_asked_for_once_and_that_very_address_is_used(
    private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is public when it is checked and private when it is used: DNS rebinding."""
    asked = resolve_to(monkeypatch, ["8.8.8.8"], ["127.0.0.1"])
    wanted = no_connections(monkeypatch)
    Webhook("https://hooks.example.org/", private=private).send(MESSAGE, STORE)
    assert asked == ["hooks.example.org"]
    assert wanted == [("8.8.8.8", 443)]


def test_the_name_is_not_resolved_again_to_connect(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = resolve_to(monkeypatch, ["127.0.0.1"])
    assert Webhook(f"http://hooks.invalid:{receiver.port}/", private=True).send(MESSAGE, STORE).told
    assert asked == ["hooks.invalid"]


def test_of_several_addresses_only_those_that_may_be_used_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, ["10.0.0.1", "8.8.8.8", "127.0.0.1", "8.8.4.4"])
    wanted = no_connections(monkeypatch)
    Webhook("https://hooks.example.org/").send(MESSAGE, STORE)
    assert [where[0] for where in wanted] == ["8.8.8.8", "8.8.4.4"]


def test_plain_http_stays_on_the_private_network(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, ["8.8.8.8"])
    wanted = no_connections(monkeypatch)
    sent = Webhook("http://hooks.example.org/", private=True).send(MESSAGE, STORE)
    assert "plain http goes to private addresses only" in sent.words
    assert wanted == []


# ----------------------------------------------------------------------------------------------- TLS


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
@pytest.mark.parametrize(("name", "told"), [("hooks.invalid", True), ("other.invalid", False)])
def test_the_certificate_is_checked_against_the_name(
    name: str, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = certificate_for("hooks.invalid", tmp_path)
    trusting = ssl.create_default_context(cafile=certificate)
    monkeypatch.setattr(module.ssl, "create_default_context", lambda: trusting)
    resolve_to(monkeypatch, ["127.0.0.1"])
    with receiving(certificate) as receiver:
        sent = Webhook(f"https://{name}:{receiver.port}/", private=True).send(MESSAGE, STORE)
    assert sent.told is told
    assert told or "its certificate is not valid" in sent.words


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
def test_a_certificate_that_nobody_signed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve_to(monkeypatch, ["127.0.0.1"])
    with receiving(certificate_for("hooks.invalid", tmp_path)) as receiver:
        sent = Webhook(f"https://hooks.invalid:{receiver.port}/", private=True).send(MESSAGE, STORE)
    assert (sent.told, sent.again, receiver.requests) == (False, False, [])
    assert "certificate" in sent.words


# -------------------------------------------------------------------------------------------- bounds


def drip(out: Any) -> None:
    """An answer that hardly ever ends: each byte comes in time for a timeout of its own."""
    out.write(b"HTTP/1.1 200 OK\r\n")
    give_up_at = SystemClock().lease() + FOR_EVER_S
    while SystemClock().lease() < give_up_at:
        out.write(b"X-A: b\r")
        out.flush()
        pause(0.05)


def flood(out: Any) -> None:
    out.write(b"HTTP/1.1 200 OK\r\n")
    for number in range(99):
        out.write(b"X-%d: " % number + b"x" * 60_000 + b"\r\n")
    out.write(b"\r\n")


@pytest.mark.parametrize("raw", [drip, lambda out: None], ids=["drip", "silence"])
def test_one_deadline_holds_for_all_of_it(raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_S", 0.4)
    clock = SystemClock()
    over = threading.Event()
    with receiving(raw=lambda out: (raw(out), over.wait(FOR_EVER_S))) as receiver:
        began_at = clock.lease()
        sent = Webhook(receiver.url, private=True).send(MESSAGE, STORE)
        took_s = clock.lease() - began_at
        over.set()
    assert (sent.told, sent.again) == (False, True)
    assert "did not answer in time" in sent.words
    assert took_s < PATIENCE_S


def test_no_more_is_read_than_an_answer_may_have() -> None:
    with receiving(raw=flood) as receiver:
        sent = Webhook(receiver.url, private=True).send(MESSAGE, STORE)
    assert (sent.told, sent.words) == (False, "its answer was not HTTP (LineTooLong)")


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 99999 X\r\n\r\n"])
def test_an_answer_that_is_no_http_is_no_success_and_raises_nothing(answer: bytes) -> None:
    with receiving(raw=lambda out: out.write(answer)) as receiver:
        assert not Webhook(receiver.url, private=True).send(MESSAGE, STORE).told


def test_an_unreachable_receiver_is_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = Webhook("http://127.0.0.1:1/", private=True).send(MESSAGE, STORE)
    assert (sent.told, sent.again, sent.words) == (False, True, "it cannot be reached (Connection refused)")

    def unknown(*args: Any, **kwargs: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(module.socket, "getaddrinfo", unknown)
    sent = Webhook("https://hooks.invalid/").send(MESSAGE, STORE)
    assert (sent.told, sent.again) == (False, True)
