"""`holdfast worker-health`: whether one worker does its work, for a probe. It imports no app of the user's."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import click

from holdfast.cli.base import Command, settings, show_result
from holdfast.cli.exit_codes import Exit
from holdfast.cli.output import clean
from holdfast.cli.types import Text, json_option
from holdfast.core.durations import duration
from holdfast.core.orders import parent_name
from holdfast.core.records import Worker
from holdfast.errors import NotFound, StoreError
from holdfast.stores import open_store
from holdfast.stores.rounds import together


@click.command(
    cls=Command,
    epilog="""
    holdfast worker-health
    holdfast worker-health --name mail-1 --json
    holdfast worker-health --outage-ok
    """,
)
@click.option("--name", type=Text(), help="The worker's --name.  [default: the host's name]")
@click.option("--outage-ok", is_flag=True, help="Exit with 0 when the store cannot be reached.")
@json_option
@click.pass_context
def worker_health(ctx: click.Context, name: str | None, outage_ok: bool, as_json: bool) -> None:
    """Say whether a worker does its work, for a probe.

    A worker is healthy while each of its processes beats: the living incarnations of that name, and the children of a
    supervisor of that name. A worker that drains because a person asked it to is healthy. The command imports no app.

    Exits with 7 when the worker is not healthy, with 5 when no worker of that name was ever there, and with 3 when the
    store cannot be reached. In a probe that restarts the worker use --outage-ok: a restart does not mend the store.
    """
    name = name or socket.gethostname()
    try:
        with closing(open_store(settings().db, create=False)) as store:
            found, now = together(lambda: store.workers(gone=True), store.now)
            workers = [each for each in found if name in (each.name, parent_name(each.name))]
            wall = now.wall
    except StoreError as error:
        if not outage_ok:
            raise
        reason = f"the store cannot be reached: {error}"
        view: dict[str, Any] = {"name": name, "healthy": None, "reason": reason, "processes": []}
        show_result(as_json, view, clean(f"{name}: not known; {view['reason']}"))
        return
    if not workers:
        raise NotFound(f"there is no worker {name!r}; see: holdfast workers list --gone")
    view = health_view(name, workers, wall)
    if as_json or view["healthy"]:
        show_result(as_json, view, clean(f"{name}: {view['reason']}"))
    else:
        click.echo(clean(f"{name}: {view['reason']}"))
    if not view["healthy"]:
        ctx.exit(Exit.UNHEALTHY)


def health_view(name: str, workers: Sequence[Worker], wall: float) -> dict[str, Any]:
    """Show whether the living incarnations of a worker beat."""
    living = [worker for worker in workers if worker.gone_at is None]
    silent = [worker for worker in living if not worker.is_alive(wall)]
    if not living:
        last = max(workers, key=lambda worker: worker.gone_at or 0.0)
        reason = f"gone for {duration(wall - (last.gone_at or wall))}: {last.gone_cause or 'no cause is known'}"
    elif silent:
        first = min(silent, key=lambda worker: worker.beat_at)
        reason = f"{first.name}, pid {first.pid}, has not beaten for {duration(wall - first.beat_at)}"
    else:
        processes = "1 process beats" if len(living) == 1 else f"{len(living)} processes beat"
        reason = f"{processes}; the last beat was {duration(wall - max(each.beat_at for each in living))} ago"
    return {
        "name": name,
        "healthy": bool(living) and not silent,
        "reason": reason,
        "processes": [
            {
                "id": each.id,
                "name": each.name,
                "pid": each.pid,
                "host": each.host,
                "alive": each.is_alive(wall),
                "stopping": each.stopping,
                "running": each.running,
                "silent_s": round(max(0.0, wall - each.beat_at), 3),
            }
            for each in living
        ],
    }
