"""Exceptions as libraries define them, at the top of a module where a replay finds them."""

import enum
import http
import subprocess
import urllib.error
from collections.abc import Iterator
from decimal import Decimal
from email.message import Message
from typing import Any


class ApiError(Exception):
    """Its message is not what it was called with."""

    def __init__(self, status: int, body: str) -> None:
        self.status = status
        self.body = body
        super().__init__(f"{status} {body}")


class Slotted(Exception):
    __slots__ = ("amount",)

    def __init__(self, amount: Decimal) -> None:
        self.amount = amount
        super().__init__(amount)


class HasResponse(Exception):
    """Holds what no record can hold, and so does its message."""

    def __init__(self, response: Any) -> None:
        self.response = response
        self.code = 503
        super().__init__(response)

    def __str__(self) -> str:
        return f"the server said {self.response.words}"


class Response:
    words = "no"


class Refusing(Exception):
    """Cannot be made without what it wants."""

    def __new__(cls, *, secret: str) -> "Refusing":
        return super().__new__(cls, secret)

    def __init__(self, *, secret: str) -> None:
        super().__init__(secret)


class Colour(enum.StrEnum):
    RED = "red"


class Sulky(list[int]):
    def __iter__(self) -> Iterator[int]:
        raise ZeroDivisionError


class Base(ValueError):
    pass


Dynamic = type("NoSuchKey", (Base,), {"__module__": "tests.workflow.raising"})  # as botocore makes them


def exceptions() -> dict[str, Exception]:
    """Return exceptions that a replay must raise as the first run does, new ones in every call."""
    noted = ValueError("with a note")
    noted.add_note("look here")
    return {
        "plain": ValueError("bad luck"),
        "no text": ValueError(),
        "Exception itself": Exception("just so"),
        "several arguments": ValueError(1, "two", [3], (4.5, None), {"six": True}, b"\0\xff"),
        "a key": KeyError("k"),
        "a file": FileNotFoundError(2, "No such file", "x.txt"),
        "a unicode error": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"),
        "an import error": ImportError("no", name="there", path="x"),
        "a name error": NameError("no", name="there"),
        "a process": subprocess.CalledProcessError(3, ["false", "-x"], b"out", None),
        "a process that took too long": subprocess.TimeoutExpired("sleep", 1.5),
        "an HTTP error": urllib.error.HTTPError("http://x", 404, "gone", Message(), None),
        "with its own init": ApiError(404, "gone"),
        "with slots": Slotted(Decimal("1.50")),
        "with a note": noted,
        "a group": ExceptionGroup("two", [ValueError("a"), ExceptionGroup("inner", [ApiError(1, "b")])]),
        "an error in an error": ValueError(ApiError(2, "c")),
        "a response": HasResponse(Response()),
        "cannot be made": Refusing(secret="x"),
        "made at run time": Dynamic("gone"),
        "a very long text": ValueError("x" * 2_000_000),
        "an enum": ValueError(http.HTTPStatus.NOT_FOUND, Colour.RED),
        "a value whose own code fails": ValueError(Sulky([1])),
        "a lone surrogate": ValueError("a\ud800b"),
        "a loop": _in_itself(),
        "StopIteration": StopIteration("over"),
    }


def _in_itself() -> Exception:
    error = ApiError(1, "me")
    error.inner = error  # type: ignore[attr-defined]
    return error
