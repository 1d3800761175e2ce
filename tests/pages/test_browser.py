"""Every page in a real browser, as a program of its own and mounted in another application."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast import Context
from holdfast.app import App
from holdfast.core.machine import State
from holdfast.core.records import Filter
from holdfast.queues import choose_limits
from holdfast.server.pages.table import PAGES
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Store
from holdfast.testing.faults import Fault, FaultyStore
from tests.factory import add, row
from tests.pages.browser.find import AXE
from tests.pages.site import PREFIX, Site
from tests.pages.world import EVIL, World, path_of
from tests.server.client import add_token

pytestmark = pytest.mark.slow  # a browser
WIDTHS = (1440, 768, 390)
WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
SHIFTS = """() => new Promise((done) => { let sum = 0;
  new PerformanceObserver((list) => { for (const each of list.getEntries()) sum += each.value; })
    .observe({ type: "layout-shift", buffered: true });
  setTimeout(() => done(sum), 50); })"""


class Visitor:
    """A tab. It notes every violation of the policy, every error, and every request to another host."""

    def __init__(self, browser: Browser, url: str, **given: Any) -> None:
        self.url, self.wrong = url, []
        given = {"locale": "en-GB", "viewport": {"width": 1440, "height": 900}, **given}
        self.page: Page = browser.new_page(**given)
        self.page.on("console", lambda said: self._note(said.type, said.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda asked: self._check(asked.url))

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.wrong.append(text)

    def _check(self, url: str) -> None:
        if not url.startswith(self.url):
            self.wrong.append(f"a request to {url}")

    def see(self, path: str) -> Page:
        answer = self.page.goto(self.url + path)
        assert answer is not None
        assert answer.ok, answer.status
        return self.page


@pytest.fixture
def app() -> Iterator[App]:
    """Return an app on the real clock: a browser waits for nobody's hand."""
    with App("memory://") as app:
        yield app


@pytest.fixture
def visit(browser: Browser) -> Callable[..., Any]:
    @contextmanager
    def visiting(url: str, **given: Any) -> Iterator[Visitor]:
        visitor = Visitor(browser, url, **given)
        try:
            yield visitor
            assert not visitor.wrong
        finally:
            visitor.page.close()

    return visiting


@pytest.mark.parametrize("mounted", [False, True], ids=["alone", "mounted"])
def test_every_page_is_clean_in_every_width_and_theme(
    app: App, world: World, visit: Callable[..., Any], mounted: bool
) -> None:
    with Site(app, mounted=mounted) as site:
        assert site.url.endswith(PREFIX) is mounted
        for theme in ("light", "dark"):
            with visit(site.url, color_scheme=theme) as tab:
                for path in (path_of(page, world) for page in PAGES):
                    page = tab.see(path)
                    assert page.title() != "owned"
                    for width in WIDTHS:
                        page.set_viewport_size({"width": width, "height": 900})
                        wide = page.evaluate("document.documentElement.scrollWidth")
                        assert wide <= width, f"{path} is {wide} wide at {width}"
                    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
                    if not mounted:
                        check_accessible(page, f"{path} {theme}", WCAG if theme == "light" else ["color-contrast"])


def check_accessible(page: Page, where: str, only: list[str]) -> None:
    page.evaluate(AXE.read_text("utf-8"))
    found = page.evaluate("(only) => axe.run({ runOnly: only })", only)["violations"]
    assert not [(where, each["id"], [node["html"] for node in each["nodes"]]) for each in found]


def test_a_page_does_not_jump_while_it_loads(app: App, world: World, visit: Callable[..., Any]) -> None:
    with Site(app) as site, visit(site.url) as tab:
        for path in (path_of(page, world) for page in PAGES):
            page = tab.see(path)
            assert page.evaluate(SHIFTS) < 0.02, path


