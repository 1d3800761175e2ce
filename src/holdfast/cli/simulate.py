"""`holdfast simulate`: predict what a planned fleet asks of its store, and what it runs out of first."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from holdfast import insight
from holdfast.cli.base import Command, say
from holdfast.cli.exit_codes import Exit
from holdfast.cli.output import Column, bold, paragraph, show_json, show_table
from holdfast.cli.types import Duration, json_option
from holdfast.core.capacity import (
    DAY_S,
    HEADROOM,
    Change,
    Costs,
    Event,
    Forecast,
    Limit,
    Plan,
    Use,
    advice,
    forecast,
)
from holdfast.core.costs import COSTS
from holdfast.core.durations import duration

_EVENTS = {
    Event.STORED: "jobs stored",
    Event.ENQUEUE: "commits of producers",
    Event.RUN: "attempts claimed and settled",
    Event.ROUND: "claims, and commits of results",
    Event.LOOK: "woken workers that find no more",
    Event.BUSY: "busy worker processes",
    Event.RENEWAL: "leases renewed",
    Event.FAILURE: "failures, to be retried",
    Event.DELETED: "finished jobs deleted",
    Event.PROCESS: "worker processes",
    Event.COMMAND: "supervisors",
}
_LIMITS = {
    Limit.SLOTS: "slots",
    Limit.STORE_CPU: "cores of the server",
    Limit.WRITER: "the one writer of SQLite",
    Limit.WORKER_CPU: "cores of the workers, one each",
    Limit.CONNECTIONS: "connections",
    Limit.WAL: "WAL",
    Limit.DISK: "disk",
}
_OPTIONS = {
    "workers": "--workers",
    "enqueue_batch": "--enqueue-batch",
    "processes": "--processes",
    "store_cores": "--server-cores",
    "connections_max": "--max-connections",
}
_FELT = 0.005  # a smaller share of the processor time is not shown
_BYTES = {Limit.WAL: "/s", Limit.DISK: ""}
_USES = [
    Column("LIMIT", lambda use: _LIMITS[use.limit], keep=True),
    Column("NEEDED", lambda use: _amount(use, use.used), right=True, keep=True),
    Column("AVAILABLE", lambda use: _amount(use, use.available), right=True, keep=True),
    Column("USED", lambda use: f"{use.share:.0%}", right=True, keep=True),
    Column("FULL", lambda use: _full_at(use), right=True, keep=True),
]


@click.command(
    cls=Command,
    epilog="""
    holdfast simulate --workers 40 --jobs-per-day 5e6 --duration-ms 300
    holdfast simulate --workers 2000 --jobs-per-day 500e6 --duration-ms 300 --json
    holdfast simulate --workers 4 --jobs-per-day 1e6 --duration-ms 9 --json
    """,
)
@click.option("--workers", type=click.IntRange(1), required=True, metavar="N", help="Worker processes.")
@click.option("--jobs-per-day", "jobs_day", type=click.FloatRange(1), required=True, metavar="N", help="Such as 500e6.")
@click.option(
    "--duration-ms", type=click.FloatRange(0), required=True, metavar="MS", help="How long a job takes on average."
)
@click.option(
    "--store", type=click.Choice(list(COSTS)), default="postgres", show_default=True, help="The kind of store."
)
@click.option(
    "--peak",
    type=click.FloatRange(1),
    default=2.0,
    show_default=True,
    metavar="X",
    help="The busiest minute, compared with the average of the day.",
)
@click.option(
    "--slots", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Slots of each process."
)
@click.option(
    "--processes",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Worker processes of each `holdfast worker` command.",
)
@click.option(
    "--producers",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    metavar="N",
    help="Processes that enqueue jobs.",
)
@click.option(
    "--enqueue-batch",
    type=click.FloatRange(1),
    default=1.0,
    show_default=True,
    metavar="N",
    help="Jobs in one commit of a producer.",
)
@click.option(
    "--payload-bytes",
    type=click.FloatRange(0),
    default=200.0,
    show_default=True,
    metavar="N",
    help="Arguments of a job, and its result.",
)
@click.option(
    "--failures",
    type=click.FloatRange(0, 1),
    default=0.01,
    show_default=True,
    metavar="SHARE",
    help="Share of the jobs that fail once and are retried.",
)
@click.option(
    "--lease",
    "lease_s",
    type=Duration(),
    default="30s",
    show_default=True,
    metavar="TIME",
    help="The lease of the tasks.",
)
@click.option(
    "--retention",
    "retention_s",
    type=Duration(),
    default="7d",
    show_default=True,
    metavar="TIME",
    help="How long finished jobs are kept.",
)
@click.option(
    "--server-cores",
    "store_cores",
    type=click.FloatRange(0.1),
    default=8.0,
    show_default=True,
    metavar="N",
    help="Cores of the PostgreSQL server.",
)
@click.option(
    "--max-connections",
    "connections_max",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    metavar="N",
    help="The setting of the PostgreSQL server.",
)
@click.option("--disk-gb", type=click.FloatRange(0), metavar="GB", help="Room for the store.  [default: not limited]")
@click.option(
    "--disk-mb-s",
    type=click.FloatRange(0),
    default=200.0,
    show_default=True,
    metavar="MB",
    help="The rate at which its disk can write.",
)
@click.option(
    "--sync-ms",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    metavar="MS",
    help="How long its disk takes for a commit; counts on SQLite, which commits one after the other.",
)
@json_option
def simulate(
    duration_ms: float,
    store: str,
    disk_gb: float | None,
    disk_mb_s: float,
    sync_ms: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Predict what a fleet asks of its store, and what it runs out of first.

    Multiplies the rates of your plan with costs that were measured; docs/scaling.md explains the model. Opens no store.
    The load is that of the busiest minute, the size on disk that after the retention.

    Exits with 7 when the plan does not fit.
    """
    plan = Plan(
        duration_s=duration_ms / 1000,
        disk_bytes=math.inf if disk_gb is None else disk_gb * 1e9,
        disk_bytes_s=disk_mb_s * 1e6,
        sync_s=sync_ms / 1000,
        **given,
    )
    costs = COSTS[store]
    seen, better = forecast(plan, costs), advice(plan, costs)
    if as_json:
        show_json(
            {
                "store": store,
                "measured": costs.measured,
                "plan": _plain(asdict(plan)),
                **_view(seen),
                "changes": [_change(each) for each in better],
            }
        )
    else:
        _show(plan, costs, seen, better)
    if not seen.fits:
        click.get_current_context().exit(Exit.UNHEALTHY)


