"""The store behind a server: its table of verbs, address, token, and errors."""

from __future__ import annotations

import http.server
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast import App
from holdfast.core.access import Role
from holdfast.core.callbacks import Callback, with_callbacks
from holdfast.core.machine import State
from holdfast.core.records import DamagedJob, Event, Filter, Lease, NewEvent, Pulse, Signal, damaged
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Succeeded, judge
from holdfast.errors import (
    BadURL,
    DutyLost,
    FileLocked,
    HoldfastError,
    OutcomeUnknown,
    StoreDenied,
    StoreError,
    StoreReadOnly,
    StoreTimeout,
    StoreUnavailable,
    StoreUnsupported,
    UsageError,
    WorkerGone,
)
from holdfast.server import Server, ServerOptions
from holdfast.stores import open_store
from holdfast.stores.memory import MemoryStore
from holdfast.stores.protocol import Batches, Figures, Reply, Store
from holdfast.stores.remote.connection import refusal
from holdfast.stores.remote.store import RemoteStore
from holdfast.stores.remote.verbs import LOCAL, VERBS, codec, fields_known, read_sent
from holdfast.testing import FakeClock
from holdfast.upkeep.batch_ends import end_batches
from tests.factory import a_worker, add, enrol, make_job, row, start
from tests.served import Served
from tests.server.client import add_token
from tests.server.verbs import DUTY