def test_the_overview_follows_the_store_until_it_is_paused(app: App, visit: Callable[..., Any]) -> None:
    with Site(app) as site, visit(site.url) as tab:
        page = tab.see("/")
        ready = page.locator(".states a", has_text="ready").locator("b")
        expect(ready).to_have_text("0")
        add(app.store)
        expect(ready).to_have_text("1", timeout=15_000)
        page.keyboard.press("r")
        expect(page.locator("#live-word")).to_have_text("Paused")
        page.keyboard.press("r")
        expect(page.locator("#live-word")).to_have_text("Live")


def test_a_lost_connection_is_shown_and_found_again(app: App, visit: Callable[..., Any]) -> None:
    with Site(app) as site, visit(site.url) as tab:
        page = tab.see("/")
        expect(page.locator("#live-word")).to_have_text("Live")
        page.wait_for_function("document.getElementById('clock').textContent.length === 8")
        page.route("**/pulse", lambda route: route.abort())
        site.server.stop_streams()
        expect(page.locator("#live-word")).to_have_text("Connection lost", timeout=15_000)
        assert "stale" in (page.locator("#live").get_attribute("class") or "")
        site.server.stopping.clear()
        page.unroute("**/pulse")
        expect(page.locator("#live-word")).to_have_text("Live", timeout=15_000)
        tab.wrong.clear()  # the browser notes each request that failed


def test_a_page_keeps_what_it_shows_while_the_store_is_down(visit: Callable[..., Any]) -> None:
    down: list[Fault] = []
    with App("memory://") as app:
        store = FaultyStore(MemoryStore(), lambda verb: down[0] if down else None)
        app.opener = lambda: cast(Store, store)
        add(cast(Store, store))
        with Site(app) as site, visit(site.url) as tab:
            page = tab.see("/")
            expect(page.locator("#live-word")).to_have_text("Live")
            down.append(Fault(error=True))
            expect(page.locator("#live-word")).to_have_text("Store unreachable", timeout=15_000)
            assert page.locator(".states a", has_text="ready").locator("b").inner_text() == "1"
            assert "stale" in (page.locator("#live").get_attribute("class") or "")
            down.clear()
            expect(page.locator("#live-word")).to_have_text("Live", timeout=15_000)
            tab.wrong.clear()  # the browser notes each request that failed


def test_keys_open_pages_and_the_list_of_keys(app: App, world: World, visit: Callable[..., Any]) -> None:
    with Site(app) as site, visit(site.url) as tab:
        page = tab.see("/style")
        page.keyboard.press("?")
        expect(page.locator("#help")).to_be_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("j")
        expect(page.locator("tr.here")).to_have_count(1)
        before = page.locator("html").get_attribute("data-theme")
        page.keyboard.press("t")
        assert page.locator("html").get_attribute("data-theme") != before
        page.keyboard.press("g")
        page.keyboard.press("o")
        page.wait_for_url(site.url + "/")


def test_a_person_logs_in_with_a_token(app: App, visit: Callable[..., Any]) -> None:
    with Site(app, needs_token=True) as site, visit(site.url) as tab:
        secret = add_token(app, "ann", "operator")
        page = tab.see("/")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button").click()
        expect(page.get_by_role("alert")).to_contain_text("unknown")
        page.get_by_label("Token").fill(secret)
        page.get_by_role("button").click()
        expect(page.locator(".who")).to_have_text("ann · operator")
        tab.wrong.clear()  # the browser notes the answer 401


