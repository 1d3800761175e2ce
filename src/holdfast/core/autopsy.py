"""Collect the facts about a lost attempt for the journal. Every program that finds the death writes the same fields.

The verdict adds the detector and the cause before it, and the decision after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.durations import iso
from holdfast.core.records import Job, Moment, Worker
from holdfast.core.row_text import texts_of


class LostProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The process in which the attempt was lost, as its row shows it, or as its worker knew it. None: nobody knows."""

    worker: str | None
    host: str | None = None
    pid: int | None = None
    beat_at: float | None = None  # wall time
    lease_until: float | None = None  # on the clock that `now.lease` is of
    silent_s: float | None = None  # without a sign of life; what passed until the death was seen, at most
    rss_mb: float | None = None


def of_worker(worker: Worker | None, job: Job, now: Moment) -> LostProcess:
    """Return what the rows say."""
    if worker is None:
        return LostProcess(worker=job.worker, lease_until=job.lease_until)
    return LostProcess(
        worker=worker.name,
        host=worker.host,
        pid=worker.pid,
        beat_at=worker.beat_at,
        lease_until=job.lease_until,
        silent_s=now.wall - worker.beat_at,
        rss_mb=worker.rss_mb,
    )


def autopsy(job: Job, lost_process: LostProcess, now: Moment, facts: dict[str, Any]) -> dict[str, Any]:
    """Collect what is known; `facts` come from the program that found the death. Unknown values are left out."""
    end = lost_process.lease_until if lost_process.lease_until is not None else now.lease
    known: dict[str, Any] = {
        "worker": lost_process.worker,
        "host": lost_process.host,
        "pid": lost_process.pid,
        "last_beat": iso(lost_process.beat_at),
        "lease_until": iso(now.wall + end - now.lease),
        "seconds_since_beat": None if lost_process.silent_s is None else round(lost_process.silent_s, 3),
        "seconds_overdue": round(max(0.0, now.lease - end), 3),
        "claimed_at": iso(job.claimed_at),
        "attempt": job.attempt,
        "started": job.begun,
        "step": job.open_step or ", ".join(step.name for step in job.in_steps or ()) or None,
        "open_step": job.open_step,
        "in_steps": texts_of(job.in_steps or ()) or None,
        "rolling_back": job.rolling_back or None,
        "progress": job.progress,
        "note": job.note,
        "beat_data": beat_data(job.beat_data),
        "rss_mb": None if lost_process.rss_mb is None else round(lost_process.rss_mb, 1),
        "fence_before": job.fence,
        "fence_after": job.fence + 1,
        "log": lines_of(job.log),
        **facts,
    }
    return {name: value for name, value in known.items() if value is not None}


def beat_data(text: str | None) -> dict[str, Any] | None:
    """Return what a handler has given to its heartbeat; None if that is nothing, or was damaged."""
    try:
        return None if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError):
        return None


def lines_of(log: str | None) -> list[str] | None:
    """Return the lines of a job's log, as the journal and people are given them; None without any."""
    return log.split("\n") if log else None


def silence_of(at: float, detail: Mapping[str, Any]) -> float | None:
    """Return how long an attempt had been silent when its loss was found; None if that is not known."""
    signs = [number_in(detail.get("seconds_since_beat")), _since(at, detail.get("claimed_at"))]
    known = [seconds for seconds in signs if seconds is not None]
    return max(0.0, min(known)) if known else None


def number_in(value: object) -> float | None:
    """Return a number of an event's details; None if there is none."""
    return float(value) if isinstance(value, int | float) else None


def _since(at: float, text: object) -> float | None:
    if text is None:
        return None
    try:
        return at - datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
