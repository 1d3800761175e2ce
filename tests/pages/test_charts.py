"""The charts of the overview: drawn, told as text, and still there after the page has changed under them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from holdfast.app import App
from holdfast.core.verdict import Succeeded
from tests.factory import add, settle, start
from tests.pages.site import Site
from tests.pages.test_browser import Visitor
from tests.pages.test_pages import HTML, read, serve
from tests.server.client import Client

__all__ = ["serve"]


def data_of(html: str) -> list[dict[str, Any]]:
    return [json.loads(unescape(text)) for text in re.findall(r'data-chart="([^"]*)"', html)]


def test_the_overview_has_charts_whose_numbers_are_a_table_too(serve: Callable[..., Client], app: App) -> None:
    client: Client = serve()
    assert not data_of(read(client, "/"))
    for _ in range(3):
        settle(app.store, start(app.store, queue="mail"), Succeeded())
    html = read(client, "/?window=day")
    jobs, waits, runs = data_of(html)
    assert [each["label"] for each in jobs["series"]] == ["done", "dead", "arrived"]
    assert (jobs["series"][0]["values"][-1], len(jobs["x"]), jobs["unit"]) == (3, 96, "jobs")
    assert (waits["unit"], runs["series"][0]["values"][-1]) == ("s", None)
    assert re.search(r'role="img" aria-label="Jobs: [^"]+"', html)
    assert html.partition('id="flow-table"')[2].count("<tr>") == 2
    assert client.get("/?window=month", headers=HTML).status_code == 422


@pytest.mark.slow  # a browser
def test_charts_are_drawn_fit_the_window_and_survive_a_change(browser: Browser) -> None:
    with App("memory://") as app:
        settle(app.store, start(app.store, queue="mail"), Succeeded())
        with Site(app) as site:
            tab = Visitor(browser, site.url)
            try:
                page = tab.see("/?window=day")
                expect(page.locator(".chart .uplot canvas")).to_have_count(3)
                ready = page.locator(".states a", has_text="ready").locator("b")
                add(app.store)
                expect(ready).to_have_text("1", timeout=15_000)
                expect(page.locator(".chart .uplot canvas")).to_have_count(3)
                page.set_viewport_size({"width": 390, "height": 900})
                page.wait_for_function("document.querySelector('.uplot').clientWidth < 380")
                page.locator("#flow-table summary").click()
                expect(page.locator("#flow-table tbody tr")).to_have_count(1)
                assert not tab.wrong
            finally:
                tab.page.close()
