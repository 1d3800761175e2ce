"""Every page in a real browser, as a program of its own and mounted in another application."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from holdfast.app import App
from holdfast.server.pages.table import PAGES
from tests.factory import add
from tests.pages.browser.find import AXE
from tests.pages.site import PREFIX, Site
from tests.pages.world import World
from tests.server.client import add_token

pytestmark = pytest.mark.slow  # a browser
PATHS = [page.path for page in PAGES]
WIDTHS = (1440, 768, 390)
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
                for path in PATHS:
                    page = tab.see(path.replace("{id}", world.evil))
                    assert "owned" not in page.title()
                    for width in WIDTHS:
                        page.set_viewport_size({"width": width, "height": 900})
                        wide = page.evaluate("document.documentElement.scrollWidth")
                        assert wide <= width, f"{path} is {wide} wide at {width}"
                    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
                    if not mounted:
                        check_accessible(page, f"{path} {theme}")


def check_accessible(page: Page, where: str) -> None:
    page.evaluate(AXE.read_text("utf-8"))
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    found = page.evaluate("(tags) => axe.run({ runOnly: tags })", tags)["violations"]
    assert not [(where, each["id"], [node["html"] for node in each["nodes"]]) for each in found]


def test_a_page_does_not_jump_while_it_loads(app: App, world: World, visit: Callable[..., Any]) -> None:
    with Site(app) as site, visit(site.url) as tab:
        for path in PATHS:
            page = tab.see(path.replace("{id}", world.evil))
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
            for path in PATHS:
                page.goto(site.url + path.replace("{id}", world.evil))
                assert page.locator("h1").count() == 1
                assert page.locator("main").inner_text().strip()
    finally:
        context.close()
