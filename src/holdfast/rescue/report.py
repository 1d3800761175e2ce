"""The findings of a rescue, and the outcome for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from holdfast.core.durations import iso
from holdfast.rescue.judging import Finding
from holdfast.rescue.map import Map

Outcome = Literal["rescued", "found", "moved", "locked", "failed", "alive"]


class Told(NamedTuple):
    """A running row and what was done with it. `error`: what the database said when it could not be written."""

    finding: Finding
    outcome: Outcome
    error: str | None = None


@dataclass(frozen=True)
class Report:
    """The running rows of a table, and what became of them."""

    map: Map
    now: float
    rows: tuple[Told, ...]
    fixed: bool  # False: a dry run
    complete: bool = True  # False: there are more running rows than were looked at

    @property
    def ghosts(self) -> list[Told]:
        """Return the rows that had lost their worker."""
        return [row for row in self.rows if row.finding.rescue is not None]

    @property
    def rescued(self) -> list[Told]:
        return [row for row in self.rows if row.outcome == "rescued"]

    def count(self, state: str) -> int:
        """Return how many rescued rows came into this state: ready, dead or held."""
        return sum(row.finding.rescue is not None and row.finding.rescue.state == state for row in self.rescued)

    @property
    def places(self) -> dict[str, int | None]:
        """Return the places of the application's concurrency limit: how many are taken, by ghosts, and were freed."""
        taken, ghosts = len(self.rows), len(self.ghosts)
        return {"limit": self.map.concurrency, "taken": taken, "ghosts": ghosts, "freed": len(self.rescued)}

    def view(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "table": self.map.table,
            "dry_run": not self.fixed,
            "running": len(self.rows),
            "complete": self.complete,
            "ghosts_found": len(self.ghosts),
            "ghosts_rescued": len(self.rescued),
            **{state: self.count(state) for state in ("ready", "held", "dead")},
            "places": self.places,
            "rows": [self._row(row) for row in self.rows],
        }

    def _row(self, told: Told) -> dict[str, Any]:
        finding, outcome, error = told
        row, rescue = finding.row, finding.rescue
        return {
            "id": row.id if isinstance(row.id, int | str) else str(row.id),
            "worker": None if row.worker is None else str(row.worker),
            "last_sign_of_life": iso(finding.seen_at),
            "age_s": None if finding.seen_at is None else round(self.now - finding.seen_at, 1),
            "attempts": row.attempts if isinstance(row.attempts, int) else str(row.attempts),
            "outcome": outcome,
            "decision": None if rescue is None else rescue.state,
            "to_status": None if rescue is None else rescue.status,
            "to_attempts": None if rescue is None else rescue.attempts,
            "why": finding.why,
            "error": error,
        }
