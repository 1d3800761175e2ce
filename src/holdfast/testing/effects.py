"""`effect`: a task says that it has done something to the world, so that `holdfast torture` can count it."""

from __future__ import annotations

import os

from holdfast.failpoints import point
from holdfast.runtime.log_fields import current_attempt
from holdfast.torture.lines import FILE, EffectLine, encode


def effect(name: str, key: object = None) -> None:
    """Say that an effect has happened: call it right after the request, the mail or the payment.

    `key` tells several effects of one name in one job apart: `effect("mailed", address)`. Outside `holdfast torture` it
    does nothing.
    """
    file = os.environ.get(FILE)
    if file is None:
        return
    attempt = current_attempt.get()
    job, fence = (None, None) if attempt is None else (attempt.lease.job_id, attempt.lease.fence)
    line = encode(EffectLine(job, fence, name, None if key is None else str(key)))
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, line)  # a short write to the end of a file is never mixed with another
    finally:
        os.close(descriptor)
    point("effect.after", name)
