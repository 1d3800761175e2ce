"""Show the demo: a live view that fills a terminal, plain lines for everything else."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from rich.box import ROUNDED
from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from holdfast.core.durations import duration
from holdfast.core.records import Job, Worker
from holdfast.core.stop_reason import full_reason
from holdfast.demo.observer import SMALL, DemoLine, Observer

WIDTH_MIN, HEIGHT_MIN = 72, 22  # a smaller terminal gets plain lines
WIDE, ROOMY = 100, 30  # columns inside a panel, lines: there is room for more
ACTORS = 6  # jobs of the story
ASCII = str.maketrans("━╌●…", "=.*~")  # for a terminal that has no other signs

STYLES = {  # of jobs and of workers
    "held": "magenta",
    "done": "green",
    "dead": "red",
    "ready": "cyan",
    "retrying": "yellow",
    "running": "bright_blue",
    "alive": "green",
    "killed": "bold red",
    "frozen": "bold bright_blue",
    "gone": "dim",
    "starting": "dim",
}


class View(NamedTuple):
    """The display of the demo; it shows nothing if no console is given."""

    line: Callable[[DemoLine], object] = lambda _: None  # tells one event
    draw: Callable[[Observer], object] = lambda _: None  # shows what there is to see now
    linger_s: float = 0.0  # how long a person may look at the end of an act


def frame(seen: Observer, console: Console) -> Group:
    """Lay out what was seen in exactly the lines of the console."""
    (width, height), has_all = console.size, console.encoding.startswith("utf")
    inside = width - 4  # of a panel

    def fitted(text: Text, room: int) -> Text:
        text.truncate(room, overflow="ellipsis")
        text.plain = text.plain if has_all else text.plain.translate(ASCII)
        return text

    def panel(title: str, lines: list[Text], high: int) -> Panel:
        content = Group(*(fitted(line, inside) for line in lines))
        return Panel(content, ROUNDED, title=title, title_align="left", height=high + 2, border_style="dim")

    workers = [_worker(name, *found, seen, inside >= WIDE) for name, found in seen.newest().items()]
    actors = [_actor(task, seen.rows.get(task), seen, inside >= WIDE) for task in seen.story]
    places = ACTORS if height >= ROOMY else len(actors)  # then the picture does not jump when one comes on
    room = max(1, height - len(workers) - places - 9)
    took = f"{seen.now.lease - seen.began_at:5.1f} s "
    header = Text.assemble((" HOLDFAST ", "bold reverse"), (f" {seen.act}{seen.title}", "bold"))
    header.truncate(width - len(took), pad=True)
    return Group(
        header.append(took, "dim"),
        fitted(Text(f" {seen.words}", "italic"), width),
        panel("workers", workers, len(workers)),
        panel("jobs of the story", actors, places),
        fitted(_counts(seen), width),
        panel("journal", [text for line in list(seen.lines)[-room:] for text in _line(line, inside)][-room:], room),
    )


def _worker(name: str, state: str, worker: Worker | None, seen: Observer, is_wide: bool) -> Text:
    text = Text.assemble(("● ", STYLES[state]), (f"{name:<8}", "bold"), (f"{state:<9}", STYLES[state]))
    if worker is None:
        return text
    held = [job for job in seen.running if job.worker == worker.id]
    text.append(f"pid {worker.pid:<8}", "dim").append(f"{len(held)}/{worker.slots} slots  ")
    if not held:
        return text.append("holds no lease", "dim")
    text.append_text(_lease(min(held, key=lambda job: job.lease_until or 0.0), seen, 24 if is_wide else 7))
    tasks = Counter(job.task for job in sorted(held, key=lambda job: job.task == SMALL))  # the actors first
    if is_wide:
        return text.append("  " + ", ".join(f"{task} x {n}" if n > 1 else task for task, n in tasks.items()))
    return text.append(f"  {next(iter(tasks))}" + (f" +{len(held) - 1}" if len(held) > 1 else ""))


def _actor(task: str, job: Job | None, seen: Observer, is_wide: bool) -> Text:
    if job is None:
        return Text(f"{task:<8}submitted")
    state, size, share = job.shown_state(seen.now.wall), 16 if is_wide else 6, job.progress or 0.0
    text = Text.assemble((f"{task:<8}", "bold"), (f"{state:<9}", STYLES.get(state, "")))
    text.append(f"{'attempt' if is_wide else 'att.'} {job.attempt} fence {job.fence:<3}")
    match state:
        case "running":
            text.append_text(_lease(job, seen, size)).append("  ").append_text(_bar(share, size, "bright_blue"))
            return text.append(f" {share:4.0%}").append(f"  {seen.name(job.worker)}", "bold")
        case "retrying":
            return text.append(f"again in {duration(job.run_at - seen.now.wall)}: {job.error}", "dim")
        case "done":
            return text.append(f"result {job.result}", "dim")
        case _:
            return text.append(full_reason(job) or "", STYLES.get(state, ""))


def _lease(job: Job, seen: Observer, size: int) -> Text:
    left = max(0.0, (job.lease_until or 0.0) - seen.now.lease)
    share = left / job.lease_s
    style = "green" if share > 0.5 else "yellow" if share > 0.2 else "red"
    return Text("lease ").append_text(_bar(share, size, style)).append(f" {left:4.1f} s")


def _bar(share: float, size: int, style: str) -> Text:
    full = round(min(1.0, share) * size)
    return Text.assemble(("━" * full, style), ("╌" * (size - full), "dim"))


def _counts(seen: Observer) -> Text:
    text = Text(f"  submitted {len(seen.book.wanted)}", "bold")
    for state in ("ready", "running", "held", "done", "dead"):
        number = seen.counts.get(state, 0)
        text.append("   ").append(f"{state} {number}", STYLES[state] if number else "dim")
    return text


def _line(line: DemoLine, width: int) -> list[Text]:
    stamp = f"{clock(line.at)}  "
    parts = textwrap.wrap(line.text, width - len(stamp), break_on_hyphens=False)
    heads = [stamp] + [" " * len(stamp)] * len(parts)
    return [Text.assemble((head, "dim"), (part, line.style)) for head, part in zip(heads, parts, strict=False)]


def clock(wall: float) -> str:
    """Write the time of day, here, to the millisecond."""
    return datetime.fromtimestamp(wall).strftime("%H:%M:%S.%f")[:-3]