@pytest.fixture
def behind(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with Served(ServerOptions(threads=4, needs_token=True, insecure=True)) as served:
        yield served


@pytest.fixture
def as_role(served: Served, behind: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Open the store with a token of a role; `queues` limits it."""
    served.serve(behind, clock)
    opened: list[Any] = []

    def as_role(role: Role, queues: tuple[str, ...] | None = None) -> Any:
        owner = App("memory://", clock=clock)
        owner.opener = lambda: behind
        name = f"{role}-{len(opened)}"
        monkeypatch.setenv("HOLDFAST_TOKEN", add_token(owner, name, role, queues))
        opened.append(RemoteStore(served.url, clock=clock))
        clock.advance(3)  # the server reads tokens every two seconds
        return opened[-1]

    yield as_role
    for store in opened:
        store.close()


# ---------------------------------------------------------------------------------------- the table


def test_every_verb_of_the_protocol_travels_or_is_done_here() -> None:
    """A new verb needs a line in `verbs.py`: else workers behind a server would not have it."""
    parts = (("", Store), ("figures.", Figures), ("batches.", Batches))
    protocol = {
        f"{part}{name}"
        for part, kind in parts
        for name, verb in vars(kind).items()
        if callable(verb) and not name.startswith("_")
    }
    assert {verb.name for verb in VERBS} | LOCAL == protocol
    assert not {verb.name for verb in VERBS} & LOCAL
    assert len({verb.name for verb in VERBS}) == len(VERBS)
    constants = {name for name in Store.__annotations__ if not hasattr(RemoteStore, name)}
    assert constants == {"url"}
    assert all(hasattr(RemoteStore, name.partition(".")[0]) for name in protocol)


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_each_verb_has_a_codec_for_its_arguments_and_its_answer(verb: str) -> None:
    assert codec(verb).returns is not None


def test_a_damaged_row_is_damaged_on_the_other_side(clock: FakeClock) -> None:
    store = MemoryStore(clock=clock)
    job = start(store)
    bad = damaged(add(store), "column lease_s: not a number")
    for verb, value in (("find", [bad, job]), ("get", bad)):
        back = codec(verb).read_answer(read_sent(codec(verb).write_answer(value, 1.0, 2.0, "s")))
        assert back == value
        assert isinstance(back[0] if verb == "find" else back, DamagedJob)


def test_the_number_of_fields_counts_those_of_every_record() -> None:
    assert fields_known() > len(VERBS) + len(Event.__struct_fields__) + len(NewEvent.__struct_fields__)


def test_a_server_that_knows_less_refuses_a_newer_client(as_role: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store = as_role("admin")
    monkeypatch.setattr("holdfast.stores.remote.store.fields_known", lambda: fields_known() + 1)
    with pytest.raises(HoldfastError, match="upgrade the server"):
        store.counts()


# ------------------------------------------------------------------------------------- the address


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://jobs.example.org", "https://jobs.example.org"),
        ("https://hf_secret@jobs.example.org", "HOLDFAST_TOKEN"),
        ("https://ann:hf_secret@jobs.example.org", "HOLDFAST_TOKEN"),
        ("https://jobs.example.org/?token=hf_secret", "HOLDFAST_TOKEN"),
        ("https://jobs.example.org:99999", "cannot be read"),
        ("https:///jobs", "names no host"),
    ],
)
def test_an_address_that_is_not_safe_is_refused_and_shows_no_secret(url: str, what: str) -> None:
    with pytest.raises(BadURL, match=what) as caught:
        open_store(url)
    assert "hf_secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://localhost:1", "http://127.0.0.1:1/ops", "http://[::1]:1", "https://example.org"]
)
def test_plain_http_is_for_this_machine(url: str) -> None:
    open_store(url).close()


def test_a_server_that_is_not_there_is_unavailable() -> None:
    store = open_store("http://127.0.0.1:9")
    with pytest.raises(StoreUnavailable, match="cannot reach"):
        store.counts()
    with pytest.raises(StoreUnavailable):
        App("http://127.0.0.1:9").counts()
    store.close()


# --------------------------------------------------------------------------------------- the token


def test_the_token_file_is_read_again_when_the_server_refuses_it(
    as_role: Any, served: Served, clock: FakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = as_role("admin")
    monkeypatch.delenv("HOLDFAST_TOKEN")
    file = tmp_path / "token"
    file.write_text("hf_wrong\n")
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", str(file))
    store = open_store(served.url, clock=clock)
    with pytest.raises(StoreDenied, match="HOLDFAST_TOKEN"):
        store.counts()
    file.write_text("secret-of-admin-0\n")
    assert store.counts() == good.counts() == {}
    file.unlink()
    assert store.counts() == {}, "it is read only when it is needed"
    other = open_store(served.url, clock=clock)
    with pytest.raises(StoreDenied, match="cannot be read"):
        other.counts()
    store.close()
    other.close()


def test_a_token_that_could_not_be_a_header_is_refused_here(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "two words\r\nx: y")
    with pytest.raises(UsageError, match="copy it again"):
        open_store(served.url).counts()


# ------------------------------------------------------------------- what a worker's token may do


def running(store: Any, behind: Store, **given: Any) -> Any:
    """A job that a worker of this store runs."""
    worker = a_worker(queues=["mail"])
    store.enroll(worker)
    add(behind, queue="mail", **given)
    [job] = store.claim(worker.id, "claim", ["mail"], ["t"], 1)
    return job


def test_a_worker_lives_its_whole_life_with_a_workers_token(as_role: Any, behind: MemoryStore) -> None:
    store = as_role("worker")
    job = running(store, behind, workflow=True)
    assert store.beat(job.worker, [Pulse(job.lease)]).lost == []
    assert store.steps(job.id) == []
    assert store.inbox(job.id).count == 0
    assert store.get(job.id) == row(behind, job.id)
    assert store.find(Filter(states=(State.RUNNING,), worker=job.worker)) == [row(behind, job.id)]
    assert store.orders() == []
    store.ping()
    assert store.schema() == behind.schema()
    assert store.settle([settlement(job, judge(Succeeded(), job, 5.0, chance=0.5))]) == [Reply.ACCEPTED]
    assert store.retire(job.worker, "left")
    assert row(behind, job.id).state is State.DONE


DENIED: dict[str, Callable[[Any, Any], object]] = {
    "enqueue": lambda store, job: store.add([make_job()]),
    "read a job that it does not run": lambda store, job: store.steps("another"),
    "read an inbox": lambda store, job: store.inbox("another"),
    "list workers": lambda store, job: store.workers(),
    "read the journal": lambda store, job: store.journal(),
    "act": lambda store, job: store.move([]),
    "reap": lambda store, job: store.overdue(),
    "take a duty": lambda store, job: store.acquire("reaper", "me", 5.0),
    "retire another": lambda store, job: store.retire("another", "because"),
    "settle under a duty": lambda store, job: store.settle([], DUTY),
    "write as a person": lambda store, job: store.settle([as_a_person(job)]),
    "enqueue by an ending": lambda store, job: store.settle([with_a_job(job)]),
    "signal": lambda store, job: store.signal(Signal(id="s", job_id=job.id, name="go")),
    "purge": lambda store, job: store.purge([State.DONE], 9e9),
    "publish": lambda store, job: store.publish([]) or store.published(),
}


def as_a_person(job: Any) -> Any:
    verdict = judge(Failed("no"), job, 5.0, chance=0.5)
    return settlement(job, replace(verdict, events=(NewEvent("revived", {}, "ann"),)))


def with_a_job(job: Any) -> Any:
    return settlement(job, replace(judge(Succeeded(), job, 5.0, chance=0.5), jobs=(make_job(),)))


@pytest.mark.parametrize("act", DENIED.values(), ids=DENIED.keys())
def test_a_workers_token_does_not(act: Callable[[Any, Any], object], as_role: Any, behind: MemoryStore) -> None:
    store = as_role("worker")
    job = running(store, behind)
    before = behind.counts(), behind.journal(), behind.workers(), row(behind, job.id)
    with pytest.raises(StoreDenied):
        act(store, job)
    assert before == (behind.counts(), behind.journal(), behind.workers(), row(behind, job.id))


def test_a_worker_does_not_read_the_job_of_another_process(as_role: Any, behind: MemoryStore) -> None:
    mine, others = as_role("worker"), as_role("worker")
    job = running(mine, behind, workflow=True)
    assert others.get(job.id) is None
    assert others.find(Filter(worker=job.worker)) == []
    with pytest.raises(StoreDenied):
        others.steps(job.id)


def test_a_workflow_reads_its_children(as_role: Any, behind: MemoryStore) -> None:
    store = as_role("worker")
    job = running(store, behind, workflow=True)
    child, stranger = add(behind, queue="mail", parent=job.id), add(behind, queue="mail")
    assert store.get(child.id) == child
    assert store.get(stranger.id) is None


def test_the_callback_on_the_row_is_stored_by_the_end_of_the_job(as_role: Any, behind: MemoryStore) -> None:
    callbacks = with_callbacks(None, Callback(make_job(id="", queue="elsewhere"), ("job_id",)), None)
    store = as_role("worker", ("mail",))
    job = running(store, behind, callbacks=callbacks)
    assert store.settle([settlement(job, judge(Succeeded(), job, 5.0, chance=0.5))]) == [Reply.ACCEPTED]
    assert behind.counts()["elsewhere"] == {State.READY: 1}


@pytest.mark.parametrize(
    ("forged", "stored"),
    [
        ('{"job_id":"JOB","error":"ValueError: boom"}', True),
        ('{"job_id":"another","error":"x"}', False),
        ('{"job_id":"JOB"}', False),
        ('{"job_id":"JOB","error":"x","error_kind":"x"}', False),
        ('{"job_id":"JOB","error":"' + 3_000 * "x" + '"}', False),
        ('{"job_id":"JOB","error":7}', False),
        ("[]", False),
    ],
)
def test_a_worker_fills_in_only_the_error_of_a_callback(
    as_role: Any, behind: MemoryStore, forged: str, stored: bool
) -> None:
    callbacks = with_callbacks(None, None, Callback(make_job(id="", queue="elsewhere"), ("job_id", "error")))
    store = as_role("worker", ("mail",))
    job = running(store, behind, callbacks=callbacks, attempts_max=1)
    ended = settlement(job, judge(Failed("ValueError: boom"), job, 5.0, chance=0.5))
    jobs = tuple(replace(new, payload=forged.replace("JOB", job.id)) for new in ended.verdict.jobs)
    ended = replace(ended, verdict=replace(ended.verdict, jobs=jobs))
    if stored:
        assert store.settle([ended]) == [Reply.ACCEPTED]
    else:
        with pytest.raises(StoreDenied):
            store.settle([ended])
    assert ("elsewhere" in behind.counts()) == stored


def test_a_token_with_queues_works_in_these_alone(as_role: Any, behind: MemoryStore) -> None:
    store = as_role("worker", ("mail",))
    job = running(store, behind)
    other = start(behind, enrol(behind, queues=["media"]), queue="media")
    for act in (
        lambda: store.enroll(a_worker(queues=["mail", "media"])),
        lambda: store.claim(job.worker, "c", ["media"], ["t"], 1),
        lambda: store.due(["media"], ["t"]),
        lambda: store.beat(job.worker, [Pulse(other.lease)]),
        lambda: store.settle([settlement(other, judge(Succeeded(), other, 5.0, chance=0.5))]),
    ):
        with pytest.raises(StoreDenied):
            act()
    assert row(behind, other.id) == other


def test_a_producer_enqueues_and_reads_what_became_of_it(as_role: Any, behind: MemoryStore) -> None:
    store = as_role("producer", ("mail",))
    [added] = store.add([make_job(queue="mail")])
    assert store.get(added.id) == row(behind, added.id)
    with pytest.raises(StoreDenied):
        store.add([make_job(queue="media")])
    with pytest.raises(StoreDenied):
        store.claim("w", "c", ["mail"], ["t"], 1)


def test_a_producer_opens_fills_and_closes_a_batch(as_role: Any, served: Served, behind: MemoryStore) -> None:
    as_role("producer")
    app = App(served.url)
    task = app.task(name="t")(lambda: None)
    with app.batch(id="nightly") as batch:
        batch.add(task.job())
    with app.batch(id="empty"):
        pass
    assert [row.complete for row in behind.batches.get(["empty", "nightly"])] == [True, True]
    assert app.get_batch("nightly").counts["ready"] == 1
    assert end_batches(behind, behind.batches.get(["empty", "nightly"])) == 1
    app.close()


def test_tokens_are_not_given_away(as_role: Any) -> None:
    with pytest.raises(StoreUnsupported, match="holdfast tokens"):
        as_role("admin").tokens.all()


# ------------------------------------------------------------------------- what a database could do


def test_transactions_name_the_alternative(as_role: Any, behind: MemoryStore) -> None:
    store = as_role("admin")
    with pytest.raises(StoreUnsupported, match="sqlite:///"):
        store.transaction(Lease("j", 1, "c"), 5.0)
    with pytest.raises(StoreUnsupported, match="using\\(id="):
        store.add([make_job()], connection=object())


def test_a_server_is_not_put_before_a_server(as_role: Any, served: Served, clock: FakeClock) -> None:
    as_role("admin")
    remote = App(served.url, clock=clock)
    second = Server(remote)
    with pytest.raises(StoreUnsupported, match="a server already"):
        served.wait(second.open())
    served.wait(second.close())
    remote.close()


# -------------------------------------------------------------------------------------- the errors


def test_an_error_of_the_store_is_the_same_error_here(as_role: Any, behind: MemoryStore) -> None:
    store = as_role("admin")
    with pytest.raises(WorkerGone):
        store.claim("nobody", "c", ["mail"], ["t"], 1)
    with pytest.raises(DutyLost):
        store.purge([State.DONE], 9e9, under=DUTY)
    worker = a_worker()
    store.enroll(worker)
    with pytest.raises(UsageError, match="every start needs a new id"):
        store.enroll(worker)


@pytest.mark.parametrize(
    ("status", "body", "changes", "pieces", "wanted"),
    [
        (413, b"<html>", True, 2, StoreTimeout),
        (413, b"<html>", True, 1, StoreError),
        (502, b"<html>", True, 1, OutcomeUnknown),
        (502, b"<html>", False, 1, StoreUnavailable),
        (504, b"", True, 1, OutcomeUnknown),
        (503, b"", True, 1, StoreUnavailable),
        (404, b"<html>", True, 1, StoreUnavailable),
        (403, b'{"code": "read_only", "detail": "x"}', True, 1, StoreReadOnly),
        (403, b'{"code": "forbidden", "detail": "x"}', True, 1, StoreDenied),
        (503, b'{"code": "overloaded", "detail": "x"}', True, 1, StoreUnavailable),
        (503, b'{"code": "store_down", "detail": "x", "error": "FileLocked"}', True, 1, StoreUnavailable),
        (500, b'{"code": "internal", "detail": "x"}', True, 1, StoreError),
        (422, b'{"code": "invalid", "detail": "x"}', True, 1, StoreUnsupported),
        (503, b'{"code": "store_down", "detail": "x", "error": "System"}', True, 1, StoreUnavailable),
    ],
)
def test_each_refusal_has_its_meaning(
    status: int, body: bytes, changes: bool, pieces: int, wanted: type[Exception]
) -> None:
    found = refusal("https://s", status, body, pieces, changes=changes)
    assert type(found) is wanted
    assert not isinstance(found, FileLocked)


class _Mute(http.server.BaseHTTPRequestHandler):
    """Takes a request, and closes the connection without an answer."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))

    def log_message(self, *_: object) -> None:
        pass


def test_a_lost_answer_to_an_enqueue_names_the_jobs() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Mute)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    store = open_store(f"http://127.0.0.1:{server.server_port}")
    new = make_job()
    with pytest.raises(OutcomeUnknown) as caught:
        store.add([new])
    assert caught.value.job_ids == (new.id,)
    with pytest.raises(StoreUnavailable) as read:
        store.counts()
    assert not isinstance(read.value, OutcomeUnknown), "a read changes nothing, whatever became of it"
    store.close()
    server.shutdown()
    server.server_close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")  # that is the point
def test_a_process_that_is_forked_while_the_worker_shows_its_life_does_not_hang(as_role: Any, served: Served) -> None:
    store = as_role("worker")
    worker = enrol(store)
    server: Any = served._server
    until(lambda: server.liveness.streams == 1)
    for _ in range(5):
        child = os.fork()
        if child == 0:  # a thread of the parent reads from this connection
            os._exit(0 if store._alive[worker]._connection.sock.fileno() == -1 else 1)
        assert exit_code_of(child) == 0
    assert store.beat(worker, ()).counted


def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


def exit_code_of(child: int) -> int | None:
    """Wait for the end of a process; None, and end it, if it hangs."""
    give_up_at = time.monotonic() + 20
    while time.monotonic() < give_up_at:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def test_a_deadline_is_shorter_than_a_beat(as_role: Any) -> None:
    store = as_role("admin")
    store.enroll(a_worker(beat_s=0.5))
    assert store._timeout_s < 0.5
