"""The checks of a request: its Host, its origin, its token or cookie.

    Host header ─▶ read-only ─▶ route ─▶ token or cookie ─▶ same site? ─▶ role ─▶ scope (in the handlers)

Tokens are read from the store at most every two seconds, so a revoked one is refused by every server within five.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from holdfast.clock import Clock
from holdfast.core.access import SESSION_S, Token, User, session_of, token_for, token_of_session
from holdfast.errors import HoldfastError
from holdfast.server.options import ServerOptions, address_in, is_loopback
from holdfast.server.problems import Problem
from holdfast.stores.protocol import Store

log = logging.getLogger("holdfast.server")

FRESH_S = 2.0  # how long tokens are believed without another look
STALE_S = 5.0  # and how long while the store cannot be read
AGAIN_S = 0.5  # how soon an unknown token may let the server look again
USED_EVERY_S = 60.0  # how often the last use of a token is written
FAILURES_MAX = 5  # failed logins of one address
WINDOW_S = 60.0
DELAY_MAX_S = 900.0
ADDRESSES_MAX = 10_000
SECRET_MAX = 500  # characters
COOKIE = "holdfast_session"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")


@dataclass(frozen=True, slots=True)
class Origin:
    """The sender of a request, and the address by which its sender knows this server."""

    client: str  # address
    host: str  # with the port, as in the URL that the client uses
    is_https: bool
    is_forwarded: bool  # a header says that a proxy sent it on

    @property
    def own(self) -> str:
        """Return the origin of this server, as a browser writes it."""
        return f"{'https' if self.is_https else 'http'}://{self.host}"


def origin_of(peer: str, is_https: bool, headers: Mapping[str, str], options: ServerOptions) -> Origin:
    """Read where a request comes from. Headers of a proxy count only if it is trusted."""
    forwarded = any(name in headers for name in _FORWARDED)
    host = headers.get("host", "")
    if not (options.trusted_proxies and address_in(peer, options.trusted_proxies)):
        return Origin(peer, host.lower(), is_https, forwarded)
    client = peer
    for hop in reversed([each.strip() for each in headers.get("x-forwarded-for", "").split(",") if each.strip()]):
        client = hop
        if not address_in(hop, options.trusted_proxies):
            break
    proto = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    named = headers.get("x-forwarded-host", "").rpartition(",")[2].strip()
    return Origin(client, (named or host).lower(), proto == "https" if proto else is_https, forwarded)


def check_host(host: str, options: ServerOptions) -> None:
    """Raise `wrong_host` unless the server goes by this name: a web page that rebinds a name reads nothing then."""
    if options.allowed_hosts is None:
        return
    found = _HOST.fullmatch(host)
    name = found[1].lower().rstrip(".") if found else ""
    if name == "localhost" or name.endswith(".localhost") or name in (each.lower() for each in options.allowed_hosts):
        return
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        raise Problem(
            "wrong_host", f"this server does not go by the name {name[:100]!r}; allow it with --allowed-host"
        ) from None


def check_site(headers: Mapping[str, str], origin: Origin) -> None:
    """Raise `cross_site` for an unsafe request that a page of another site has sent in the name of a person."""
    site = headers.get("sec-fetch-site")
    if site is not None:
        if site != "same-origin":
            raise Problem("cross_site", f"a page of another site ({site[:20]}) sent this request")
        return
    sent_by = headers.get("origin")
    if sent_by is not None:
        if sent_by.lower() != origin.own:
            raise Problem("cross_site", f"a page of {sent_by[:100]!r} sent this request, not one of {origin.own}")
        return
    if "cookie" in headers:
        raise Problem("cross_site", "the request has a cookie, and neither Sec-Fetch-Site nor Origin")


class Failures:
    """Counts failed logins of addresses: five a minute, then a delay that doubles."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._of: OrderedDict[str, deque[float]] = OrderedDict()
        self._until: dict[str, tuple[float, float]] = {}  # until when, and how long the delay was
        self.count = 0

    def check(self, address: str) -> None:
        """Raise `rate_limited` if this address must wait."""
        address = _household(address)
        with self._lock:
            until, _ = self._until.get(address, (0.0, 0.0))
            left_s = until - self._clock.lease()
        if left_s > 0:
            raise Problem(
                "rate_limited",
                f"too many logins from this address have failed; try again in {left_s:.0f} s",
                headers={"retry-after": str(int(left_s) + 1)},
            )

    def note(self, address: str) -> None:
        """Count a failure."""
        address, now = _household(address), self._clock.lease()
        with self._lock:
            self.count += 1
            tries = self._of.setdefault(address, deque(maxlen=FAILURES_MAX))
            self._of.move_to_end(address)
            tries.append(now)
            if len(tries) == FAILURES_MAX and now - tries[0] <= WINDOW_S:
                _, delay_s = self._until.get(address, (0.0, WINDOW_S / 8))
                delay_s = min(delay_s * 2, DELAY_MAX_S)
                self._until[address] = (now + delay_s, delay_s)
            if len(self._of) > ADDRESSES_MAX:
                oldest, _ = self._of.popitem(last=False)
                self._until.pop(oldest, None)