def test_a_page_can_be_read_without_javascript(app: App, world: World, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    try:
        with Site(app) as site:
            page = context.new_page()
            for path in (path_of(page, world) for page in PAGES):
                page.goto(site.url + path)
                assert page.locator("h1").count() == 1
                assert page.locator("main").inner_text().strip()
    finally:
        context.close()


def test_a_person_answers_for_a_held_job_and_the_next_one_is_there(
    app: App, world: World, visit: Callable[..., Any]
) -> None:
    held = world.jobs[State.HELD]
    with Site(app, mounted=True) as site, visit(site.url) as tab:
        page = tab.see("/review")
        card = page.locator(f"#card-{held.id}")
        page.keyboard.press("j")
        page.keyboard.press("1")
        expect(card.locator("details.act[open]")).to_have_count(1)
        page.keyboard.type("looked at the bank")
        assert row(app.store, held.id).state is State.HELD
        card.locator("details.act[open] button").click()
        expect(page.locator("#said")).to_have_text("It continues.")
        expect(card).to_have_count(0)
    events = app.store.journal(held.id)
    assert "looked at the bank" in str([event.detail for event in events])


def test_what_a_person_types_outlives_updates_and_a_job_that_moved_on_is_refused(
    app: App, world: World, visit: Callable[..., Any]
) -> None:
    held = world.jobs[State.HELD]
    with Site(app) as site, visit(site.url) as tab:
        page = tab.see(f"/jobs/{held.id}")
        page.locator("details.act summary").first.click()
        note = page.locator("details.act[open] textarea[name=note]")
        note.fill("half a sen")
        app.resolve(held.id, "retry", by="ann")
        expect(page.locator(".head .chip").first).to_have_text("ready", timeout=15_000)
        expect(note).to_have_value("half a sen")
        page.locator("details.act[open] button").click()
        expect(page.locator("main")).to_contain_text("ann revived it")
        tab.wrong.clear()  # the browser notes the answer 409


def test_a_person_chooses_rows_sees_the_count_and_acts(app: App, world: World, visit: Callable[..., Any]) -> None:
    with Site(app) as site, visit(site.url) as tab:
        page = tab.see("/jobs?state=ready&queue=queue-1")
        page.keyboard.press("j")
        page.keyboard.press("x")
        expect(page.locator("#chosen-number")).to_have_text("1 chosen")
        page.locator("#choose-all").check()
        expect(page.locator("#chosen-number")).to_have_text("4 chosen")
        page.locator("#chosen-bar").get_by_role("button", name="Cancel").click()
        expect(page.locator("main h2")).to_contain_text("Cancel 4 jobs?")
        page.get_by_role("button", name="Cancel 4").click()
        expect(page.get_by_role("status")).to_contain_text("4 jobs were cancelled")
    assert len(app.store.find(Filter(states=(State.CANCELLED,), queue="queue-1"))) == 4


def test_markup_in_every_field_of_a_job_stays_text(app: App, world: World, visit: Callable[..., Any]) -> None:
    with Site(app) as site, visit(site.url) as tab:
        for path in (f"/jobs/{world.evil}", "/jobs", "/jobs?text=onerror", "/review"):
            page = tab.see(path)
            assert page.locator("main img, main script").count() == 0
            assert "owned" not in page.title().replace(EVIL, "")
        assert page.evaluate("document.title") != "owned"
        shown = tab.see(f"/jobs/{world.evil}").locator("main").inner_text()
        assert shown.count(EVIL) >= 4


SHIFTED = """(() => { const by = BY_S * 1000, real = Date, now = real.now;
  Date = class extends real { constructor(...given) { given.length ? super(...given) : super(now() + by); }
    static now() { return now() + by; } }; })()"""


def test_two_clicks_act_once_and_going_back_shows_what_became_of_the_job(
    app: App, world: World, visit: Callable[..., Any]
) -> None:
    held = world.jobs[State.HELD]
    with Site(app) as site, visit(site.url) as tab:
        page = tab.see(f"/jobs/{held.id}")
        page.locator("details.act summary").first.click()
        page.locator("details.act[open] button").dblclick()
        expect(page.locator("#said")).to_have_text("It continues.")
        assert [event.kind for event in app.store.journal(held.id)].count("revived") == 1
        page.go_back()
        expect(page.locator(".chip").first).to_have_text("ready")
        expect(page.locator("details.act[open]")).to_have_count(0)


@pytest.mark.parametrize("by_s", [-86_400, 86_400])
def test_a_browser_with_a_wrong_clock_shows_the_times_of_the_store(app: App, browser: Browser, by_s: int) -> None:
    job = add(app.store)
    context = browser.new_context(timezone_id="Pacific/Auckland", locale="en-GB")
    try:
        context.add_init_script(SHIFTED.replace("BY_S", str(by_s)))
        with Site(app) as site:
            page = context.new_page()
            page.goto(f"{site.url}/jobs/{job.id}")
            page.wait_for_function("document.getElementById('clock').textContent.length === 8")
            assert (
                page.evaluate("Math.abs(Date.now() - Number(document.documentElement.dataset.now) * 1000)") > 80_000_000
            )
            expect(page.locator("time[data-when]").first).to_have_text(re.compile(r"^\d+ s ago$"))
    finally:
        context.close()


def test_an_act_can_be_made_without_javascript(app: App, world: World, browser: Browser) -> None:
    ready = world.jobs[State.READY]
    context = browser.new_context(java_script_enabled=False)
    try:
        with Site(app) as site:
            page = context.new_page()
            page.goto(f"{site.url}/jobs/{ready.id}")
            page.locator("details.act summary", has_text="Cancel").click()
            page.locator("details.act[open] button").click()
            expect(page.locator("#said")).to_be_visible()
            assert row(app.store, ready.id).state is State.CANCELLED
    finally:
        context.close()


def test_a_tab_shows_no_jobs_after_a_logout_in_another_one(app: App, world: World, browser: Browser) -> None:
    context = browser.new_context(locale="en-GB")
    try:
        with Site(app, needs_token=True) as site:
            secret = add_token(app, "ann", "operator")
            one, other = context.new_page(), context.new_page()
            one.goto(site.url)
            one.get_by_label("Token").fill(secret)
            one.get_by_role("button").click()
            expect(one.locator(".who")).to_have_text("ann · operator")
            other.goto(f"{site.url}/jobs/{world.evil}")
            one.locator("form[action$=logout] button").first.click()
            expect(one.get_by_label("Token")).to_be_visible()
            expect(other.get_by_label("Token")).to_be_visible(timeout=15_000)
            one.go_back()
            expect(one.get_by_label("Token")).to_be_visible()
    finally:
        context.close()


def test_markup_in_what_a_task_says_of_itself_stays_text(app: App, visit: Callable[..., Any]) -> None:
    @app.task(name="says", queue="limited")
    def says(ctx: Context) -> None:
        logging.getLogger("shop").warning(EVIL)
        ctx.progress(0.5, note=EVIL)
        raise ValueError(EVIL)

    says.using(tags=[EVIL], meta={EVIL: EVIL}, key=EVIL).enqueue()
    app.tick()
    [job] = app.store.find(Filter())
    choose_limits(app.store, EVIL, {"limit": 3}, actor=EVIL, note=EVIL)
    with Site(app) as site, visit(site.url) as tab:
        for path in (f"/jobs/{job.id}", "/limits", "/audit", "/errors"):
            page = tab.see(path)
            assert page.locator("main img, main script").count() == 0
            assert page.evaluate("document.title") != "owned"
            said = "<script>" if path == "/errors" else EVIL  # quoted parts of an error are masked
            assert said in page.locator("main").inner_text(), path


@pytest.mark.parametrize("theme", ["auto", "dark"])
def test_paper_gets_dark_text_whatever_the_theme(app: App, world: World, visit: Callable[..., Any], theme: str) -> None:
    with Site(app) as site, visit(site.url, color_scheme="dark") as tab:
        page = tab.see(f"/jobs/{world.evil}")
        page.evaluate("(theme) => { document.documentElement.dataset.theme = theme; }", theme)
        ink = "getComputedStyle(document.querySelector('.chip')).color"
        on_screen = page.evaluate(ink)
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate(ink) != on_screen
        check_accessible(page, f"printed {theme}", ["color-contrast"])


def test_a_narrow_screen_shows_the_page_that_one_is_on_in_the_navigation(app: App, visit: Callable[..., Any]) -> None:
    with Site(app) as site, visit(site.url, viewport={"width": 390, "height": 800}) as tab:
        here = tab.see("/settings").locator(".rail [aria-current]")
        expect(here).to_be_in_viewport(ratio=1)
