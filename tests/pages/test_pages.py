"""Every page of the table, without a browser: who may see it, what stands in it, and what refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import pytest

from holdfast.app import App
from holdfast.core.access import ROLES, Role
from holdfast.server.pages.page import Page
from holdfast.server.pages.static_files import SCRIPT_MAX, static_files
from holdfast.server.pages.table import PAGE_ROUTES, PAGES
from holdfast.server.routes import OPEN, Route
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from holdfast.testing.faults import Fault, FaultyStore
from tests.pages.world import BIG, EVIL, World, path_of
from tests.server.client import PEER, Client, add_token

HTML = {"accept": "text/html"}
LIVE = {**HTML, "hx-request": "true", "hx-request-type": "partial"}
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
SHOWN = [page for page in PAGES if page.roles is not OPEN]
EACH_SHOWN = pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.name)
FORMS = [route for route in PAGE_ROUTES if route.method == "POST" and route.roles is not OPEN]


@pytest.fixture
def serve(app: App) -> Iterator[Callable[..., Client]]:
    opened: list[Client] = []

    def serve(**options: Any) -> Client:
        opened.append(Client(app, **{"dev": True, **options}))
        return opened[-1]

    yield serve
    for client in opened:
        client.close()


def read(client: Client, path: str, **given: Any) -> str:
    answer = client.get(path, headers={**HTML, **given.pop("headers", {})}, **given)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    return answer.text


class Texts(HTMLParser):
    """Collects the texts of a page that are for people, and are not data; and what a strict policy would refuse."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.links: list[str] = []
        self.refused: list[str] = []
        self._stack: list[tuple[str, bool]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        is_data = given.get("translate") == "no" or bool(self._stack and self._stack[-1][1])
        is_data = is_data or tag in ("kbd", "title", "script", "style")
        if tag not in ("meta", "link", "input", "img", "br"):
            self._stack.append((tag, is_data))
        if not is_data:
            self.texts += [given[name] for name in ("title", "aria-label", "placeholder", "alt") if given.get(name)]
        self.links += [given[name] for name in ("href", "action", "src", "hx-get") if name in given]
        self.refused += [name for name in given if name.startswith("on") or name == "style"]
        if tag == "style" or (tag == "script" and not given.get("src")):
            self.refused.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._stack and self._stack.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not (self._stack and self._stack[-1][1]) and re.search(r"[A-Za-z]", data):
            self.texts.append(data.strip())


@EACH_SHOWN
@pytest.mark.parametrize("role", ROLES)
def test_a_role_sees_the_pages_that_are_for_it(
    serve: Callable[..., Client], app: App, world: World, page: Page, role: Role
) -> None:
    client = serve(peer=PEER)
    answer = client.get(path_of(page, world), token=add_token(app, role, role), headers=HTML)
    assert answer.status_code == (200 if role in page.roles else 403)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


@EACH_SHOWN
def test_a_token_of_some_queues_sees_nothing_of_others(
    serve: Callable[..., Client], app: App, world: World, page: Page
) -> None:
    token = add_token(app, "scoped", "admin", ("elsewhere",))
    answer = serve(peer=PEER).get(path_of(page, world), token=token, headers=HTML)
    assert answer.status_code in (200, 303, 404)
    for text in ("reports.build", "queue-1", "ann@example.org"):
        assert text not in answer.text


@EACH_SHOWN
def test_a_stranger_is_led_to_the_login_and_back(serve: Callable[..., Client], world: World, page: Page) -> None:
    path = path_of(page, world)
    answer = serve(peer=PEER).get(path, headers=HTML)
    assert answer.status_code == 303
    where = urlsplit(answer.headers["location"])
    assert where.path == "/login"
    assert httpx.QueryParams(where.query).get("next", "/") == path


@EACH
def test_every_text_of_a_page_is_in_the_files_of_texts(serve: Callable[..., Client], world: World, page: Page) -> None:
    found = Texts(read(serve(language="pseudo"), path_of(page, world)))
    assert not [text for text in found.texts if not re.search(r"^[^A-Za-z]*⟦.*⟧[^A-Za-z]*$", text, re.DOTALL)]


@EACH
def test_a_page_has_nothing_that_the_policy_refuses(serve: Callable[..., Client], world: World, page: Page) -> None:
    html = read(serve(), path_of(page, world))
    assert not Texts(html).refused
    assert EVIL not in html
    assert "<img src=x" not in html
    assert "49" not in re.findall(r"&amp;(\d\d)", html)  # {{7*7}}


@EACH
@pytest.mark.parametrize("prefix", ["", "/ops/jobs"])
def test_every_link_stays_below_the_prefix(serve: Callable[..., Client], world: World, page: Page, prefix: str) -> None:
    for link in Texts(read(serve(prefix=prefix), prefix + path_of(page, world))).links:
        assert link.startswith((prefix + "/", "#")), link
        assert not link.startswith("//")


@EACH_SHOWN
def test_the_live_part_is_a_part_and_is_not_sent_twice(serve: Callable[..., Client], world: World, page: Page) -> None:
    client, path = serve(), path_of(page, world)
    part = client.get(path, headers=LIVE)
    assert part.status_code == 200
    assert "<html" not in part.text
    again = client.get(path, headers={**LIVE, "if-none-match": part.headers["etag"]})
    assert (again.status_code, again.text) == (304, "")


@pytest.mark.parametrize("form", FORMS, ids=lambda route: route.path)
def test_an_act_needs_its_role_its_own_site_and_a_server_that_may_change(
    serve: Callable[..., Client], app: App, world: World, form: Route
) -> None:
    path = path_of(form, world)
    tokens = {role: add_token(app, role, role) for role in ROLES if role not in form.roles}
    open_one, closed, locked = serve(peer=PEER), serve(), serve(read_only=True)
    for role, token in tokens.items():
        answer = open_one.post(path, token=token, headers=HTML, data={"fence": "1"})
        assert answer.status_code == 403, role
    for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}):
        assert closed.post(path, headers={**HTML, **headers}, data={"fence": "1"}).status_code == 403
    assert locked.post(path, headers=HTML, data={"fence": "1"}).status_code == 403


