"""Rows that another program has damaged: each is named, none stops another, nothing is guessed (P10)."""

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import App
from holdfast.core import acts
from holdfast.core.acts import Move
from holdfast.core.limits import Rate, Setting
from holdfast.core.machine import State
from holdfast.core.records import DamagedJob, Filter, Job, Record, Step
from holdfast.core.verdict import Succeeded
from holdfast.core.worker_exit import WorkerExit
from holdfast.errors import StoreDamaged
from holdfast.insight import all_jobs, explain
from holdfast.stores.protocol import Reply
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing import FakeClock
from holdfast.upkeep.reaper import Reaper
from tests.factory import add, claim, enrol, row, settle, start


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def store(path: Path, clock: FakeClock) -> Iterator[SqliteStore]:
    opened = SqliteStore(f"sqlite:///{path}", clock=clock)
    opened.migrate()
    yield opened
    opened.close()


def change(path: Path, statement: str, *values: object) -> None:
    """Write what no program of ours would."""
    with sqlite3.connect(path, timeout=60) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement, values)
    connection.close()


@pytest.mark.parametrize("mark", ["9e999", "-9e999"])
def test_a_damaged_mark_of_a_rate_stops_no_claim(path: Path, store: SqliteStore, mark: str) -> None:
    store.limit("limited", Setting(limit=5, rate=Rate(100, 1.0)), declared=True)
    change(path, f"UPDATE holdfast_queue SET booked_until = {mark} WHERE name = 'limited'")
    jobs = {add(store, queue=queue).id for queue in ("limited", "other")}
    worker = enrol(store, queues=["limited", "other"])
    assert {job.id for job in claim(store, worker, queues=["limited", "other"], limit=2)} == jobs


DAMAGES = {
    "payload is not UTF-8": "payload = CAST(x'7bff7d' AS TEXT)",
    "error is not UTF-8": "error = CAST(x'eda080' AS TEXT)",
    "timeout_s is an infinite number": "timeout_s = 9e999",
    "lease_s is an infinite number": "lease_s = -9e999",
    "on_crash: Invalid enum value 'whatever'": "on_crash = 'whatever'",
    "in_steps: Expected `array`, got `str`": "in_steps = 'no JSON', releases = 1",
}


@pytest.mark.parametrize(("damage", "change_of"), DAMAGES.items(), ids=DAMAGES)
def test_one_row_that_cannot_be_read_stops_no_other(
    path: Path, store: SqliteStore, damage: str, change_of: str
) -> None:
    before, bad, after = (add(store, payload='["Inf, \\\\", "\\"Inf"]') for _ in range(3))
    change(path, f"UPDATE holdfast_job SET {change_of} WHERE id = ?", bad.id)
    found = {job.id: job for job in store.find(Filter())}
    assert set(found) == {before.id, bad.id, after.id}
    assert [type(found[each.id]) for each in (before, bad, after)] == [Job, DamagedJob, Job]
    assert [job.id for job in all_jobs(store, Filter(limit=2))] == [after.id, bad.id, before.id]
    row = store.get(bad.id)
    assert isinstance(row, DamagedJob)
    assert row.damage == damage
    [told] = map(str, store.unreadable())
    fix = f"holdfast jobs delete {bad.id} removes it"
    assert re.fullmatch(rf"job {bad.id} \(row \d+ of holdfast_job\) cannot be read: {re.escape(damage)}; {fix}", told)
    assert told in store.check()
    claimed = {job.id: job.payload for job in claim(store, enrol(store), limit=10)}
    assert claimed == {before.id: before.payload, bad.id: row.payload, after.id: before.payload}


def test_a_row_without_a_readable_id_is_left_out_and_named(path: Path, store: SqliteStore) -> None:
    first, bad, last = (add(store) for _ in range(3))
    change(path, "UPDATE holdfast_job SET id = CAST(x'6aff' AS TEXT) WHERE id = ?", bad.id)
    assert [job.id for job in all_jobs(store, Filter(limit=2))] == [last.id, first.id]
    assert {job.id for job in claim(store, enrol(store), limit=10)} == {first.id, last.id}
    [told] = store.check()
    assert told.endswith("cannot be read: id is not UTF-8; delete the row by its seq")
    assert store.standing("", (), None).identity


