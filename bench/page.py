"""Write what was measured into the pages, between marks such as <!-- costs --> and <!-- end -->.

.venv/bin/python bench/page.py      docs/benchmarks.md from results/*.json, docs/scaling.md from core/costs.py too
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import report
from click.testing import CliRunner

from holdfast.cli.main import cli
from holdfast.core.capacity import Cost, Costs, Event
from holdfast.core.costs import COSTS

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
DOCS = HERE.parent / "docs"
PAGES = (DOCS / "benchmarks.md", DOCS / "scaling.md")
MARKED = re.compile(r"(<!-- made: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
STORES = {"sqlite": "SQLite", "postgres": "PostgreSQL"}


def write() -> None:
    for page in PAGES:
        page.write_text(filled(page.read_text()))


def filled(text: str) -> str:
    """Return the text of a page with what was measured last."""
    return MARKED.sub(lambda mark: f"{mark[1]}\n{MADE[mark[2]]()}\n\n{mark[3]}", text)


def figures(store: str) -> str:
    """Return the newest figures of a store, whether of a whole run or a quick one."""
    files = [path for name in (store, f"{store}-quick") if (path := RESULTS / f"{name}.json").exists()]
    results = [result for path in files if "load" in (result := json.loads(path.read_text()))["noise"]]
    if not results:
        return "No run of the present bench is committed. The figures below are of an older one."
    return report.headlines(max(results, key=lambda result: str(result["at"])))


def output() -> str:
    """Return what the first command of the page prints."""
    [command] = re.findall(r"^holdfast (simulate .*)", (DOCS / "scaling.md").read_text(), re.MULTILINE)[:1]
    printed = CliRunner().invoke(cli, command.split(), prog_name="holdfast").stdout
    return f"```text\n{printed.rstrip()}\n```"


def costs() -> str:
    lines = [f"{STORES[store]}: measured on {each.measured}." for store, each in sorted(COSTS.items(), reverse=True)]
    return "\n\n".join([" ".join(lines), _events(), _others()])


def _events() -> str:
    head = "| cost of one | server, µs | processes, µs | WAL, bytes | transactions | SQLite: processes, µs | bytes |"
    rows = [f"| {event.value} | {_of(COSTS['postgres'].events[event])} | {_short(event)} |" for event in Event]
    return "\n".join([head, "|---|---|---|---|---|---|---|", *rows])


def _of(cost: Cost) -> str:
    numbers = (cost.store_us, cost.client_us, cost.wal_bytes)
    return " | ".join([*(f"{number:,.0f}" for number in numbers), f"{cost.transactions:.2g}"])


def _short(event: Event) -> str:
    cost = COSTS["sqlite"].events[event]
    return f"{cost.client_us:,.0f} | {cost.wal_bytes:,.0f}"


OTHERS: dict[str, Callable[[Costs], str]] = {
    "a finished job on disk, bytes": lambda costs: f"{costs.row_bytes:,.0f}",
    "for each byte of its arguments": lambda costs: f"{costs.disk_copies:.1f}",
    "bytes of WAL for each byte of arguments": lambda costs: f"{costs.wal_copies:.1f}",
    "a journal line on disk, bytes": lambda costs: f"{costs.line_bytes:,.0f}",
    "rows that come within this time share a claim, ms": lambda costs: f"{1000 * costs.cycle_s:.0f}",
    "a woken worker looks for, ms": lambda costs: f"{1000 * costs.look_s:.0f}",
    "connections of a worker process at rest, and at most": lambda costs: (
        "-" if costs.one_writer else f"{costs.connections_idle:.0f}, {costs.connections_busy:.0f}"
    ),
    "connections of a supervisor": lambda costs: "-" if costs.one_writer else f"{costs.connections_command:.0f}",
}


def _others() -> str:
    rows = [f"| {name} | {tell(COSTS['postgres'])} | {tell(COSTS['sqlite'])} |" for name, tell in OTHERS.items()]
    return "\n".join(["| | PostgreSQL | SQLite |", "|---|---|---|", *rows])


def checks() -> str:
    """Return what bench/capacity.py has found out about its own forecast."""
    found: list[dict[str, Any]] = [
        {"store": name, **each}
        for store, name in reversed(STORES.items())
        for each in json.loads((RESULTS / f"capacity-{store}.json").read_text())
    ]
    rows = [
        f"| {each['store']} | {each['fleet']} | {each['figure']} | {each['measured']:.4g} | {each['predicted']} "
        f"| {each['off']} |"
        for each in found
    ]
    return "\n".join(["| store | fleet | | measured | predicted | off |", "|---|---|---|---|---|---|", *rows])


MADE: dict[str, Callable[[], str]] = {
    "figures sqlite": lambda: figures("sqlite"),
    "figures postgres": lambda: figures("postgres"),
    "output": output,
    "costs": costs,
    "checks": checks,
}


if __name__ == "__main__":
    write()
