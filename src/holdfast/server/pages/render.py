"""Renders the pages: templates, texts, the frame around each page, and answers that refuse."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache, partial
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from holdfast import insight
from holdfast.core.access import ADMINS, OPERATORS
from holdfast.core.durations import iso
from holdfast.server.call import Call
from holdfast.server.pages.page import HTML, Context, Page
from holdfast.server.pages.pulse import Pulse
from holdfast.server.pages.snapshot import Snapshot
from holdfast.server.pages.static_files import static_files
from holdfast.server.pages.texts import Texts
from holdfast.server.pages.tree import tree
from holdfast.server.problems import Problem
from holdfast.server.routes import Answer
from holdfast.version import __version__

if TYPE_CHECKING:
    from holdfast.server.asgi import Server

SHARED_MAX = 64  # live parts that are kept
SHORT_MAX = 24  # characters of an id that a caller chose
_UUID = 36
THEMES = ("auto", "light", "dark")
# Characters that cannot be seen, or that move others: controls, zero-width spaces, changes of direction. Joiners are
# not among them: languages and emoji need them.
_UNSEEN = re.compile(
    "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\\x7f-\\x9f\\u00ad\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff]"
)
_BETWEEN_TAGS = re.compile(r">[^<]+")


class Pages:
    """The pages of one server."""

    def __init__(self, server: Server, pages: tuple[Page, ...]) -> None:
        self._server = server
        self._pages = pages
        self.texts = Texts(server.options.language)
        self.snapshot = Snapshot(server.app)
        self.pulse = Pulse(server, self.snapshot)
        self._lock = threading.Lock()
        self._shared: OrderedDict[tuple[Any, ...], tuple[float, bytes]] = OrderedDict()

    def has(self, path: str) -> bool:
        """Say whether there is a page at this path."""
        return any(page.path == path for page in self._pages)

    def show(self, page: Page, call: Call) -> Answer:
        """Answer with a page; with its live part alone when the page in the browser asks for that."""
        partly = call.headers.get("hx-request-type") == "partial"
        query: bytes = call.scope.get("query_string", b"")
        key = (page.name, tuple(call.path.items()), query, call.user.role, call.user.queues, call.base)
        if partly and page.shared_s and (kept := self._kept(key, page.shared_s)) is not None:
            return _content(kept, call)
        found = page.view(call)
        if isinstance(found, Answer):
            return found
        content = self._render(page, call, found, partly=partly)
        if partly and page.shared_s:
            self._keep(key, content)
        return _content(content, call)

    def _kept(self, key: tuple[Any, ...], age_s: float) -> bytes | None:
        with self._lock:
            at, content = self._shared.get(key, (float("-inf"), b""))
        return content if self._server.app.clock.lease() - at < age_s else None

    def _keep(self, key: tuple[Any, ...], content: bytes) -> None:
        with self._lock:
            self._shared[key] = self._server.app.clock.lease(), content
            self._shared.move_to_end(key)
            while len(self._shared) > SHARED_MAX:
                self._shared.popitem(last=False)

    def answer(self, name: str, call: Call, found: Context, *, status: int = 200) -> Answer:
        """Answer a form with a page of its own, such as a count before an act. `name`: of its template and texts."""
        page = Page(name, call.route.path, lambda call: found)
        return Answer(content=self._render(page, call, found, partly=False), status=status, media_type=HTML)

    def _render(self, page: Page, call: Call, found: Context, *, partly: bool) -> bytes:
        facts, options = self.snapshot.read(), self._server.options
        template = _environment().get_template(f"{page.name}.html")
        texts = partial(self.texts.of, page.name)
        said = dict(parse_qsl(call.scope.get("query_string", b"").decode("ascii", "replace"))).get("said", "")
        context = {
            **self._common(call.base, call.headers),
            "layout": "live_part.html" if partly else "layout.html",
            "t": texts,
            "page": page.name,
            "path": _path(call),
            "user": call.user,
            "may_act": call.user.has(OPERATORS) and not options.read_only,
            "may_all": call.user.has(ADMINS) and not options.read_only,
            "may_log_out": call.cookie is not None,
            "read_only": options.read_only,
            "require_note": options.require_note,
            "nav": [] if partly else list(self._nav(page, call, facts)),
            "now": facts.now.wall,
            "store_url": insight.shown_url(call.store.url),
            "said": texts(f"said_{said}") if said and self.texts.has(page.name, f"said_{said}") else None,
        }
        return _seen(template.render({**context, **found})).encode()

    def _nav(self, page: Page, call: Call, facts: Any) -> Iterator[dict[str, Any]]:
        for each in self._pages:
            hidden = each.scope == "whole" and call.user.queues is not None
            if each.nav and call.user.has(each.roles) and not hidden:
                yield {
                    "label": self.texts.of(each.name, "title"),
                    "href": call.base + each.path,
                    "key": each.key,
                    "badge": each.badge(facts, call.user) if each.badge else 0,
                    "badge_for": each.name,
                    "is_here": page.path == each.path or (each.path != "/" and page.path.startswith(each.path + "/")),
                }

    def _common(self, base: str, headers: Mapping[str, str]) -> dict[str, Any]:
        theme = _cookie(headers, "holdfast_theme")
        return {
            "base": base,
            "url": partial(_url, base),
            "static": lambda name: f"{base}/static/{static_files()[name].name}",
            "language": "en" if self.texts.language == "pseudo" else self.texts.language,
            "theme": theme if theme in THEMES else "auto",
            "version": __version__,
            "word": self.words(),
        }

    def words(self) -> Callable[[str], str]:
        """Return what names states and kinds of events as people read them."""
        return lambda key: self.texts.of("words", key) if self.texts.has("words", key) else key.replace("_", " ")

    def bare(
        self, name: str, base: str, headers: Mapping[str, str], given: Context, status: int = 200, **more: str
    ) -> Answer:
        """Answer with a page without navigation: a login, or a refusal."""
        context = {**self._common(base, headers), "t": partial(self.texts.of, name), "page": name, **given}
        content = _seen(_environment().get_template(f"{name}.html").render(context)).encode()
        return Answer(content=content, status=status, headers=more, media_type=HTML)

    def refusal(self, problem: Problem, headers: Mapping[str, str], base: str, request_id: str, path: str) -> Answer:
        """Answer with a page that says why a request was refused; with the login if that is what it takes."""
        is_full = headers.get("hx-request") is None
        if problem.code == "unauthenticated" and is_full and self._server.has_login:
            target = f"?{urlencode({'next': path})}" if path not in ("/", "") else ""
            return Answer(content=b"", status=303, headers={"location": f"{base}/login{target}"}, media_type=HTML)
        job = problem.more.get("job") if isinstance(problem.more.get("job"), dict) else None
        given = {"problem": problem, "request_id": request_id, "job": job}
        return self.bare("refusal", base, headers, given, problem.kind.status, **problem.headers)


def _seen(html: str) -> str:
    """Write characters that cannot be seen as their numbers: no name looks like another one. Only texts change, so that
    forms send back what is stored."""
    if _UNSEEN.search(html) is None:
        return html
    return _BETWEEN_TAGS.sub(lambda text: _UNSEEN.sub(lambda it: f"[U+{ord(it[0]):04X}]", text[0]), html)


def wants_page(headers: Mapping[str, str]) -> bool:
    """Say whether a person looks at the answer."""
    return "text/html" in headers.get("accept", "")


def _content(content: bytes, call: Call) -> Answer:
    tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    if call.headers.get("if-none-match") == tag:
        return Answer(content=b"", status=304, headers={"etag": tag}, media_type=HTML)
    return Answer(content=content, headers={"etag": tag, "vary": "hx-request-type, cookie"}, media_type=HTML)


def _path(call: Call) -> str:
    """Return the path and the query of this request, below the place where the server is mounted."""
    path = call.route.path
    for name, value in call.path.items():
        path = path.replace("{" + name + "}", quote(value, safe=""))
    query = call.scope.get("query_string", b"").decode("ascii", "replace")
    kept = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != "said"]
    return path + (f"?{urlencode(kept)}" if kept else "")


def _url(base: str, path: str, *parts: str, **query: Any) -> str:
    """Write an address below the mount. Each of `parts` is one segment, whatever characters it has."""
    given = {name: value for name, value in query.items() if value not in (None, "", (), [])}
    whole = base + path + "".join(f"/{quote(part, safe='')}" for part in parts)
    return whole + (f"?{urlencode(given, doseq=True)}" if given else "")


def _cookie(headers: Mapping[str, str], name: str) -> str | None:
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return None if found is None else found.value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("holdfast.server.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        iso=_iso,
        wall=_wall,
        utc=lambda at: insight.moment(_wall(at)),
        duration=insight.duration,
        brief=insight.brief,
        first_line=insight.first_line,
        number=lambda number: f"{number:,}",
        seconds=_seconds,
        short=_short,
        coded=_coded,
        without=lambda fields, name: {each: value for each, value in fields.items() if each != name},
        percent=lambda share: f"{share:.0%}",
        tree=tree,
    )
    return environment


def _seconds(time_s: float | None) -> str:
    """Write a short length of time, which may be less than a second; a hyphen if there is none."""
    if time_s is None:
        return "-"
    if time_s < 1.0:
        return f"{time_s * 1000:.0f} ms"
    return f"{time_s:.1f} s" if time_s < 10.0 else insight.brief(time_s)


def _short(job_id: str) -> str:
    """Write an id in short. The beginning names a job whose id Holdfast made; other ids may begin alike."""
    if len(job_id) == _UUID and set("0123456789abcdef-").issuperset(job_id):
        return job_id[:8]
    return job_id if len(job_id) <= SHORT_MAX else f"{job_id[:SHORT_MAX]}…"


def _coded(text: str) -> Markup:
    """Write what stands in backticks as code."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return escape(text)
    return Markup("").join(Markup("<code>{}</code>").format(part) if at % 2 else part for at, part in enumerate(parts))


def _wall(at: float | str) -> float:
    return datetime.fromisoformat(at).timestamp() if isinstance(at, str) else at


def _iso(at: float | str) -> str:
    return at if isinstance(at, str) else iso(at)