def test_the_style_page_is_for_developers(serve: Callable[..., Client], world: World) -> None:
    assert serve(dev=False).get("/style", headers=HTML).status_code == 404
    assert "Style" in read(serve(), "/style")
    assert str(BIG) in read(serve(), "/style")


def test_a_login_leads_back_and_a_logout_ends_it(serve: Callable[..., Client], app: App) -> None:
    client, secret = serve(needs_token=True), add_token(app, "ann", "operator")
    wrong = client.post("/login", headers=HTML, data={"token": "nothing", "next": "/jobs"})
    assert wrong.status_code == 401
    assert "unknown" in wrong.text
    right = client.post("/login", headers=HTML, data={"token": secret, "next": "/jobs?state=held"})
    assert (right.status_code, right.headers["location"]) == (303, "/jobs?state=held")
    cookie = {**HTML, "cookie": right.headers["set-cookie"].partition(";")[0]}
    assert "ann" in read(client, "/", headers=cookie)
    out = client.post("/logout", headers={**cookie, "sec-fetch-site": "same-origin"}, data={"x": "1"})
    assert out.headers["location"] == "/login"
    client.http.cookies.clear()
    assert client.get("/", headers=cookie).status_code == 303


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil.example", "x", "/a\nb"])
def test_a_login_leads_to_no_other_host(serve: Callable[..., Client], app: App, target: str) -> None:
    client = serve(needs_token=True)
    answer = client.post("/login", headers=HTML, data={"token": add_token(app, "ann"), "next": target})
    assert answer.headers["location"] == "/"


def test_scripts_and_styles_are_small_and_never_change_under_a_name(serve: Callable[..., Client]) -> None:
    assert len(static_files()["holdfast.js"].content) < SCRIPT_MAX
    client = serve(needs_token=True)
    for each in static_files().values():
        answer = client.get(f"/static/{each.name}")
        assert answer.content == each.content
        assert "immutable" in answer.headers["cache-control"]
    assert client.get("/static/nothing.js").status_code == 404


def test_an_error_is_a_page_for_people_and_a_problem_for_programs(serve: Callable[..., Client]) -> None:
    client = serve()
    page = client.get("/nothing", headers=HTML)
    assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert client.get("/nothing").headers["content-type"] == "application/problem+json"


def test_a_store_that_is_down_is_said_so_and_never_shown_as_empty(clock: FakeClock) -> None:
    down: list[Fault] = []
    store = FaultyStore(MemoryStore(clock=clock), lambda verb: down[0] if down else None)
    with App("memory://", clock=clock) as app:
        app.opener = lambda: cast(Store, store)
        client = Client(app)
        try:
            assert read(client, "/")
            down.append(Fault(error=True))
            clock.advance(2)
            for headers in (HTML, LIVE):
                answer = client.get("/", headers=headers)
                assert answer.status_code == 503
                assert "The store cannot be used" in answer.text
        finally:
            down.clear()
            client.close()