def _household(address: str) -> str:
    """Return what one client has of addresses: of IPv6 it has a whole network."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if known.version == 4 or known.ipv4_mapped is not None:
        return str(getattr(known, "ipv4_mapped", None) or known)
    return str(ipaddress.ip_network((known, 64), strict=False))


class Tokens:
    """The tokens of the store, as they were a moment ago."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._known: list[Token] = []
        self._read_at = self._again_at = float("-inf")
        self._used: dict[str, float] = {}  # not written yet
        self._written_at: dict[str, float] = {}

    @property
    def is_fresh(self) -> bool:
        """Say whether what is known is new enough."""
        return self._clock.lease() - self._read_at < FRESH_S and not self._used

    @property
    def known(self) -> list[Token]:
        """Return the tokens as they were read last."""
        return self._known

    def all(self) -> list[Token]:
        """Return the tokens. Raises `StoreError` when the store cannot be read and those that are known are too old."""
        with self._lock:
            now = self._clock.lease()
            if now - self._read_at >= FRESH_S:
                try:
                    self._known = self._store.tokens.all()
                    self._read_at = now
                except HoldfastError:
                    if now - self._read_at >= STALE_S:
                        raise
            self._write()
            return self._known

    def fresh(self) -> list[Token]:
        """Return what is known if that is new enough, without waiting for anything; else the same as `all`."""
        return self._known if self.is_fresh else self.all()

    def use(self, token: Token, wall: float) -> None:
        """Note the use of a token, at most once a minute."""
        if wall - self._written_at.get(token.name, float("-inf")) >= USED_EVERY_S:
            self._written_at[token.name] = wall
            self._used[token.name] = wall

    def look_again(self) -> bool:
        """Let the next `all` ask the store; False if it was asked so a moment ago."""
        now = self._clock.lease()
        if now - self._again_at < AGAIN_S:
            return False
        self._again_at, self._read_at = now, float("-inf")
        return True

    def _write(self) -> None:
        used, self._used = self._used, {}
        if used:
            try:
                self._store.tokens.used(used)
            except HoldfastError as error:
                log.warning("could not note the last use of tokens: %s", error)


