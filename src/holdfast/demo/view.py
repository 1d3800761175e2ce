"""How the demo is shown: a live view that fills a terminal, plain lines for everything else, and the summary."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from holdfast.core.machine import State
from holdfast.core.records import Job
from holdfast.demo.book import Recovery
from holdfast.demo.observer import SMALL, Line, Scene, WorkerView, span
from holdfast.demo.summary import Summary

WIDTH_MIN, HEIGHT_MIN = 72, 22  # a smaller terminal gets plain lines
WIDE, ROOMY = 100, 30  # columns inside a panel, lines: there is room for more
ACTORS = 6  # jobs of the story
DRAW_S = 0.1  # not more often than this

STYLES = {
    "plain": "",
    "act": "bold",
    "kill": "bold red",
    "found": "yellow",
    "start": "cyan",
    "done": "green",
    "held": "magenta",
    "refused": "bold magenta",
    "dead": "red",
    "ready": "cyan",
    "retrying": "yellow",
    "scheduled": "cyan",
    "running": "bright_blue",
    "waiting": "magenta",
    "cancelled": "dim",
    "rolled_back": "magenta",
    "alive": "green",
    "killed": "bold red",
    "frozen": "bold bright_blue",
    "gone": "dim",
    "starting": "dim",
}
LABEL = 12  # columns of a fact's label
_MEASURE = Console(width=1000)  # only measures
SHOWN_COUNTS = (State.READY, State.RUNNING, State.HELD, State.DONE, State.DEAD)


class Plain:
    """One line per event, with its time."""

    linger_s = 0.0

    def __init__(self, echo: Callable[[str], None]) -> None:
        self._echo = echo

    def line(self, line: Line) -> None:
        self._echo(f"{clock(line.at)}  {line.text}")

    def draw(self, scene: Scene) -> None:
        """Nothing: every line is told when it happens."""


class Screen:
    """The live view. A context: it takes the terminal's second screen and gives it back."""

    linger_s = 1.2

    def __init__(self, console: Console) -> None:
        self._console = console
        self._glyphs = UNICODE if "utf" in console.encoding.lower() else ASCII
        self._live = Live(console=console, screen=True, auto_refresh=False, transient=True)
        self._drawn_at = float("-inf")

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._live.stop()

    def line(self, line: Line) -> None:
        """Nothing: the scene has the lines."""

    def draw(self, scene: Scene) -> None:
        if scene.lease - self._drawn_at >= DRAW_S:
            self._drawn_at = scene.lease
            width, height = self._console.size
            self._live.update(frame(scene, width, height, self._glyphs), refresh=True)


# ----------------------------------------------------------------------------------------- the picture


@dataclass(frozen=True, slots=True)
class Glyphs:
    full: str
    empty: str
    dot: str
    box: box.Box
    ellipsis: str


UNICODE = Glyphs("━", "╌", "●", box.ROUNDED, "…")
ASCII = Glyphs("=", ".", "*", box.ASCII, "~")


def frame(scene: Scene, width: int, height: int, glyphs: Glyphs = UNICODE) -> RenderableType:
    """Lay the scene out in exactly this many lines."""
    inside = width - 4  # of a panel
    posts = [_post(post, scene, inside, glyphs) for post in scene.posts]
    actors = [_actor(task, job, scene, inside, glyphs) for task, job in scene.actors]
    if height >= ROOMY:  # then the picture does not jump when one comes on
        actors += [Text() for _ in range(ACTORS - len(actors))]
    room = max(1, height - len(posts) - len(actors) - 9)
    lines = [text for line in list(scene.lines)[-room:] for text in _line(line, inside)][-room:]
    lines += [Text() for _ in range(room - len(lines))]
    return Group(
        _header(scene, width),
        _fitted(Text(f" {scene.words}", "italic"), width, glyphs),
        _panel("workers", posts, width, glyphs),
        _panel("jobs of the story", actors, width, glyphs),
        _fitted(_counts(scene), width, glyphs),
        _panel("journal", lines, width, glyphs),
    )


