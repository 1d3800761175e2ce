"""The entry point: `holdfast`, and the list of everything it can do."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from holdfast import __version__
from holdfast.cli.base import Root, Settings
from holdfast.cli.leaving import LEAVE_S, leave_within, raise_signals

# In the order in which a newcomer needs them. A test compares each summary with the command's own help.
COMMANDS = {
    "demo": "Kill a worker with kill -9 and watch the recovery.",
    "worker": "Run jobs.",
    "server": "Serve the pages for people, the HTTP API and health checks.",
    "enqueue": "Add a job.",
    "tick": "Run what is due, within a budget, and end.",
    "scan": "Find jobs whose worker died; recover them with --fix.",
    "reaper": "Recover jobs whose worker died, until it is stopped.",
    "status": "See what is broken right now, the worst first.",
    "top": "Watch queues, rates, workers, leases and detections.",
    "zombies": "Look back at the jobs that lost their worker.",
    "errors": "See which errors there are, how many, since when, on which release.",
    "report": "Write a report of what went wrong, as one HTML file.",
    "jobs": "See, export, retry, cancel, move, change and delete jobs.",
    "workflows": "See workflows step by step; retry, undo, signal, cancel and fork them.",
    "held": "Answer for jobs that wait for a person.",
    "dead": "See, revive and purge jobs that gave up.",
    "batches": "See how far batches are, and which of their jobs went wrong.",
    "queues": "See, limit, pause and resume queues.",
    "tasks": "See the tasks that workers have published, and forget old ones.",
    "schedules": "See, add, pause, resume, fire and forget schedules.",
    "workers": "See, drain, stop and resume workers; forget dead ones.",
    "worker-health": "Say whether a worker does its work, for a probe.",
    "tokens": "Make, list and revoke tokens of the HTTP API.",
    "audit": "See what people did, when and why.",
    "alerts": "Test the channels that notify people of trouble.",
    "doctor": "Look for trouble, and say what to do about it.",
    "simulate": "Predict what a fleet asks of its store, and what it runs out of first.",
    "dev": "Run a worker and a server, and start both again when a Python file below this folder changes.",
    "torture": "Run your own tasks while their workers are killed and frozen, and their store takes no writes.",
    "db": "Make, migrate, check, copy and prune the store.",
    "port": "See what of a project for another system maps.",
    "rescue": "Rescue jobs in a table that is not Holdfast's.",
    "generate": "Print a file that runs or watches workers.",
    "completion": "Print the completion script of a shell.",
}


@click.command(
    "holdfast",
    cls=Root,
    lazy={name: (f"holdfast.cli.{name.replace('-', '_')}", summary) for name, summary in COMMANDS.items()},
    context_settings={
        "auto_envvar_prefix": "HOLDFAST",
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
    epilog="""
    holdfast demo
    holdfast worker jobs:app --slots 8
    holdfast --db sqlite:///jobs.db jobs list --state held
    holdfast scan --fix --json
    """,
)
@click.version_option(__version__, message="holdfast %(version)s")
def cli() -> None:
    """Background jobs that survive kill -9.

    Data goes to stdout, everything else to stderr. Every option has an environment variable, named by its command:
    HOLDFAST_WORKER_SLOTS=8 is `holdfast worker --slots 8`.

    Exit codes: 0 ok, 1 failed, 2 usage or import error, 3 store unreachable or missing, 4 schema stale or newer,
    5 not found, 6 refused (state or fence), 7 unhealthy; 129, 130 and 143 stopped by SIGHUP, Ctrl-C and SIGTERM.
    """


def main(words: Sequence[str] | None = None, prog: str = "holdfast") -> None:
    """Run the command line, by default that of this process, and exit."""
    raise_signals()
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:  # what the terminal's encoding lacks is escaped; it never raises
            reconfigure(errors="backslashreplace")
    given = Settings()
    try:
        cli(None if words is None else list(words), prog_name=prog, obj=given)
    except SystemExit as end:
        if given.serves:
            leave_within(LEAVE_S, end.code if isinstance(end.code, int) else 0)
        raise