class Gate:
    """Finds the user of a request."""

    def __init__(self, store: Store, clock: Clock, options: ServerOptions) -> None:
        self._clock = clock
        self._options = options
        self.tokens = Tokens(store, clock)
        self.failures = Failures(clock)
        self._ended: OrderedDict[str, float] = OrderedDict()  # cookies that were taken back, and when they expire

    def user(self, headers: Mapping[str, str], origin: Origin) -> tuple[User, Token | None]:
        """Return the user and the token. Raises `unauthenticated`, or `rate_limited`."""
        wall = self._clock.wall()
        bearer = bearer_of(headers)
        if bearer is not None:
            return self._by_secret(bearer, origin.client, wall)
        cookie = session_cookie(headers)
        if cookie is not None:
            token = self._of_session(cookie, wall)
            if token is not None:
                self.tokens.use(token, wall)
                return _user(token), token
        if not self._options.needs_token and not origin.is_forwarded and is_loopback(origin.client):
            return User("anonymous", "admin"), None
        why = "send the header `authorization: Bearer TOKEN`"
        if not self._options.needs_token and origin.is_forwarded:
            why += "; a request that a proxy forwards needs a token also on loopback"
        raise _unauthenticated(why)

    def _of_session(self, cookie: str, wall: float) -> Token | None:
        return None if cookie in self._ended else token_of_session(cookie, self.tokens.fresh(), wall)

    def end_session(self, cookie: str) -> None:
        """Refuse a cookie from now on, until it expires by itself."""
        wall = self._clock.wall()
        while self._ended and next(iter(self._ended.values())) < wall:
            self._ended.popitem(last=False)
        if self._of_session(cookie, wall) is not None:  # others take no memory
            self._ended[cookie] = wall + SESSION_S

    def still_holds(self, token: Token | None, cookie: str | None) -> bool:
        """Say whether a request would still be let in as it was. False if the store cannot say."""
        if token is None:
            return True
        wall = self._clock.wall()
        try:
            known = {each.name: each for each in self.tokens.fresh()}
            if cookie is not None and self._of_session(cookie, wall) is None:
                return False
        except HoldfastError:
            return False
        found = known.get(token.name)
        if found is None or not found.is_valid(wall):
            return False
        return (found.sha256, found.role, found.queues) == (token.sha256, token.role, token.queues)

    def known_user(self, headers: Mapping[str, str]) -> tuple[User, Token] | None:
        """Return the user of a bearer token that is known without asking the store. For the event loop."""
        secret = bearer_of(headers)
        if secret is None or len(secret) > SECRET_MAX or not self.tokens.is_fresh:
            return None
        token = token_for(secret, self.tokens.known, self._clock.wall())
        return None if token is None else (_user(token), token)

    def _by_secret(self, secret: str, address: str, wall: float) -> tuple[User, Token]:
        token = token_for(secret, self.tokens.all(), wall) if len(secret) <= SECRET_MAX else None
        if token is None and self.tokens.look_again():  # it may have been made a moment ago
            token = token_for(secret, self.tokens.all(), wall) if len(secret) <= SECRET_MAX else None
        if token is None:
            self.failures.check(address)
            self.failures.note(address)
            raise _unauthenticated("the token is unknown, revoked or expired")
        self.tokens.use(token, wall)
        return _user(token), token

    def login(self, secret: str, origin: Origin, path: str) -> tuple[User, str]:
        """Return the user and the cookie of a session. Raises as `user` does."""
        self.failures.check(origin.client)
        user, token = self._by_secret(secret, origin.client, self._clock.wall())
        return user, cookie_of(session_of(token, secret, self._clock.wall()), origin.is_https, path, int(SESSION_S))


def cookie_of(value: str, is_https: bool, path: str, age_s: int) -> str:
    """Write a Set-Cookie header."""
    secure = "; Secure" if is_https else ""
    return f"{COOKIE}={value}; Path={path or '/'}; Max-Age={age_s}; HttpOnly; SameSite=Lax{secure}"


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """Return the secret of the authorization header."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else None


def session_cookie(headers: Mapping[str, str]) -> str | None:
    """Return the login cookie."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found is not None else None


def _user(token: Token) -> User:
    return User(token.name, token.role, token.queues)


def _unauthenticated(detail: str) -> Problem:
    return Problem("unauthenticated", detail, headers={"www-authenticate": 'Bearer realm="holdfast"'})