@pytest.mark.parametrize("how", ["the worker that claimed it", "its lease ran out", "its worker died"])
@pytest.mark.parametrize("change_of", ["payload = CAST(x'ff' AS TEXT)", "stall_s = 9e999"])
def test_a_job_whose_row_cannot_be_read_is_held(
    path: Path, store: SqliteStore, clock: FakeClock, how: str, change_of: str
) -> None:
    """Nobody knows what it was to do, and it must not stay `running` for ever."""
    if how == "the worker that claimed it":
        app = App(store.url, clock=clock)
        ran: list[str] = []
        noop = app.task(ran.append, name="tests.noop")
        bad = noop.enqueue("bad")
        change(path, f"UPDATE holdfast_job SET {change_of} WHERE id = ?", bad.id)
        good = noop.enqueue("good")
        app.tick()
        assert ran == ["good"]
        assert store.counts()["default"] == {State.HELD: 1, State.DONE: 1}
        assert good.refresh().state == "done"
        app.close()
    else:
        bad = start(store, worker := enrol(store))
        change(path, f"UPDATE holdfast_job SET {change_of} WHERE id = ?", bad.id)
        if how == "its worker died":
            store.retire(worker, "it was killed", how=WorkerExit("exit"))
        reaper = Reaper(store, clock)
        clock.advance(30)
        reaper.once()
        clock.advance(0.2)
        reaper.once()
    row = store.get(bad.id)
    assert row is not None
    assert (row.state, row.stop_reason, row.lease_until) == (State.HELD, None, None)
    column = change_of.partition(" ")[0]
    assert (row.error or "").startswith(f"its row cannot be read: {column} is ")
    assert explain(store, row).sentence.startswith(f"Its row was damaged by another program: {column} is ")
    assert store.journal(bad.id, kinds=("held",))[-1].detail["reason"] == row.error
    assert store.delete([row.seen]) == [Reply.ACCEPTED]
    assert store.check() == []
    assert store.get(bad.id) is None


def test_a_job_with_a_policy_that_contradicts_itself_is_held(path: Path, store: SqliteStore, clock: FakeClock) -> None:
    job = start(store)
    change(path, "UPDATE holdfast_job SET backoff_base_s = 100, backoff_cap_s = 1, crashes = 1 WHERE id = ?", job.id)
    reaper = Reaper(store, clock)
    clock.advance(30)
    reaper.once()
    clock.advance(0.2)
    assert reaper.once().recovered == 1
    assert row(store, job.id).state is State.HELD
    assert (row(store, job.id).error or "").startswith("its row cannot be read: ")


