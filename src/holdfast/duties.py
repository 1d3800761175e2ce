"""Holding a duty: one replica of several does a fleet-wide chore; the others stand by.

The lease rules apply: a holder renews at a third of the time to live, trusts its duty by its own clock from before the
request was sent, and gives it back when it stops, so that the next one takes over at once. Its acts under
the duty carry the term, so a holder that was paused for too long can do no harm when it wakes.
"""

from __future__ import annotations

import logging

from holdfast.clock import Clock
from holdfast.core.lease import TrustWindow, trust
from holdfast.core.records import Duty
from holdfast.errors import HoldfastError
from holdfast.hooks import Hooks
from holdfast.stores.protocol import Store

log = logging.getLogger("holdfast.duties")


class DutyHolder:
    """Takes, renews and gives back one duty for this replica."""

    def __init__(self, store: Store, clock: Clock, name: str, holder: str, ttl_s: float, hooks: Hooks) -> None:
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
                self._window = trust(now, self._ttl_s)
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
