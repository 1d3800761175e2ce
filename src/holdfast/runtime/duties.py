"""Holding a duty: one replica of several does a fleet-wide chore; the others stand by.

The lease rules apply: a holder renews at a third of the time to live, or as its `Election` says. It trusts its duty by
its own clock from before the request was sent, and gives it back when it stops, so that the next one takes over at
once. Its acts under the duty carry the term, so a holder that was paused for too long can do no harm when it wakes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from holdfast.clock import Clock
from holdfast.core.lease import TrustWindow, trust
from holdfast.core.records import Duty
from holdfast.errors import HoldfastError, UsageError
from holdfast.runtime.hooks import Hooks
from holdfast.stores.protocol import Store

log = logging.getLogger("holdfast.duties")


TTL_INTERVALS = 3  # by default a duty outlives one failed renewal, and passes on soon after its holder died
TTL_MIN_S = 3.0  # a replica that looks very often need not renew its duty as often
RENEWALS_PER_TTL = 3


@dataclass(frozen=True, slots=True)
class Election:
    """The timing of a duty: its holder renews it each `renewal_s` and loses it after `ttl_s`; others ask for it each
    `retry_s`."""

    ttl_s: float
    renewal_s: float
    retry_s: float

    @classmethod
    def declare(
        cls, interval_s: float, ttl_s: float | None, renewal_s: float | None, retry_s: float | None
    ) -> Election:
        """Check what was asked for; None takes a value that follows from the interval of the chore."""
        ttl = _seconds("ttl_s", ttl_s, max(TTL_INTERVALS * interval_s, TTL_MIN_S))
        renewal = _seconds("renewal_s", renewal_s, ttl / RENEWALS_PER_TTL)
        retry = _seconds("retry_s", retry_s, min(interval_s, renewal))
        if renewal > ttl / 2:
            raise UsageError(
                f"renewal_s={renewal:g} is more than half of ttl_s={ttl:g}: one renewal that is late would lose the "
                "duty; choose a third of it"
            )
        return cls(ttl, renewal, retry)


def _seconds(name: str, given: object, default: float) -> float:
    value = default if given is None else given
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0.05 <= value <= 86_400:
        raise UsageError(f"{name}={value!r} must be a number of seconds from 0.05 to 86400")
    return float(value)


class DutyHolder:
    """Takes, renews and gives back one duty for this replica."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        name: str,
        holder: str,
        ttl_s: float,
        hooks: Hooks,
        renewal_s: float | None = None,
    ) -> None:
        self._renewal_s = renewal_s
        self._store = store
        self._clock = clock
        self._name = name
        self._holder = holder
        self._ttl_s = ttl_s
        self._hooks = hooks
        self._duty: Duty | None = None
        self._window: TrustWindow | None = None

    @property
    def is_held(self) -> bool:
        """Say whether the duty was ours at the last call."""
        return self._duty is not None

    def duty(self, note: str | None = None) -> Duty | None:
        """Return the duty if it is ours, taking or renewing it when that is due. Call it before every act.

        `note` is left at once for the next holder, if the duty is still ours.
        Raises `StoreError` when the store does; a duty whose time is up by our own clock is given up before that.
        """
        now = self._clock.lease()
        if self._window is not None and self._window.must_stop(now):
            self._lost("it could not be renewed in time")
        if self._window is None or self._window.must_renew(now) or note is not None:
            duty = self._store.acquire(self._name, self._holder, self._ttl_s, note)
            if duty is None:
                self._lost("another process has it")
            else:
                self._has(duty)
                self._window = trust(now, self._ttl_s, self._renewal_s)
        return self._duty

    def refused(self) -> None:
        """Note that the store refused an act: another process has the duty."""
        self._lost("the store refused its term")

    def resign(self, note: str | None = None) -> None:
        """Give the duty back, if it is ours, with a note for the next holder; never raises."""
        try:
            if self._duty is not None:
                self._store.resign(self._duty, note)
                self._lost("resigned")
        except HoldfastError as error:
            log.warning("could not give the duty %r back: %s", self._name, error)
        self._duty = self._window = None

    def _has(self, duty: Duty) -> None:
        if self._duty is None or self._duty.term != duty.term:
            self._lost("another process had it in between")
            log.info("took the duty %r, term %d", duty.name, duty.term)
            self._hooks.emit("duty_acquired", {"duty": duty.name, "holder": duty.holder, "term": duty.term})
        self._duty = duty

    def _lost(self, why: str) -> None:
        duty, self._duty, self._window = self._duty, None, None
        if duty is not None:
            log.info("no longer has the duty %r of term %d: %s", duty.name, duty.term, why)
            detail = {"duty": duty.name, "holder": duty.holder, "term": duty.term, "reason": why}
            self._hooks.emit("duty_lost", detail)