def test_a_row_that_cannot_be_written_is_tried_once_a_minute(
    path: Path, store: SqliteStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It breaks a rule of its table: each try would cost a transaction, at each pass."""
    change(path, "UPDATE holdfast_job SET attempt = 99 WHERE id = ?", start(store).id)
    tries: list[int] = []
    settle = store.settle
    monkeypatch.setattr(store, "settle", lambda batch, under=None: tries.append(len(batch)) or settle(batch, under))
    reaper = Reaper(store, clock)
    clock.advance(30)
    for _ in range(20):
        clock.advance(1)
        reaper.once()
    assert len(tries) == 1
    for _ in range(60):
        clock.advance(1)
        reaper.once()
    assert len(tries) == 2


@pytest.mark.parametrize("column", ["detail", "actor"])
def test_a_line_of_the_journal_that_cannot_be_read_hides_no_other(path: Path, store: SqliteStore, column: str) -> None:
    job = start(store)
    store.move([Move(job.seen, acts.cancel(job, actor="ann", reason="why"))])
    settle(store, job, Succeeded())
    store.pause("default", True)
    before = store.journal()
    [damaged] = store.journal(job.id)
    text = "CAST(x'7b2261223a22ff227d' AS TEXT)"
    change(path, f"UPDATE holdfast_journal SET {column} = {text} WHERE seq = ?", damaged.seq)
    assert [event.seq for event in store.journal()] == [event.seq for event in before]
    assert store.journal()[-1] == before[-1]
    assert "\ufffd" in str(store.journal(job.id)[0])
    assert set(store.journals([job.id], 10)) == {job.id}
    [told] = store.check()
    where = rf"row \d+ of holdfast_journal, about job {job.id},"
    assert re.fullmatch(rf"{where} cannot be read: {column} is not UTF-8; .+", told)


def test_a_line_of_the_journal_without_an_instant_is_left_out(path: Path, store: SqliteStore) -> None:
    job = start(store)
    store.move([Move(job.seen, acts.cancel(job, actor="ann", reason="why"))])
    store.pause("default", True)
    first, last = store.journal()
    change(path, "UPDATE holdfast_journal SET at = 9e999 WHERE seq = ?", first.seq)
    assert store.journal() == [last]
    for text, shown in (("no JSON", "no JSON"), ("[1]", [1])):
        change(path, "UPDATE holdfast_journal SET at = 1.0, detail = ? WHERE seq = ?", text, first.seq)
        assert [event.detail for event in store.journal()] == [{"unreadable": shown}, last.detail]


def test_a_worker_whose_row_cannot_be_read_hides_no_other(path: Path, store: SqliteStore) -> None:
    ann, bob, cid = enrol(store), enrol(store), enrol(store)
    change(path, "UPDATE holdfast_worker SET name = CAST(x'61ff' AS TEXT) WHERE id = ?", ann)
    change(path, "UPDATE holdfast_worker SET beat_at = 9e999 WHERE id = ?", bob)
    assert {worker.id: worker.name for worker in store.workers()}.keys() == {ann, cid}
    assert store.vanished() == []
    causes = [told.partition(" cannot be read: ")[2].partition(";")[0] for told in store.check()]
    assert sorted(causes) == ["beat_at is an infinite number", "name is not UTF-8"]


def test_a_setting_of_a_queue_that_cannot_be_read_stops_no_claim(path: Path, store: SqliteStore) -> None:
    add(store)
    store.limit("default", Setting(limit=5))
    store.limit("other", Setting(limit=5))
    for text in ("CAST(x'7bff7d' AS TEXT)", "'no JSON'"):
        change(path, f"UPDATE holdfast_queue SET chosen = {text} WHERE name = 'default'")
        limits = {queue.name: queue.limits.limit for queue in store.queues()}
        assert limits == {"default": None, "other": 5}
    assert len(claim(store, enrol(store))) == 1


def test_retention_deletes_a_row_that_cannot_be_read(path: Path, store: SqliteStore, clock: FakeClock) -> None:
    jobs = [start(store) for _ in range(3)]
    for job in jobs:
        settle(store, job, Succeeded())
    change(
        path, "UPDATE holdfast_job SET id = CAST(x'ff' AS TEXT), queue = CAST(x'fe' AS TEXT) WHERE id = ?", jobs[1].id
    )
    clock.advance(100)
    assert store.purge([State.DONE], clock.wall()) == 3
    assert store.check() == []


def test_a_recorded_step_that_cannot_be_read_is_an_error_about_the_row(path: Path, store: SqliteStore) -> None:
    """Without it, the step would run again."""
    job = start(store, workflow=True)
    step = Step(position=1, path="1", kind="step", name="charge", state="recorded", attempt=1, fence=job.fence)
    store.record([Record(lease=job.lease, steps=(step,))])
    change(path, "UPDATE holdfast_step SET result = CAST(x'22ff22' AS TEXT)")
    with pytest.raises(StoreDamaged, match="a recorded step was damaged by another program; holdfast db check"):
        store.steps(job.id)
    [told] = store.check()
    assert told.startswith(f"step charge of job {job.id} (position 1) cannot be read: result is not UTF-8; ")
