"""`holdfast report`: one file about an incident, which loads nothing and shows every text as it is."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.cli.report_page import TEXT_MAX, report_page, text
from holdfast.core.published import PublishedTask
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Lost, Outcome, TimedOut, judge
from holdfast.insight import incident_view
from holdfast.insight.incident import SHOWN_MAX
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.cli.conftest import Run
from tests.factory import enrol, make_job, start

EVIL = '<script>alert("x")</script><img src=//evil.example/x> & \u202e\x1b[31m'
VOID = {"meta", "br"}


def ends(store: Store, worker: str, outcome: Outcome, **given: object) -> None:
    job = start(store, worker, **{"attempts_max": 1, "task": "shop.pay"} | given)
    store.settle([settlement(job, judge(outcome, job, store.now().wall, chance=0.5, release="2.4.1"))])


@pytest.fixture
def incident(store: Store, clock: FakeClock) -> Store:
    store.publish([PublishedTask(job=make_job(id="", task="shop.pay", on_crash="hold", lease_s=45.0))])
    worker = enrol(store, name="box/1", release="2.4.1", version="0.1.0", beat_s=1e6)
    clock.advance(60)
    ends(store, worker, Failed(f"ValueError: {EVIL}", error_kind="ValueError", origin="shop.cards"))
    ends(store, worker, TimedOut("too long: token=s3cret-s3cret"))
    lost = Lost("vanished", "killed by SIGKILL", {"seconds_since_beat": 2.5, "worker": "box/1"})
    ends(store, worker, lost, on_crash="hold", attempts_max=3)
    ends(
        store, worker, Lost("exit", "killed by SIGKILL", {"seconds_since_beat": 0.2}), attempts_max=3, task="shop.ship"
    )
    store.pause("mail", True, actor="ann", note=EVIL)
    clock.advance(60)
    return store


class Page(HTMLParser):
    """Reads a page as a browser does: its tags, what they load, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"{tag} ends what it has not begun"

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_report_says_what_died_how_it_was_found_what_was_held_and_who_did_what(run: Run, incident: Store) -> None:
    page = Page(run("report", "--since", "1h").stdout)
    for words in (
        "Lost attempts",
        "vanished",
        "2.5 s",
        "killed by SIGKILL; on_crash=hold: a person decides",
        "timed out or stalled: 1",
        "lost their worker: 2",
        "2.4.1",
        "box/1",
        "ann",
        "holdfast held list",
        "45 s",
    ):
        assert words in page.words, words
    assert page.tags.count("h2") == 9


def test_the_report_loads_nothing_and_shows_every_text_as_it_is(run: Run, incident: Store) -> None:
    text_of = run("report", "--since", "1h").stdout
    page = Page(text_of)
    assert not {"script", "link", "img", "iframe", "object", "base", "form", "a"} & set(page.tags)
    names = {name for name, _ in page.attributes}
    assert not {name for name in names if name.startswith("on")} | names & {"src", "href", "style", "action"}
    assert "default-src 'none'" in dict(page.attributes)["content"] or "default-src" in text_of
    assert not re.search(r"https?://|url\(|@import", text_of)
    assert '<script>alert("x")</script><img src=//evil.example/x> &' in page.words
    assert not [char for char in text_of if not char.isprintable() and char != "\n"]
    assert "s3cret" not in text_of


def test_its_charts_are_well_formed_and_say_the_numbers(run: Run, incident: Store) -> None:
    page = run("report", "--since", "1h").stdout
    charts = [ElementTree.fromstring(found) for found in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]
    bars, points = [chart for chart in charts if chart.get("role") == "img"]
    assert str(bars.get("aria-label")).startswith("Failed attempts over time")
    assert {str(bar.get("class")) for bar in bars.iter("rect")} == {"fill-failed", "fill-stopped", "fill-lost"}
    assert len(list(points.iter("circle"))) == 2
    assert [line.findtext("title") for line in bars.iter("line") if line.get("class") == "mark"] != []
    for shape in [*bars.iter("rect"), *points.iter("circle")]:
        numbers = [float(str(shape.get(name))) for name in ("x", "y", "cx", "cy") if shape.get(name)]
        assert all(0 <= number <= 960 for number in numbers)


def test_the_file_is_new_and_its_data_are_there_as_json(run: Run, incident: Store, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert run("report", "--since", "1h", "-o", str(file)).stdout == f"wrote {file}\n"
    assert file.read_text("utf-8").startswith("<!doctype html>")
    assert "is there already" in run("report", "-o", str(file), code=2).stderr
    assert "cannot be written" in run("report", "-o", str(tmp_path / "none" / "x.html"), code=2).stderr
    view = run.json("report", "--since", "1h")
    assert (view["lost"]["zombies"], view["held_total"], view["dead_total"]) == (2, 1, 2)
    assert view["failures"]["total"] == {"failed": 1, "stopped": 1, "lost": 2}
    assert [act["by"] for act in view["acts"]] == ["ann"]
    run("report", "--since", "2999-01-01T00:00", code=2)


def test_a_store_in_which_nothing_happened_has_a_report_too(run: Run, store: Store) -> None:
    page = Page(run("report", "--since", "5min").stdout)
    for words in ("No attempt lost its worker.", "No attempt ended with an error.", "No job was held.", "No job died."):
        assert words in page.words


@pytest.mark.parametrize("since_s", [1.0, 90.0, 7200.0, 86_400.0 * 3, 86_400.0 * 400])
def test_a_report_of_any_length_of_time_can_be_drawn(incident: Store, since_s: float) -> None:
    view = incident_view(incident, lambda now: now - since_s)
    assert 1 <= len(view["failures"]["bars"]) <= 402
    Page(report_page(view))


def test_of_very_many_the_newest_are_shown_and_all_are_counted(store: Store, clock: FakeClock) -> None:
    worker = enrol(store, name="box/1", beat_s=1e6)
    since = clock.wall() - 1
    for number in range(SHOWN_MAX + 5):
        ends(store, worker, Lost("exit", "gone"), on_crash="hold", attempts_max=3, id=f"job-{number}x")
    view = incident_view(store, lambda _: since)
    assert (len(view["held"]), view["held_total"], len(view["lost"]["found"])) == (SHOWN_MAX, SHOWN_MAX + 5, SHOWN_MAX)
    page = Page(report_page(view))
    assert page.words.count(f"The newest {SHOWN_MAX} of {SHOWN_MAX + 5}.") == 2


def test_a_text_is_bounded_and_on_one_line() -> None:
    assert len(text("x" * 10_000)) == TEXT_MAX
    assert text("a\nb\x00\u202ec") == "a b c"
    assert text("\"<&>'") == "&quot;&lt;&amp;&gt;&#x27;"