def _header(scene: Scene, width: int) -> Text:
    inside = 1 <= scene.act <= scene.acts
    act = f" Act {scene.act} of {scene.acts}: " if inside else " "
    took = f"{scene.lease - scene.began_at:5.1f} s "
    name = " HOLDFAST "
    text = Text.assemble((name, "bold reverse"), (act, "bold"), (scene.title, "bold"))
    text.truncate(max(0, width - len(took) - 1))
    text.pad_right(max(0, width - len(took) - text.cell_len))
    return text.append(took, "dim")


def _post(post: WorkerView, scene: Scene, width: int, glyphs: Glyphs) -> Text:
    text = Text.assemble((f"{glyphs.dot} ", STYLES[post.state]), (f"{post.name:<8}", "bold"))
    text.append(f"{post.state:<9}", STYLES[post.state])
    if post.pid is None:
        return text
    text.append(f"pid {post.pid:<8}", "dim").append(f"{len(post.running)}/{post.slots} slots  ")
    held = [job for job in post.running if job.lease_until is not None]
    if not held:
        return text.append("holds no lease", "dim")
    shortest = min(held, key=lambda job: job.lease_until or 0.0)
    text.append_text(_lease(shortest, scene, 24 if width >= WIDE else 7, glyphs))
    tasks = Counter(job.task for job in sorted(held, key=lambda job: job.task == SMALL))  # the actors first
    if width >= WIDE:
        return text.append("  " + ", ".join(f"{task} x {n}" if n > 1 else task for task, n in tasks.items()))
    return text.append(f"  {next(iter(tasks))}" + (f" +{len(held) - 1}" if len(held) > 1 else ""))


def _actor(task: str, job: Job | None, scene: Scene, width: int, glyphs: Glyphs) -> Text:
    if job is None:
        return Text(f"{task:<8}submitted")
    state, wide = job.shown_state(scene.wall), width >= WIDE
    text = Text.assemble((f"{task:<8}", "bold"), (f"{state:<9}", STYLES.get(state, "")))
    text.append(f"{'attempt' if wide else 'att.'} {job.attempt} fence {job.fence:<3}")
    size = 16 if wide else 6
    match state:
        case "running":
            share = job.progress or 0.0
            text.append_text(_lease(job, scene, size, glyphs))
            text.append("  ").append_text(_bar(share, size, "bright_blue", glyphs)).append(f" {share:4.0%}")
            return text.append(f"  {scene.names.get(job.worker or '', '')}", "bold")
        case "retrying":
            return text.append(f"again in {span(job.run_at - scene.wall)}: {job.error}", "dim")
        case "done":
            return text.append(f"result {job.result}", "dim")
        case _:
            return text.append(job.error or "", STYLES.get(state, ""))


def _lease(job: Job, scene: Scene, size: int, glyphs: Glyphs) -> Text:
    left = (job.lease_until or scene.lease) - scene.lease
    share = min(1.0, max(0.0, left / job.lease_s))
    style = "green" if share > 0.5 else "yellow" if share > 0.2 else "red"
    return Text("lease ").append_text(_bar(share, size, style, glyphs)).append(f" {max(0.0, left):4.1f} s")


def _bar(share: float, size: int, style: str, glyphs: Glyphs) -> Text:
    full = round(min(1.0, max(0.0, share)) * size)
    return Text.assemble((glyphs.full * full, style), (glyphs.empty * (size - full), "dim"))


def _counts(scene: Scene) -> Text:
    text = Text(f"  submitted {scene.submitted}", "bold")
    for state in SHOWN_COUNTS:
        number = scene.counts.get(state.value, 0)
        text.append("   ").append(f"{state.value} {number}", STYLES[state.value] if number else "dim")
    return text


def _line(line: Line, width: int) -> list[Text]:
    stamp = f"{clock(line.at)}  "
    parts = textwrap.wrap(line.text, max(20, width - len(stamp)), break_on_hyphens=False) or [""]
    heads = [stamp, *(" " * len(stamp) for _ in parts[1:])]
    return [Text.assemble((head, "dim"), (part, STYLES[line.tone])) for head, part in zip(heads, parts, strict=True)]


