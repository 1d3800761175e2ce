"""The only file that makes ids and random numbers."""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import uuid

from holdfast.clock import Clock
from holdfast.core.access import TOKEN_PREFIX

_lots = random.SystemRandom()


_VARIANTS = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}  # the bits that say: a UUID of today


def new_job_id(clock: Clock) -> str:
    """Make a UUID of version 7: unique everywhere, and ordered by the time it was made."""
    tail = os.urandom(10).hex()
    when = f"{int(clock.wall() * 1000):012x}"
    return f"{when[:8]}-{when[8:]}-7{tail[:3]}-{_VARIANTS[tail[3]]}{tail[4:7]}-{tail[7:19]}"


def fired_job_id(key: str, instant: float) -> str:
    """Make the id of the job of one instant of a schedule: every process that fires it makes the same id. A UUID of
    version 8, ordered among the others by the instant."""
    tail = hashlib.sha256(f"{instant:.3f} {key}".encode()).digest()
    return _uuid(int(instant * 1000), int.from_bytes(tail[:10], "big"), version=8)


def new_id() -> str:
    """Make a random 128-bit name, for a worker's incarnation or one claim."""
    return uuid.uuid4().hex


def new_uuid() -> str:
    """Make a random UUID, written as people write them."""
    return str(uuid.uuid4())


def new_secret() -> str:
    """Make a token of the HTTP API: 32 random bytes, with a prefix by which scanners for leaked secrets know it."""
    return f"{TOKEN_PREFIX}{secrets.token_urlsafe(32)}"


def chance() -> float:
    """Draw a number from 0 up to 1, for jitter."""
    return _lots.random()


def _uuid(millis: int, tail: int, version: int) -> str:
    value = (millis & (1 << 48) - 1) << 80 | tail
    value = value & ~(0xF << 76) | version << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
