"""The connections to a Redis or Valkey server: scripts, answers, and what each failure means."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import sha1
from importlib import resources
from typing import Any, NamedTuple

import redis
from redis import exceptions

from holdfast.clock import Clock, SystemClock
from holdfast.core.records import Moment
from holdfast.errors import (
    OutcomeUnknown,
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
from holdfast.stores import row_json
from holdfast.stores.redis.address import ACK_S, Options
from holdfast.stores.redis.topology import Topology

log = logging.getLogger("holdfast.stores")

CLOCK_S = 5.0  # how long the difference to the server's clock is believed
OLDEST = (7, 0)
# Without these nothing is certain, so a foreign value there is an error of each call that needs it.
VITAL = ("meta", "leases", "pairs", "alive", "enrolled", "workers", "set", "queues")
_EMPTY: dict[str, Any] = {name: [] for name in ("ZRANGE", "LRANGE", "SMEMBERS")}  # an index with a foreign value
_EMPTY |= dict.fromkeys(("ZCARD", "SCARD", "ZCOUNT", "LLEN", "SISMEMBER"), 0) | {"ZSCORE": None}
_NO_JOB = 3  # places of the answer of a claim that has found none
_LOCAL = SystemClock()
_NAMES = ("rows", "commit", "claim", "newest", "history", "migrate")
_READING = ("rows", "newest", "history")
_DENIALS = ("NOPERM", "NOAUTH", "WRONGPASS", "DENIED")
_LOST = (exceptions.ConnectionError, exceptions.TimeoutError, OSError)


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
    parts = () if name == "migrate" else ("lib.lua",) if name in _READING else ("lib.lua", "writes.lua")
    shared = "\n".join((folder / part).read_text("utf-8") for part in parts)
    text = f"{first}\n{shared}\n{rest}"
    return Script(text, sha1(text.encode()).hexdigest())  # noqa: S324 - the server asks for this hash


SCRIPTS = {name: _load(name) for name in (*_NAMES, "commit_more")}


class AnswerLost(exceptions.ConnectionError):
    """The connection broke after the commands were sent: they may have been carried out."""


class Connections:
    """Connections to one server, for any thread. Each command is sent once: callers repeat."""

    def __init__(self, options: Options, clock: Clock) -> None:
        self.options = options
        self.epoch = options.epoch
        self.ver = 0  # the number of the last write that was acknowledged
        self.forgotten = 0  # writes that were acknowledged to this process, and that the store does not know any more
        self._clock = clock if not isinstance(clock, SystemClock) else None
        self._ahead: tuple[float, float] | None = None  # the server's clock minus ours, and when that was measured
        self._topology = Topology(options)

    @property
    def client(self) -> redis.Redis:
        """Return a client of the server that has the store."""
        try:
            return self._topology.client
        except exceptions.RedisError as error:
            raise self.explain(error) from error

    def key(self, name: str) -> str:
        """Return the whole name of a key."""
        return self.options.prefix + name

    @property
    def instant(self) -> tuple[str, str]:
        """Return wall and lease time for a script: that of a test's clock, or nothing for the server's own."""
        if self._clock is None:
            return "", ""
        return repr(self._clock.wall()), repr(self._clock.lease())

    def run(self, name: str, *args: Any, first: bool = False, acknowledged: bool = False) -> Any:
        """Run a script, and give it to the server if that does not have it.

        With `acknowledged` it returns after as many replicas as the address says, or the disk, have what was written.
        """
        script = SCRIPTS[name]
        if not self.epoch and not first:
            self._learn()
        head = (self.options.prefix,) if first else (self.options.prefix, self.epoch, *self.instant)
        confirm = self._confirm() if acknowledged and self.options.ack is not None else None
        then = confirm if name == "claim" else None  # a claim that has found no job waits for nobody
        more = [] if confirm is None or then is not None else [confirm]
        changes, seen = name not in _READING, self.ver
        [answer, *confirmed] = self.send(("EVALSHA", script.sha, 1, *head, *args), *more, changes=changes, then=then)
        if isinstance(answer, exceptions.NoScriptError):
            whole = ("EVAL", script.text, 1, *head, *args)
            [answer, *confirmed] = self.send(whole, *more, changes=changes, then=then)
        if isinstance(answer, exceptions.RedisError):
            raise self.explain(answer) from answer
        if name.startswith("commit") and answer[0]:
            self._wrote(seen, answer[1])
        if confirmed:
            self._check_confirmed(confirmed[0])
        return answer

    def _confirm(self) -> tuple[Any, ...]:
        wait_ms = int(ACK_S * 1000)
        return ("WAITAOF", 1, 0, wait_ms) if self.options.ack == "aof" else ("WAIT", self.options.ack, wait_ms)

    def _check_confirmed(self, found: Any) -> None:
        if isinstance(found, exceptions.RedisError):
            raise self.explain(found) from found
        have, wanted = (found[0], 1) if self.options.ack == "aof" else (found, self.options.ack)
        if have < wanted:
            who = "its disk has not" if self.options.ack == "aof" else f"{have} of {wanted} replicas have"
            raise OutcomeUnknown(f"{self.options.shown}: {who} confirmed the write within {ACK_S:g} s; repeat it")

    def _wrote(self, seen: int, number: int) -> None:
        """Note the number of a write; `seen`: the last one that was known when it was sent."""
        if number <= seen:
            self.forgotten = max(self.forgotten, seen + 1 - number)
        self.ver = max(number, self.ver) if number > seen else number

    def ask(self, *commands: Sequence[Any]) -> list[Any]:
        """Send commands that only read, in one round trip; their second words are keys without the prefix.

        The epoch is read with them: an empty answer of another store, or of one that was emptied, is none.
        """
        if not self.epoch:
            self._learn()
        epoch, *found = self.look(("HGET", "meta", "epoch"), *commands)
        if epoch is None or epoch.decode() != self.epoch:
            raise self._lost("emptied" if epoch is None else "replaced")
        return found

    def look(self, *commands: Sequence[Any]) -> list[Any]:
        """Send commands that only read, whatever store there is, if any."""
        found = self.send(*((name, self.key(key), *more) for name, key, *more in commands))
        for place, each in enumerate(found):
            if isinstance(each, exceptions.RedisError):
                name, key, *_ = commands[place]
                if "WRONGTYPE" not in str(each) or key in VITAL or name not in _EMPTY:
                    raise self.explain(each) from each
                row_json.log_once(f"the key {self.key(key)!r} has a value of another program and counts as empty")
                found[place] = _EMPTY[name]
        return found

    def _learn(self) -> None:
        epoch = self.look(("HGET", "meta", "epoch"))[0]
        if epoch is None:
            raise self._lost("emptied")
        self.epoch = epoch.decode()

    def send(self, *commands: tuple[Any, ...], changes: bool = False, then: tuple[Any, ...] | None = None) -> list[Any]:
        """Send commands on one connection, and return their answers, errors among them. Raise if there are none.

        `then`: one more, if the first command was a claim that has found a job.
        """
        for again in (True, False):
            client = self.client
            try:
                with self._topology.used() as client:
                    answers = _exchange(client, commands, then)
            except (exceptions.RedisError, OSError) as error:
                known = error if isinstance(error, exceptions.RedisError) else exceptions.ConnectionError(str(error))
                self._topology.is_elsewhere(client, known)
                explained = self.explain(known)
                if changes and isinstance(error, AnswerLost) and type(explained) is StoreUnavailable:
                    explained = OutcomeUnknown(str(explained))
                raise explained from error
            trouble = [each for each in answers if isinstance(each, exceptions.RedisError)]
            if not any(self._topology.is_elsewhere(client, each) for each in trouble[:1]) or not again:
                break
        return answers

    def _lost(self, how: str) -> StoreError:
        shown = self.options.shown
        if how == "emptied" and not self.epoch:
            return StoreMissing(f"there is no store at {shown}; run holdfast db init")
        if how == "emptied":
            return StoreLost(
                f"{shown} was emptied: what Holdfast had stored there is gone. Find out why; then restore a copy, or "
                "stop the programs that use it and run holdfast db init"
            )
        return StoreLost(f"{shown} was replaced: another store is at this address now. Restart the programs to use it")

    def explain(self, error: exceptions.RedisError) -> StoreError:
        """Say which of our errors this is."""
        said, shown = " ".join(str(error).split()), self.options.shown
        word = said.partition(" ")[0]
        if "HOLDFASTLOST" in said:
            return self._lost("emptied" if "emptied" in said else "replaced")
        if "HOLDFASTTORN" in said:
            return OutcomeUnknown(f"{shown}: a script failed in the middle; the next one finishes it: {said}")
        if isinstance(error, exceptions.AuthenticationError) or word in _DENIALS[1:]:
            return StoreDenied(f"{shown} does not let this user in: {said}; check the user and password of the address")
        if isinstance(error, exceptions.NoPermissionError) or word == "NOPERM" or "ACL failure" in said:
            return StoreDenied(f"{shown} does not allow this user what Holdfast needs: {said}; docs/redis.md lists it")
        if isinstance(error, exceptions.OutOfMemoryError) or word == "OOM" or " OOM " in said:
            return StoreFull(f"{shown} has reached its maxmemory and takes no more: {said}")
        if isinstance(error, exceptions.ReadOnlyError) and self._topology.can_move:
            return StoreUnavailable(f"{shown}: the server that has the store is a replica by now: {said}")
        if isinstance(error, exceptions.ReadOnlyError) or word in ("READONLY", "MISCONF"):
            return StoreReadOnly(f"{shown} takes no writes: {said}")
        if word == "NOREPLICAS":
            return StoreUnavailable(f"{shown} has too few replicas and takes no writes: {said}")
        if "WRONGTYPE" in said:
            return StoreDamaged(f"{shown}: a key of the store has a value of another program: {said}")
        if word == "ERR" and "user_script" in said:
            return StoreDamaged(f"{shown}: a script failed at what is stored; run holdfast db check: {said}")
        return StoreUnavailable(f"{shown}: {said or type(error).__name__}")

    def moment(self) -> Moment:
        """Return the instant on the store's clocks."""
        if self._clock is not None:
            return Moment(self._clock.wall(), self._clock.lease())
        local = _LOCAL.lease()
        if self._ahead is None or not 0 <= local - self._ahead[1] < CLOCK_S:
            [answer] = self.send(("TIME",))
            if isinstance(answer, exceptions.RedisError):
                raise self.explain(answer) from answer
            local = _LOCAL.lease()  # after the answer: what is estimated is never ahead of the server
            self._ahead = int(answer[0]) + int(answer[1]) / 1e6 - local, local
        at = local + self._ahead[0]
        return Moment(at, at)

    def info(self) -> dict[str, str]:
        """Return what the server says about itself; nothing if this user may not ask."""
        [found] = self.send(("INFO",))
        if isinstance(found, exceptions.NoPermissionError):
            return {}
        if isinstance(found, exceptions.RedisError):
            raise self.explain(found) from found
        lines = found.decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def setting(self, name: str) -> str | None:
        """Return a setting of the server; None if this user may not ask, or the server does not have it."""
        [found] = self.send(("CONFIG", "GET", name))
        if isinstance(found, exceptions.RedisError):
            return None
        return found[1].decode() if found else None

    def check_server(self) -> None:
        """Raise `StoreUnsupported` for a server that is too old, that evicts, or that cannot confirm as asked."""
        found, shown = self.info(), self.options.shown
        version = found.get("valkey_version") or found.get("redis_version") or ""
        if version and tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST:
            raise StoreUnsupported(f"{shown} is version {version}; Holdfast needs Redis 7.0 or Valkey")
        policy = found.get("maxmemory_policy", "")
        if policy.startswith("allkeys"):
            raise StoreUnsupported(
                f"{shown} has maxmemory-policy {policy}: it deletes jobs when its memory is full; "
                "set maxmemory-policy noeviction"
            )
        if self.options.ack == "aof":
            [answer] = self.send(("WAITAOF", 1, 0, 1))
            if isinstance(answer, exceptions.ResponseError):
                raise StoreUnsupported(
                    f"{shown} cannot confirm that a write is on its disk, as ack=aof asks: "
                    f"{answer}; set appendonly yes on Redis 7.2 or Valkey, or leave ack=aof out"
                )
        has_replicas = found.get("connected_slaves", "0") != "0"
        if has_replicas and self.options.ack in (None, "aof") and self.setting("min-replicas-to-write") == "0":
            log.warning(
                "%s has replicas and min-replicas-to-write 0: a primary that is cut off from them continues to "
                "acknowledge writes that a failover loses; set min-replicas-to-write 1",
                shown,
            )

    def forget(self) -> None:
        """Let a forked child begin with connections of its own."""
        self._topology = Topology(self.options)

    def close(self) -> None:
        """Close every connection."""
        self._topology.close()