def _panel(title: str, lines: Iterable[Text], width: int, glyphs: Glyphs) -> Panel:
    fitted = [_fitted(line, width - 4, glyphs) for line in lines]
    return Panel(
        Group(*fitted), title=title, title_align="left", box=glyphs.box, width=width, padding=(0, 1), border_style="dim"
    )


def _fitted(text: Text, width: int, glyphs: Glyphs) -> Text:
    text = text.copy()
    text.no_wrap = True
    if text.cell_len > width:
        text.truncate(max(0, width - len(glyphs.ellipsis)))
        text.append(glyphs.ellipsis, "dim")
    return text


# ----------------------------------------------------------------------------------------- the summary


def told(summary: Summary, width: int) -> Iterator[Text]:
    """Tell the figures, in lines that are as long as this."""
    for text in _told(summary):
        yield from _hanging(text, width)


def _told(summary: Summary) -> Iterator[Text]:
    yield Text()
    if summary.ok:
        yield Text.assemble(
            ("Nothing was lost.", "bold green"), f" {len(summary.acts)} acts in {span(summary.seconds)}."
        )
    else:
        yield Text("Something went wrong:", "bold red")
        for trouble in summary.trouble[:20]:
            yield Text(f"  {trouble}", "red")
    yield Text()
    yield _fact(
        "jobs",
        f"{summary.jobs_submitted} submitted, {summary.jobs_done} done "
        f"({summary.accepted_once} accepted exactly once), {summary.jobs_dead} dead, ",
        (f"{summary.jobs_lost} lost", "bold green" if summary.jobs_lost == 0 else "bold red"),
    )
    yield _fact("pace", f"{summary.jobs_per_s:.1f} jobs/s done, from the first submitted to the last")
    yield _fact("kill -9", f"{summary.processes_killed} processes")
    left = f"{summary.zombies_left} left"
    yield _fact("zombies", f"{summary.zombies_found} attempts lost their worker; {left}")
    yield Text()
    yield Text("  found by      in    runs again in   lease had left   fence    job, worker", "bold")
    for recovery in summary.recoveries:
        yield _recovery(recovery)
    yield Text()
    for refusal in summary.stale_reports:
        words = (
            f"report of {refusal.worker} for {refusal.task}: its fence {refusal.fence}, the job's {refusal.fence_now}"
        )
        yield _fact("refused", words)
    for reason in summary.held:
        yield _fact("held", f"{reason.task}: {reason.reason}")
        yield _fact("", f"approved {_times(summary.approved)}, by demo; done at attempt {reason.attempts}")
    for reason in summary.dead:
        yield _fact("dead", f"{reason.task}: {reason.reason}")
    for reason in summary.failed:
        yield _fact("retried", f"{reason.task}: {reason.reason}; done at attempt {reason.attempts}")


def _recovery(recovery: Recovery) -> Text:
    again = recovery.runs_again_after_s
    text = Text(f"  {recovery.detector:<9}", "yellow")
    text.append(f"{span(recovery.found_after_s):>7}", "bold")
    text.append(f"{span(again) if again is not None else 'held':>17}", "bold" if again is not None else "magenta")
    text.append(f"{recovery.lease_left_s:>15.1f} s")
    return text.append(f"   {recovery.fence_before} -> {recovery.fence_after:<3} {recovery.task}, {recovery.victim}")


def _fact(label: str, *words: str | tuple[str, str]) -> Text:
    return Text.assemble((f"  {label:<{LABEL - 2}}", "dim"), *words)


def _hanging(text: Text, width: int) -> list[Text]:
    """Wrap a fact so that its words stay beside its label."""
    if text.cell_len <= width or not text.plain.startswith("  "):
        return [text]
    label, words = text[:LABEL], text[LABEL:]
    parts = words.wrap(_MEASURE, width - LABEL)
    return [(label if number == 0 else Text(" " * LABEL)).append_text(part) for number, part in enumerate(parts)]


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def clock(wall: float) -> str:
    """Write the time of day, here, to the millisecond."""
    return datetime.fromtimestamp(wall).strftime("%H:%M:%S.%f")[:-3]
