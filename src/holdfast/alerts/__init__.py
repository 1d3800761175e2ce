"""Alerts: `app.alert(…)` declares which incidents to report and through which channels; the notifier sends them.

journal ──▶ book ──▶ rules (pure) ──▶ notifier, under a duty ──▶ outbox, a thread each ──▶ log · command · webhook
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import get_args

from holdfast.alerts.channels import Channel, CommandChannel, LogChannel
from holdfast.alerts.messages import WebhookForm
from holdfast.alerts.rules import KINDS, AlertKind, ThresholdOptions, Thresholds
from holdfast.errors import UsageError


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert: the conditions it reports, their thresholds, and its channel."""

    on: tuple[AlertKind, ...]
    limits: Thresholds
    channels: tuple[Channel, ...]


def declare(
    *,
    log: bool = False,
    command: Sequence[str] = (),
    webhook: str | None = None,
    secret: str | None = None,
    private: bool = False,
    form: WebhookForm | None = None,
    on: Iterable[AlertKind] | None = None,
    limits: ThresholdOptions | None = None,
) -> Alert:
    """Make an alert, or raise `UsageError` for what can never work."""
    named = set(KINDS if on is None else [on] if isinstance(on, str) else on)
    if unknown := named - set(KINDS):
        raise UsageError(f"there is no alert on {min(unknown)!r}; known: {', '.join(KINDS)}")
    wanted: tuple[AlertKind, ...] = tuple(kind for kind in KINDS if kind in named)
    if not wanted:
        raise UsageError(f"an alert needs a condition: on= {', '.join(KINDS)}")
    channels: list[Channel] = [LogChannel()] if log else []
    if command:
        channels.append(CommandChannel(command, secrets=[each for each in (secret, webhook) if each]))
    if webhook is not None:
        from holdfast.alerts.webhook import Webhook  # TLS and HTTP are loaded by those who use them

        if form not in (None, *get_args(WebhookForm)):
            raise UsageError(f"form={form!r} is not known; write {' or '.join(map(repr, get_args(WebhookForm)))}")
        channels.append(Webhook(webhook, secret=secret, private=private, form=form or "json"))
    elif secret is not None or private or form is not None:
        raise UsageError("secret=, private= and form= are for a webhook, and there is none")
    if not channels:
        raise UsageError("an alert needs a channel: log=True, command=[…] or webhook=…")
    given = limits or {}
    if strange := set(given) - set(ThresholdOptions.__annotations__):
        raise UsageError(
            f"an alert has no limit {min(strange)!r}; known: {', '.join(ThresholdOptions.__annotations__)}"
        )
    return Alert(wanted, Thresholds(**given), tuple(channels))


def fingerprint(alerts: Sequence[Alert]) -> str:
    """Return the id of a set of alerts: programs with the same id report each incident once between them."""
    told = [(alert.on, alert.limits, [channel.identity for channel in alert.channels]) for alert in alerts]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]
