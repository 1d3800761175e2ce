"""A finding: what was looked at, what it showed, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

Severity = Literal["ok", "warning", "problem"]  # a warning will become a problem; a problem is one now
SEVERITIES: tuple[Severity, ...] = ("problem", "warning", "ok")


class Finding(msgspec.Struct, frozen=True):
    """One thing that was checked."""

    severity: Severity
    title: str
    evidence: str
    fix: str | None = None  # one that is ok may have something to do, too: an answer to give


def ok(title: str, evidence: str) -> Finding:
    return Finding("ok", title, evidence)


def warning(title: str, evidence: str, fix: str) -> Finding:
    return Finding("warning", title, evidence, fix)


def problem(title: str, evidence: str, fix: str) -> Finding:
    return Finding("problem", title, evidence, fix)


def long_journal(events: int) -> Finding:
    fix = "prune ended jobs with their events: holdfast db prune --older-than 30d"
    return warning("The journal is long", f"about {events:,} events", fix)


def findings_view(url: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """Show findings as `holdfast doctor` does, the worst first."""
    worst_first = sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
    return {
        "store": url,
        "ok": all(finding.severity == "ok" for finding in findings),
        "findings": [msgspec.structs.asdict(finding) for finding in worst_first],
    }
