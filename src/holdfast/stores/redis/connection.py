"""The connections to a Redis or Valkey server: addresses, scripts, and what each failure means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import sha1
from importlib import resources
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis
from redis import exceptions
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.clock import Clock, SystemClock
from holdfast.core.records import Moment
from holdfast.errors import (
    BadURL,
    StoreDamaged,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreLost,
    StoreMissing,
    StoreReadOnly,
    StoreUnavailable,
    StoreUnsupported,
)
from holdfast.stores.urls import shown_url

T = TypeVar("T")
ANSWER_S = 10.0  # the longest wait for an answer
CONNECT_S = 3.0
CLOCK_S = 5.0  # how long the difference to the server's clock is believed
OLDEST = (7, 0)
_LOCAL = SystemClock()
_NAMES = ("rows", "commit", "claim", "newest", "history", "migrate")


class Options(NamedTuple):
    """An address of a store, and the options in it."""

    url: str  # for the driver
    shown: str  # without its password
    prefix: str

    @classmethod
    def parse(cls, url: str) -> Options:
        """Read an address; raise `BadURL` for an option that is not known."""
        parts = urlsplit(url)
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        prefix = given.pop("prefix", "holdfast")
        if not prefix.isprintable() or not prefix or set("{}") & set(prefix):
            raise BadURL("the option prefix= of the store address must be printable text without braces")
        if unknown := sorted(given.keys() - {"db"}):
            raise BadURL(f"the store address has the option {unknown[0]!r}; known are db and prefix")
        plain = urlunsplit(parts._replace(query=urlencode(given)))
        return cls(plain, shown_url(url), f"{{{prefix}}}:")


class Script(NamedTuple):
    """A script as the server knows it: by the hash of its text."""

    text: str
    sha: str


def _load(name: str) -> Script:
    folder = resources.files("holdfast.stores.redis") / "scripts"
    own = (folder / f"{name.removesuffix('_more')}.lua").read_text("utf-8")
    first, _, rest = own.partition("\n")
    if name.endswith("_more"):
        first = "#!lua"  # the server refuses it when it is full
    shared = "" if name == "migrate" else (folder / "lib.lua").read_text("utf-8")
    text = f"{first}\n{shared}\n{rest}"
    return Script(text, sha1(text.encode()).hexdigest())  # noqa: S324 - the server asks for this hash


SCRIPTS = {name: _load(name) for name in (*_NAMES, "commit_more")}


class Connections:
    """Connections to one server, for any thread. Each command is sent once: callers repeat."""

    def __init__(self, options: Options, clock: Clock) -> None:
        self.options = options
        self.epoch = ""
        self.ver = 0
        self._clock = clock if not isinstance(clock, SystemClock) else None
        self._ahead: tuple[float, float] | None = None  # the server's clock minus ours, and when that was measured
        self.client = self._open()

    def _open(self, **more: Any) -> redis.Redis:
        settings: dict[str, Any] = {
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": ANSWER_S,
            "socket_connect_timeout": CONNECT_S,
            "protocol": 2,
            "health_check_interval": 0,
        }
        if not self.options.url.startswith("unix"):
            settings["socket_keepalive"] = True
        try:
            return redis.Redis.from_url(self.options.url, **settings | more)
        except (ValueError, TypeError) as error:
            raise BadURL(f"the store address cannot be read: {error}") from None

    def key(self, name: str) -> str:
        """Return the whole name of a key."""
        return self.options.prefix + name

    @property
    def instant(self) -> tuple[str, str]:
        """Return wall and lease time for a script: that of a test's clock, or nothing for the server's own."""
        if self._clock is None:
            return "", ""
        return repr(self._clock.wall()), repr(self._clock.lease())

    def run(self, name: str, *args: Any, first: bool = False) -> Any:
        """Run a script, and give it to the server if that does not have it."""
        script = SCRIPTS[name]
        head = (self.options.prefix,) if first else (self.options.prefix, self.epoch, *self.instant)
        sent = (1, *head, *args)

        def ask() -> Any:
            try:
                return self.client.evalsha(script.sha, *sent)
            except exceptions.NoScriptError:
                return self.client.eval(script.text, *sent)

        return self.explained(ask)

    def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Send commands that only read, in one round trip; their second words are keys without the prefix."""

        def ask() -> list[Any]:
            pipe = self.client.pipeline(transaction=False)
            for name, key, *more in commands:
                pipe.execute_command(name, self.key(key), *more)  # type: ignore[no-untyped-call]
            found: list[Any] = pipe.execute()
            return found

        return self.explained(ask)

    def explained(self, ask: Callable[[], T]) -> T:
        """Call, and raise one of our errors for one of the driver's."""
        try:
            return ask()
        except exceptions.RedisError as error:
            raise self.explain(error) from error

    def explain(self, error: exceptions.RedisError) -> StoreError:
        """Say which of our errors this is."""
        said, shown = " ".join(str(error).split()), self.options.shown
        word = said.partition(" ")[0]
        if "HOLDFASTLOST emptied" in said:
            if not self.epoch:
                return StoreMissing(f"there is no store at {shown}; run holdfast db init")
            return StoreLost(f"{shown} was emptied: what Holdfast had stored there is gone. Look what has become of it")
        if "HOLDFASTLOST replaced" in said:
            return StoreLost(f"{shown} was replaced: another store is at this address now")
        if isinstance(error, exceptions.AuthenticationError) or word in ("NOPERM", "NOAUTH", "WRONGPASS"):
            return StoreDenied(f"{shown} does not let this user in: {said}")
        if isinstance(error, exceptions.OutOfMemoryError) or word == "OOM" or " OOM " in said:
            return StoreFull(f"{shown} has reached its maxmemory and takes no more: {said}")
        if isinstance(error, exceptions.ReadOnlyError) or word in ("READONLY", "MISCONF"):
            return StoreReadOnly(f"{shown} takes no writes: {said}")
        if word == "NOREPLICAS":
            return StoreUnavailable(f"{shown} has too few replicas and takes no writes: {said}")
        if "WRONGTYPE" in said:
            return StoreDamaged(f"{shown}: a key of the store has a value of another program: {said}")
        return StoreUnavailable(f"{shown}: {said or type(error).__name__}")

    def moment(self) -> Moment:
        """Return the instant on the store's clocks."""
        if self._clock is not None:
            return Moment(self._clock.wall(), self._clock.lease())
        local = _LOCAL.lease()
        if self._ahead is None or not 0 <= local - self._ahead[1] < CLOCK_S:
            seconds, micros = self.explained(self.client.time)
            local = _LOCAL.lease()  # after the answer: what is estimated is never ahead of the server
            self._ahead = seconds + micros / 1e6 - local, local
        at = local + self._ahead[0]
        return Moment(at, at)

    def check_version(self) -> None:
        """Raise `StoreUnsupported` for a server that is too old."""
        try:
            found = self.client.info("server")
        except exceptions.NoPermissionError:
            return  # the scripts show it
        except exceptions.RedisError as error:
            raise self.explain(error) from error
        version = str(found.get("valkey_version") or found.get("redis_version") or "")
        if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            raise StoreUnsupported(f"{self.options.shown} is version {version}; Holdfast needs Redis 7.0 or Valkey")

    def close(self) -> None:
        """Close every connection."""
        self.client.close()
        self.client.connection_pool.disconnect()
