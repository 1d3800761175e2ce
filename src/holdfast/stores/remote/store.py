"""The store behind a server. Its verbs are requests, made from the table in `verbs.py`.

    RemoteStore ──POST /v1/store/VERB──▶ server/store_verbs.py ──▶ the store of the server

The server runs reaper, scheduler, timers and pruning (`is_served`). This process shows that it lives by an open request
(`liveness.py`), and hears of due jobs by another one (`hints.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from holdfast.clock import Clock, SystemClock
from holdfast.core.records import BeatReply, Lease, Moment, NewJob, Standby, Worker
from holdfast.errors import OutcomeUnknown, StoreDenied, StoreUnavailable, StoreUnsupported
from holdfast.failpoints import point
from holdfast.interrupts import shielded
from holdfast.stores.protocol import Added, Batches, Figures, Schema, Tokens, Transaction
from holdfast.stores.remote.connection import Address, Connections
from holdfast.stores.remote.hints import Hints
from holdfast.stores.remote.liveness import Alive
from holdfast.stores.remote.verbs import VERBS, Verb, codec, fields_known, read_sent

log = logging.getLogger("holdfast.remote")

ANSWER_S = 10.0  # the longest wait for an answer; a worker waits less than a beat
OF_A_BEAT = 0.8
CLOCK_S = 1.0  # how long the last answer tells the time of the store
WAKING = frozenset(
    {
        *("add", "settle", "record", "signal", "wake_due", "fork", "move", "pause", "limit", "fire"),
        *("batches.add", "batches.end"),
    }
)


class RemoteStore:
    """See `stores/protocol.py: Store` for every promise. The verbs are attached below the class."""

    confirm_s = 0.25
    commits_may_hang = False
    look_s = 1.0
    row_locks = True
    hints_of_work = True
    is_served = True
    add_at_once = 500
    add_max: int | None = 700  # as the server's store may have it

    def __init__(self, url: str, *, clock: Clock | None = None) -> None:
        self.url = url
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._connections = Connections(Address.parse(url))
        self._hints = Hints(self._clock, self._await_work)
        self._timeout_s = ANSWER_S
        self._alive: dict[str, Alive] = {}  # by the ids of the workers of this process
        self._stopping: set[str] = set()  # those that claim nothing more, as their last beat said
        self._servers: set[str] = set()  # that have answered
        self._told: tuple[float, Moment] | None = None  # the store's clocks, and when they were read
        self._denied: set[str] = set()

    # ------------------------------------------------------------------------------------ one request

    def call(self, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Carry out one verb."""
        known = codec(verb.name)
        pieces = max(
            (len(each) for each in args if isinstance(each, Sequence) and not isinstance(each, str)), default=1
        )
        headers = {"holdfast-fields": str(fields_known())}
        if self._alive:
            headers["holdfast-workers"] = ",".join(self._alive)
        asked = (f"/v1/store/{verb.name}", known.write(args, kwargs), headers, self._timeout_s)
        point(f"{verb.name}.before")
        with shielded():
            sent = self._read(self._connections.ask(*asked, changes=not verb.reads, pieces=pieces))
            value = known.read_answer(sent)
        point(f"{verb.name}.after")
        self._told = self._clock.lease(), Moment(sent.wall, sent.lease)
        self._servers.add(sent.server)
        if verb.name in WAKING:
            self._hints.wake()
        return value

    def _read(self, content: bytes) -> Any:
        try:
            return read_sent(content)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StoreUnavailable(f"{self.url} is not a Holdfast server, or not below this path: {error}") from None

    def _await_work(self, queues: Sequence[str], tasks: Sequence[str], wait_s: float) -> bool:
        """Ask the server to answer when these queues may have a due job."""
        body = msgspec.json.encode({"queues": list(queues), "tasks": list(tasks), "wait_s": wait_s})
        headers = {"holdfast-fields": str(fields_known())}
        found = self._connections.ask("/v1/store/wait", body, headers, wait_s + self._timeout_s, changes=False)
        return bool(msgspec.json.decode(found)["due"])

    # ------------------------------------------------------------------- verbs that have a part here

    @property
    def connections_made(self) -> int:
        """Count the servers that have answered: a new one may have another store."""
        return len(self._servers)

    @property
    def tokens(self) -> Tokens:
        """Raise: tokens belong to the server."""
        raise StoreUnsupported(
            "a server does not give its tokens away; run `holdfast tokens` with the --db that the server has"
        )

    @property
    def figures(self) -> Figures:
        return cast(Figures, self._part("figures"))

    @property
    def batches(self) -> Batches:
        return cast(Batches, self._part("batches"))

    def _part(self, name: str) -> SimpleNamespace:
        """Return the verbs of a part of the store."""
        verbs = {verb.name.removeprefix(f"{name}."): verb for verb in VERBS if verb.name.startswith(f"{name}.")}
        return SimpleNamespace(**{own_name: partial(_asked, self, verb) for own_name, verb in verbs.items()})

    def now(self) -> Moment:
        """Return the instant by the last answer, if that was a moment ago."""
        lease = self._clock.lease()
        if self._told is None or not 0 <= lease - self._told[0] < CLOCK_S:
            moment: Moment = self.call(_BY_NAME["now"], (), {})
            return moment
        since_s = lease - self._told[0]
        return Moment(self._told[1].wall + since_s, self._told[1].lease + since_s)

    def add(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Added]:
        if connection is not None:
            raise StoreUnsupported(
                "using(connection=…) needs the database itself, and this store is behind a server; enqueue after your "
                "commit, with an id of your own: using(id=…)"
            )
        try:
            added: list[Added] = self.call(_BY_NAME["add"], (jobs,), {})
        except OutcomeUnknown as error:
            raise OutcomeUnknown(str(error), tuple(job.id for job in jobs)) from None
        return added

    def enroll(self, worker: Worker) -> None:
        self._timeout_s = min(self._timeout_s, worker.beat_s * OF_A_BEAT)
        self.call(_BY_NAME["enroll"], (worker,), {})
        alive = Alive(self._connections, self._clock, worker.id, lambda: self._beat_again(worker.id))
        self._alive[worker.id] = alive
        alive.start()

    def _beat_again(self, worker_id: str) -> None:
        """Beat after the open request was made again: other servers, which saw the old one close, see this."""
        self.beat(worker_id, (), stopping=worker_id in self._stopping)

    def beat(self, worker_id: str, pulses: Sequence[Any], rss_mb: float | None = None, **more: Any) -> BeatReply:
        (self._stopping.add if more.get("stopping") else self._stopping.discard)(worker_id)
        reply: BeatReply = self.call(_BY_NAME["beat"], (worker_id, pulses, rss_mb), more)
        return reply

    def retire(self, worker_id: str, *args: Any, **more: Any) -> bool:
        was: bool = self.call(_BY_NAME["retire"], (worker_id, *args), more)
        if (alive := self._alive.pop(worker_id, None)) is not None:
            alive.stop()
        return was

    def due(self, queues: Sequence[str], tasks: Sequence[str], *, sleeps: bool = False) -> float | None:
        if sleeps:
            self._hints.want(queues, tasks)
        due: float | None = self.call(_BY_NAME["due"], (queues, tasks), {"sleeps": False})
        return due

    def transaction(self, lease: Lease, max_s: float) -> AbstractContextManager[Transaction]:
        raise StoreUnsupported(
            "this worker has a server and no database, so ctx.transaction(), ctx.session() and flow.transaction cannot "
            "work; run a worker that has the database (sqlite:///… or postgresql://…), or make the effect repeatable "
            "with an id of the job (ctx.job.id)"
        )

    def migrate(self) -> Schema:
        """Change nothing: the server brings its store up to date."""
        schema: Schema = self.call(_BY_NAME["schema"], (), {})
        return schema

    def stands_by(self) -> Standby | None:
        return None

    def holds_lock(self, worker_id: str) -> bool:
        return True  # the open request is made again by itself

    def wait(self, timeout_s: float) -> bool:
        return self._hints.wait(timeout_s)

    def wake(self) -> None:
        self._hints.wake()

    def is_woken(self) -> bool:
        return True

    def wake_sleepers(self) -> bool:
        return False

    def stop_waking(self) -> None:
        """Nobody relies on this process: the server looks."""

    def close(self) -> None:
        self._hints.close()
        for alive in self._alive.values():
            alive.stop()
        self._connections.close()

    # ---------------------------------------------------------------- what the token of a worker leaves out

    def tolerate(self, verb: Verb, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Carry out a verb that a worker can do without: its token may not allow it."""
        try:
            self.call(verb, args, kwargs)
        except StoreDenied as error:
            if verb.name not in self._denied:
                self._denied.add(verb.name)
                log.info("%s is left to the server: %s", verb.name, error)


def _asked(store: RemoteStore, verb: Verb, *args: Any, **kwargs: Any) -> Any:
    return store.call(verb, args, kwargs)


def _attached(verb: Verb) -> Callable[..., Any]:
    def method(self: RemoteStore, *args: Any, **kwargs: Any) -> Any:
        if verb.name == "doubt" or (verb.name == "limit" and kwargs.get("declared")):
            return self.tolerate(verb, args, kwargs)
        return self.call(verb, args, kwargs)

    method.__name__ = verb.name
    return method


_BY_NAME = {verb.name: verb for verb in VERBS}
for _verb in VERBS:
    if "." not in _verb.name and _verb.name not in vars(RemoteStore):
        setattr(RemoteStore, _verb.name, _attached(_verb))