def _view(seen: Forecast) -> dict[str, Any]:
    return _plain(
        {
            "fits": seen.fits,
            "bottleneck": seen.bottleneck.limit,
            "jobs_s": seen.jobs_s,
            "running": seen.running,
            "batch": seen.batch,
            "server_cores": seen.store_cores,
            "worker_cores": seen.worker_cores,
            "producer_cores": seen.producer_cores,
            "transactions_s": seen.total.transactions,
            "wal_bytes_s": seen.total.wal_bytes,
            "wal_bytes_day": seen.wal_bytes_day,
            "disk_bytes_day": seen.disk_bytes_day,
            "disk_bytes": seen.disk_bytes,
            "connections_idle": seen.connections_idle,
            "connections": seen.connections,
            "limits": [{**asdict(use), "share": use.share} for use in seen.uses],
            "events": {
                event: {
                    "per_s": seen.events[event],
                    "server_cores": cost.store_us / 1e6,
                    "process_cores": cost.client_us / 1e6,
                    "wal_bytes_s": cost.wal_bytes,
                    "transactions_s": cost.transactions,
                }
                for event, cost in seen.costs.items()
            },
        }
    )


def _change(change: Change) -> dict[str, Any]:
    fields = {"change": change.field, "to": change.value, "fits": change.then.fits}
    return _plain({**fields, "bottleneck": change.then.bottleneck.limit, "server_cores": change.then.store_cores})


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Round numbers, and replace infinity, which JSON does not have: what has no limit is null."""
    return {name: _finite(value) for name, value in values.items()}


def _finite(value: Any) -> Any:
    match value:
        case dict():
            return _plain(value)
        case list():
            return [_finite(each) for each in value]
        case float() if math.isinf(value):
            return None
        case float():
            return float(f"{value:.4g}")
        case _:
            return value


# ------------------------------------------------------------------------------------------ for people


def _show(plan: Plan, costs: Costs, seen: Forecast, better: list[Change]) -> None:
    click.echo(bold("At the peak"))
    for name, text in _summary(plan, costs, seen):
        paragraph(text, f"  {name:13}", " " * 15)
    click.echo()
    show_table(_parts(costs, seen), _largest(seen))
    click.echo()
    show_table(_USES, [use for use in seen.uses if use.available < math.inf])
    click.echo()
    _conclude(seen, better)
    say(f"Costs were measured on {costs.measured}.")


def _summary(plan: Plan, costs: Costs, seen: Forecast) -> Iterator[tuple[str, str]]:
    total = seen.total
    yield "jobs", f"{_number(seen.jobs_s)}/s; {_number(seen.running)} at once, in {plan.workers * plan.slots:,} slots"
    store = "under the write lock, as a part of the others" if costs.one_writer else "for the server"
    cores = f"{_number(seen.store_cores)} {store}, {_number(seen.worker_cores)} for the workers"
    yield "cores", f"{cores}, {_number(seen.producer_cores)} for the producers"
    kind = "that write, " if costs.one_writer else ""
    yield (
        "transactions",
        f"{_number(total.transactions)}/s {kind}with {_number(seen.batch)} jobs in a claim".replace(
            " with", ", with", not kind
        ),
    )
    yield "WAL", f"{insight.size(total.wal_bytes)}/s; {insight.size(seen.wal_bytes_day)} a day"
    if not costs.one_writer:
        yield "connections", f"{math.ceil(seen.connections_idle):,} at rest, at most {math.ceil(seen.connections):,}"
    kept = f"{insight.size(seen.disk_bytes)} of finished jobs after {_days(plan.retention_s)}"
    yield "disk", f"{kept}, {insight.size(seen.disk_bytes_day)} a day"


def _parts(costs: Costs, seen: Forecast) -> list[Column]:
    def cores(event: Event, us: float) -> str:
        return _number(us / 1e6)

    return [
        Column("EACH SECOND", lambda event: _EVENTS[event], keep=True),
        Column("NUMBER", lambda event: _number(seen.events[event]), right=True, keep=True),
        Column(
            "WRITING" if costs.one_writer else "SERVER CORES",
            lambda event: cores(event, seen.costs[event].store_us),
            right=True,
            keep=True,
        ),
        Column("CLIENT CORES", lambda event: cores(event, seen.costs[event].client_us), right=True, keep=True),
        Column(
            "WAL",
            lambda event: f"{insight.size(wal)}/s" if (wal := seen.costs[event].wal_bytes) >= 1 else None,
            right=True,
            keep=True,
            rank=1,
        ),
    ]


def _largest(seen: Forecast) -> list[Event]:
    """Return the events that cost something, the dearest first."""

    def cores(event: Event) -> float:
        return seen.costs[event].store_us + seen.costs[event].client_us

    least = (seen.total.store_us + seen.total.client_us) * _FELT
    return sorted((event for event in seen.costs if cores(event) > least), key=cores, reverse=True)


def _conclude(seen: Forecast, better: list[Change]) -> None:
    first = seen.bottleneck
    verdict = "The plan fits" if seen.fits else "The plan does not fit"
    if seen.fits and not seen.has_headroom:
        verdict += f", but more than {HEADROOM:.0%} of something is used: jobs wait at the peak"
    paragraph(f"{verdict}. First bottleneck: {_LIMITS[first.limit]}, full {_full_at(first)}.")
    if seen.has_headroom:
        return
    if not better:
        say("No change of this plan helps; docs/scaling.md has more.")
        return
    click.echo("Changes, one after the other:")
    for change in better:
        then = change.then
        fits = "fits" if then.has_headroom else "is tight" if then.fits else "does not fit yet"
        first = then.bottleneck
        rest = f"{_number(then.store_cores)} cores of the store; {_LIMITS[first.limit]} full {_full_at(first)}"
        paragraph(f"{_change_words(change)}: {fits}, {rest}", "  ", "    ")


def _change_words(change: Change) -> str:
    match change.field:
        case "disk_bytes_s":
            return f"--disk-mb-s {math.ceil(change.value / 1e6)}"
        case "retention_s":
            return f"--retention {_days(change.value)}"
        case field:
            return f"{_OPTIONS[field]} {change.value:g}"


def _amount(use: Use, value: float) -> str:
    return insight.size(value) + _BYTES[use.limit] if use.limit in _BYTES else _number(value)


def _full_at(use: Use) -> str:
    jobs_day = use.full_at_jobs_day
    if not jobs_day:
        return "without any job"
    return "never" if jobs_day == math.inf else f"at {_number(jobs_day / 1e6)} million a day"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _days(seconds: float) -> str:
    return f"{seconds / DAY_S:.0f} days" if seconds >= 2 * DAY_S else duration(seconds)
