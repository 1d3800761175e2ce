"""`holdfast generate`: files for the systems that run and watch workers."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import click

from holdfast.cli.base import Command, acknowledge
from holdfast.cli.types import Duration, Text
from holdfast.errors import UsageError

_FILES = {
    "systemd": "holdfast-worker.service",
    "kubernetes": "kubernetes.yaml",
    "compose": "compose.yaml",
    "cron": "cron",
    "alerts": "alerts.yaml",
    "dockerfile": "Dockerfile",
}
KINDS = (*_FILES, "grafana")
STOP_MARGIN_S = 45  # that a stop may take beyond the grace period: see docs/deploy.md
PRE_STOP_S = 5
_APP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_QUEUE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}")
_SERVER = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~-]+)*")
_TOKEN = re.compile(r"@([A-Z_]+)@")
_POD = "{runAsNonRoot: true, runAsUser: 10001, seccompProfile: {type: RuntimeDefault}}"
_CONTAINER = "{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}"


@click.command(
    cls=Command,
    epilog="""
    holdfast generate systemd jobs:app > /etc/systemd/system/holdfast.service
    holdfast generate kubernetes jobs:app --image jobs:1.4 -o kubernetes.yaml
    holdfast generate alerts --server https://jobs.example.org -o alerts.yaml
    holdfast generate grafana -o dashboard.json
    """,
)
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("app", metavar="[APP]", required=False, type=Text(), default="jobs:app")
@click.option("--name", type=Text(), default="holdfast", show_default=True, help="The name of what is made.")
@click.option("--image", type=Text(), default="jobs:latest", show_default=True, help="The container image.")
@click.option("--processes", type=click.IntRange(1, 1000), default=1, show_default=True, help="Worker processes.")
@click.option(
    "--slots", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Jobs at once, per process."
)
@click.option(
    "--grace-period",
    "grace_s",
    type=Duration(),
    default="30s",
    metavar="TIME",
    show_default=True,
    help="How long running jobs may finish after SIGTERM; what stops the worker waits longer.",
)
@click.option("--queue", type=Text(), default="default", show_default=True, help="The queue that scales the workers.")
@click.option(
    "--server", type=Text(), default="http://127.0.0.1:8787", show_default=True, help="The server, for links in alerts."
)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write this file, which must be new."
)
def generate(kind: str, output: Path | None, **given: Any) -> None:
    """Print a file that runs or watches workers.

    KIND is systemd (a hardened unit), kubernetes (workers, reaper, server, a CronJob, KEDA), compose, dockerfile, cron,
    grafana (a dashboard) or alerts (rules for Prometheus). APP is module:name. Read the file and change it: it is yours
    from then on.
    """
    text = made(kind, **given)
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{output} is there already; choose another name, or remove it") from None
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error.strerror}") from None
    acknowledge(f"wrote {output}")


def made(
    kind: str, app: str, name: str, image: str, processes: int, slots: int, grace_s: float, queue: str, server: str
) -> str:
    """Return the text of a file. Raises `UsageError` for values that the formats could misread."""
    _check("APP", app, _APP, "module:name, such as jobs:app")
    _check("--name", name, _NAME, "up to 40 lower-case letters, digits and dashes")
    _check("--image", image, _IMAGE, "an image, such as registry.example.org/jobs:1.4")
    _check("--queue", queue, _QUEUE, "letters, digits and . : _ -")
    _check("--server", server, _SERVER, "an address such as https://jobs.example.org, without a slash at its end")
    if grace_s > 86_400:
        raise UsageError("--grace-period must be at most a day")
    if kind == "grafana":
        from holdfast.cli.dashboard import dashboard

        return json.dumps(dashboard(name, server), indent=2) + "\n"
    grace = int(-(-grace_s // 1))
    values = {
        "APP": app,
        "MODULE": app.partition(":")[0],
        "NAME": name,
        "IMAGE": image,
        "PROCESSES": processes,
        "SLOTS": slots,
        "GRACE": grace,
        "STOP": grace + STOP_MARGIN_S,
        "PRE_STOP": PRE_STOP_S,
        "POD_STOP": grace + STOP_MARGIN_S + PRE_STOP_S,
        "QUEUE": queue,
        "SERVER": server,
        "POD_SECURITY": _POD,
        "CONTAINER_SECURITY": _CONTAINER,
    }
    text = files("holdfast.cli").joinpath("recipes", _FILES[kind]).read_text("utf-8")
    return _TOKEN.sub(lambda found: str(values[found[1]]), text)


def _check(option: str, value: str, form: re.Pattern[str], words: str) -> None:
    if not form.fullmatch(value):
        raise UsageError(f"{option} {value!r} must be {words}")