def _exchange(client: redis.Redis, commands: Sequence[tuple[Any, ...]], then: tuple[Any, ...] | None) -> list[Any]:
    """Send commands and read an answer for each. Before they are sent every error means that nothing was done."""
    pool: Any = client.connection_pool
    connection = pool.get_connection()
    try:
        packed = connection.pack_commands(commands)
        try:
            connection.send_packed_command(packed)
            answers = _answers(connection, len(commands))
            if then is not None and isinstance(answers[0], list) and len(answers[0]) > _NO_JOB:
                connection.send_packed_command(connection.pack_commands([then]))
                answers += _answers(connection, 1)
        except _LOST as error:
            connection.disconnect()
            raise AnswerLost(str(error) or type(error).__name__) from error
        except BaseException:
            connection.disconnect()  # answers that nobody has read must not be taken for those of the next command
            raise
        return answers
    finally:
        pool.release(connection)


def _answers(connection: Any, number: int) -> list[Any]:
    answers: list[Any] = []
    for _ in range(number):
        try:
            answers.append(connection.read_response())
        except exceptions.RedisError as error:
            if type(error) in (exceptions.ConnectionError, exceptions.TimeoutError):
                raise
            if not isinstance(error, exceptions.ResponseError):  # it cannot begin, or does not know us
                return [error] * number
            answers.append(error)
    return answers
