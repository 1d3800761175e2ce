"""The counts of errors, added up by minute, task, fingerprint and release."""

from __future__ import annotations

from holdfast.core.error_fingerprint import KEPT_S, ErrorGroup, Fault, slot_of


class ErrorCounts:
    """The errors of the last thirty days. A job that is deleted takes nothing of it away."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, str, str, str], ErrorGroup] = {}

    def add(self, task: str, fault: Fault, release: str | None, job_id: str, wall: float) -> None:
        """Count one attempt."""
        key = slot_of(wall), task, fault.fingerprint, release or ""
        releases = [release] if release else []
        one = ErrorGroup(task, *_parts(fault), 1, wall, wall, releases, job_id)
        self._slots[key] = _together(self._slots[key], one) if key in self._slots else one
        oldest = slot_of(wall - KEPT_S)
        self._slots = {each: group for each, group in self._slots.items() if each[0] >= oldest}

    def groups(self, since: float, task: str | None, limit: int) -> list[ErrorGroup]:
        """See `stores/protocol.py: errors`."""
        found: dict[tuple[str, str], ErrorGroup] = {}
        for (slot, of, fingerprint, _), group in self._slots.items():
            if slot >= slot_of(since) and task in (None, of):
                known = found.get((of, fingerprint))
                found[of, fingerprint] = group if known is None else _together(known, group)
        return sorted(found.values(), key=lambda each: (-each.attempts, -each.last_at, each.task, each.fingerprint))[
            :limit
        ]


def _parts(fault: Fault) -> tuple[str, str, str | None, str]:
    return fault.fingerprint, fault.kind, fault.origin, fault.message


def _together(one: ErrorGroup, other: ErrorGroup) -> ErrorGroup:
    last = max(one, other, key=lambda each: (each.last_at, each.job_id))
    return ErrorGroup(
        *(one.task, one.fingerprint, one.kind, one.origin, one.message),
        one.attempts + other.attempts,
        min(one.first_at, other.first_at),
        last.last_at,
        sorted({*one.releases, *other.releases}),
        last.job_id,
    )
