"""Compute how long a worker may trust its lease.

Trust is anchored at the instant *before* the claim or beat was sent, so that a slow answer can never stretch
it: the store counted the lease from a later instant than we do. All instants are on the lease clock of the
worker's own host.
"""

from __future__ import annotations

import msgspec

from holdfast.core.policy import BEATS_PER_LEASE


class TrustWindow(msgspec.Struct, frozen=True):
    """The time in which a worker may trust one lease, from one successful claim or beat."""

    sent_at: float  # the last sign of life that got through
    renew_at: float  # send the next beat
    stop_at: float  # ask the handler to stop: nobody answered
    end_at: float  # past this a successor may run; the handler must be gone

    def must_renew(self, now: float) -> bool:
        return now >= self.renew_at

    def must_stop(self, now: float) -> bool:
        return now >= self.stop_at

    def is_over(self, now: float) -> bool:
        return now >= self.end_at


def trust(sent_at: float, lease_s: float, beat_s: float | None = None) -> TrustWindow:
    """Return the window that opens with a claim or beat sent at `sent_at` and answered with yes.

    The handler is asked to stop one sixth of the lease before its end: half a beat is left to stop in.
    """
    beat = beat_s if beat_s is not None else lease_s / BEATS_PER_LEASE
    return TrustWindow(
        sent_at=sent_at,
        renew_at=sent_at + beat,
        stop_at=sent_at + lease_s * 5 / 6,
        end_at=sent_at + lease_s * 59 / 60,
    )
