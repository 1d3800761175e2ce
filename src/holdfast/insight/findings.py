"""A finding: what was looked at, what it showed, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from holdfast.core.text import listed

Severity = Literal["ok", "warning", "problem"]  # a warning will become a problem; a problem is one now
TO_RECOVER_ORPHANS = "wait until the lease has run out: a worker then recovers it; without workers: holdfast scan --fix"
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


def of_orphans(orphans: Sequence[str]) -> Iterator[Finding]:
    """Warn of running jobs whose worker's row another program has removed."""
    if orphans:
        evidence = f"{listed(orphans, 3)}; another program removed it"
        yield warning("A running job has a worker without a row", evidence, TO_RECOVER_ORPHANS)
