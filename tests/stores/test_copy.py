"""`holdfast db copy`: a fleet moves from one store to another, of the same kind or not, and nothing is changed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from holdfast import App
from holdfast.acts import store as store_acts
from holdfast.acts.copy import StoreCopy, copy_store
from holdfast.core.access import Token
from holdfast.core.limits import Setting
from holdfast.core.machine import State
from holdfast.core.records import Filter, Job
from holdfast.core.verdict import Failed, Succeeded
from holdfast.errors import Refused, UsageError
from holdfast.stores import open_store
from holdfast.stores.copying import NOT_COPIED, TABLES, HasTables, Tables, neutral
from holdfast.stores.protocol import Reply, Store
from holdfast.workflow.flow import Flow
from tests.factory import (
    a_record,
    a_signal,
    a_step,
    add,
    enrol,
    job_in,
    make_job,
    picture,
    row,
    settle,
    start,
    start_flow,
)
from tests.stores.conftest import Places
from tests.worker.house import until


@pytest.fixture
def source(place: Places) -> str:
    """A store with something of everything in it, whose workers have gone."""
    url = place("sqlite-1")
    with closing(open_store(url)) as store:
        store.migrate()
        fill(store)
    return url


def fill(store: Store) -> None:
    """Store something of everything. The workers are gone at the end; one has left a running job, and one a step."""
    for state in State:
        if state is not State.RUNNING:
            job_in(store, state, key=f"key-{state.value}", group="acme", tags='["blau","grün"]', meta='{"n":"42"}')
    failing = start(store, payload='{"x": "ü\\u2028 \\ud83d\\ude00", "n": 123456789012345678901234567890}')
    settle(store, failing, Failed("ValueError: no luck"))
    flow = start_flow(store, on_crash="hold")
    a_step_with_result = a_step(1, name="reserve", result='{"a": [1, 2.5, null]}', arguments="[[1],{}]", has_undo=True)
    store.record([a_record(flow, a_step_with_result, a_step(2, "started", repeatable=False), open_step="2")])
    store.signal(a_signal(flow, "approval", value="true"))
    settle(store, start(store, run_at=1e9 + 1 / 3, priority=-7), Succeeded('"' + "y" * 5000 + '"'))
    add(store, run_at=4e9, expires_s=5e8)
    store.tokens.add(Token(name="ci", role="operator", queues=("mail",), sha256="0" * 64, created_at=1.5))
    store.limit("mail", Setting(limit=3, group_limit=2), declared=True)
    store.pause("bulk", True, group="acme", actor="ann", note="too much")
    store.acquire("prune", "me", 60.0)
    with closing(App(store.url)) as app:

        @app.task
        def ok(number: int = 0) -> int:
            return number

        app.cron("*/5 * * * *", ok.job(1), key="every-five")
        with app.batch(then=ok.using(priority=9)) as batch:
            batch.add(ok.job(1))
        ok.using(key="k", key_scope="ever").enqueue(4)
        first = ok.enqueue(1)
        ok.using(after=[first]).enqueue(2)
        app.tick(budget_s=10.0)
    start(store, enrol(store, name="killed"), on_crash="hold")
    start(store, enrol(store, name="also-killed"))
    for worker in store.workers():
        store.retire(worker.id, "the machine was switched off")


def tables_of(store: Store) -> Tables:
    assert isinstance(store, HasTables)
    return store.tables


def seen_by_people(url: str) -> Any:
    """What anybody can read of a store, without the workers: they are gone in a copy, whatever they were."""
    with closing(open_store(url, create=False)) as store:
        jobs, flows, journal, counts, _, paused = picture(store)
        schedules, tokens, batches = store.schedules(), store.tokens.all(), store.batches.find()
        more = [(batch, store.batches.counts(batch.id)) for batch in batches]
        counters, errors = store.figures.counters(), store.errors(0.0)
        rollups = tables_of(store).rows(next(table for table in TABLES if table.name == "rollup"))
        charts = sorted(tuple(row.values()) for row in rollups)
        seen = jobs, flows, journal, counts, paused, schedules, tokens, more, counters, errors, store.queues(), charts
        return rounded(msgspec.to_builtins(seen))


def rounded(value: Any) -> Any:
    """Round as SQLite shows floats in JSON; checksums compare them exactly."""
    if isinstance(value, float):
        return float(f"{value:.15g}")
    if isinstance(value, dict):
        return {rounded(name): rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def test_a_store_moves_to_postgres_and_back_and_nothing_is_changed(place: Places, source: str) -> None:
    """The first copy settles what ran. The next ones change nothing at all."""
    copy_store(source, place("sqlite-2"), "ann")
    before = seen_by_people(place("sqlite-2"))
    moves = ["sqlite-2", "postgres-1", "postgres-2", "redis-1", "redis-2", "postgres-3", "redis-3", "sqlite-3"]
    checksums = []
    for here, there in pairwise(moves):
        report = copy_store(place(here), place(there), "ann")
        checksums.append({each.name: each.sha256 for each in report.tables if each.name != "incarnation"})
        after = seen_by_people(place(there))
        for was, now in zip(before, after, strict=True):
            assert now == was, there
        with closing(open_store(place(there))) as store:
            assert store.check() == []
    for each in checksums[1:]:
        assert each == checksums[0]


def test_a_running_job_is_lost_at_no_cost_and_keeps_its_fence(place: Places, source: str) -> None:
    with closing(open_store(source)) as store:
        running = store.find(Filter(states=(State.RUNNING,)))
    assert len(running) == 3, "one job of each killed worker, and a workflow inside a step"
    report = copy_store(source, place("postgres-1"), "ann")
    assert report.lost == 3
    with closing(open_store(place("postgres-1"))) as store:
        for job in running:
            now = row(store, job.id)
            assert (now.crashes, now.attempt) == (job.crashes, job.attempt)
            assert now.fence >= job.fence
            assert now.state is (State.HELD if job.on_crash == "hold" else State.READY)
            assert settle(store, job, Succeeded()) is not Reply.ACCEPTED, "its worker returns, and is refused"


@pytest.mark.parametrize("path", [["sqlite-1", "postgres-1", "redis-1", "sqlite-2"], ["redis-1", "sqlite-2"]])
def test_work_in_the_middle_goes_on_where_the_source_stood(place: Places, path: list[str]) -> None:
    """Numbers are not given twice, keys are still taken, limits hold, and a workflow continues after its last step."""
    ran: list[str] = []
    with closing(open_store(place(path[0]))) as store:
        store.migrate()
        fill(store)
    with closing(App(place(path[0]))) as app:
        parts = _order(app, ran)
        parts.order.enqueue(1)
        app.tick(budget_s=10.0)
        before = app.store.journal(limit=1000)[-1], app.store.schedules(), app.store.queues()
        with app.batch(then=parts.note.job("batch")) as batch:
            batch.add(parts.note.job("part"))
        first = parts.note.using(key="once", key_scope="ever").enqueue("first")
        parts.note.using(after=[first]).enqueue("second")
    assert ran == ["reserve"]
    for here, there in pairwise(path):
        copy_store(place(here), place(there), "ann")
    with closing(App(place(path[-1]))) as app:
        parts = _order(app, ran)
        [job] = app.find(task=parts.order.name)
        now, was = (rounded(msgspec.to_builtins(each)) for each in (app.store.schedules(), before[1]))
        assert now == was
        limits = ((each.name, each.declared, each.chosen, each.paused_groups) for each in app.store.queues())
        assert list(limits) == [(each.name, each.declared, each.chosen, each.paused_groups) for each in before[2]]
        assert app.store.add([make_job(key="key-ready")])[0].existed
        assert parts.note.using(key="once", key_scope="ever").enqueue("again").existed
        assert not app.store.add([make_job()])[0].existed
        app.signal(job.id, "approval", True)
        until(lambda: app.tick(budget_s=1.0) and len(ran) >= 6)
        assert app.get(job.id).state == "done"
        assert max(event.seq for event in app.store.journal(limit=1000)) > before[0].seq
        assert app.store.check() == []
    assert sorted(ran) == ["batch", "first", "part", "reserve", "second", "ship"], "no recorded step is run again"
    assert ran.index("first") < ran.index("second")


class Parts(NamedTuple):
    order: Any
    note: Any


def _order(app: App, ran: list[str]) -> Parts:
    @app.task(name="note")
    def note(word: str) -> None:
        ran.append(word)

    @app.workflow(name="order")
    def order(flow: Flow, number: int) -> str:
        flow.step(ran.append, "reserve")
        flow.wait("approval")
        flow.step(ran.append, "ship")
        return "sent"

    return Parts(order, note)


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        ("sqlite-2", "copy.page:9"),
        ("sqlite-2", "copy.settled"),
        ("postgres-1", "copy.page:3"),
        ("postgres-1", "copy.passed"),
        ("redis-1", "copy.page:7"),
        ("redis-1", "copy.settled"),
    ],
)
def test_a_copy_that_was_killed_continues(place: Places, source: str, kind: str, at: str) -> None:
    """Until it is complete no worker claims from either store."""
    name, _, times = at.partition(":")
    command = [sys.executable, "-m", "holdfast", "db", "copy", "--from", source, "--to", place(kind)]
    armed = {**os.environ, "HOLDFAST_POINT": f"{name}=kill:{times or 1}"}
    assert subprocess.run(command, env=armed, check=False, capture_output=True).returncode == -signal.SIGKILL
    for url in (source, place(kind)):
        with closing(open_store(url)) as store:
            assert store.doubts() or not store.find(Filter())
    copy_store(source, place(kind), "ann")
    copy_store(place(kind), place("sqlite-9"), "ann")
    with closing(open_store(place("sqlite-9"))) as store:
        assert store.doubts() == []
        ended = tables_of(store)
        with closing(open_store(source)) as first:
            for table in TABLES:
                assert table.settings or ended.count(table) >= tables_of(first).count(table), table.name
        assert {job.id for job in store.find(Filter(limit=1000))} == _ids(source)


def _ids(url: str) -> set[str]:
    with closing(open_store(url)) as store:
        return {job.id for job in store.find(Filter(limit=1000))}


def test_a_source_that_changes_meanwhile_is_compared_again(place: Places, source: str) -> None:
    """A job that is stored, and one that is cancelled, while the copy runs: both are in it."""
    with closing(open_store(source)) as one, closing(open_store(place("postgres-1"))) as other:
        other.migrate()
        copy = StoreCopy(one, other)
        copy.check()
        changed: list[Job] = []

        def change(_: int) -> None:
            if not changed:
                changed.append(add(one))
                with closing(App(source)) as app:
                    ready = one.find(Filter(states=(State.WAITING,)))[0]
                    app.cancel(ready.id, by="ann")
                    changed.append(ready)

        copy.advance = change
        copy.run("ann")
        assert row(other, changed[0].id).state is State.READY
        assert row(other, changed[1].id).state is State.CANCELLED


def test_a_worker_of_the_source_must_stop_first(place: Places, source: str) -> None:
    with closing(open_store(source)) as store:
        worker = enrol(store, name="box")
        with pytest.raises(Refused, match=r"1 worker of the source still beat: box; .*--drain"):
            copy_store(source, place("sqlite-2"), "ann")
        assert not store.doubts(), "nothing was begun"
        store.retire(worker, "it stopped")
    copy_store(source, place("sqlite-2"), "ann")


def test_a_drain_that_gives_up_takes_its_orders_back(place: Places, source: str) -> None:
    with closing(open_store(source)) as one, closing(open_store(place("sqlite-2"))) as other:
        other.migrate()
        enrol(one, name="busy")
        with pytest.raises(Refused, match="busy did not stop within 0 s; nothing was copied"):
            StoreCopy(one, other).drain("ann", 0.0)
        assert one.orders() == []


def test_a_store_with_jobs_is_never_copied_over(place: Places, source: str) -> None:
    with closing(open_store(place("sqlite-2"))) as store:
        store.migrate()
        add(store)
    with pytest.raises(Refused, match="not empty"):
        copy_store(source, place("sqlite-2"), "ann")
    with pytest.raises(UsageError, match="the same store"):
        copy_store(source, source, "ann")
    with pytest.raises(UsageError, match="cannot be copied"):
        copy_store(source, "memory://", "ann")
    copy_store(source, place("sqlite-3"), "ann")
    with pytest.raises(Refused, match="complete already"):
        copy_store(source, place("sqlite-3"), "ann")
    with pytest.raises(Refused, match="was copied to"):
        copy_store(source, place("sqlite-4"), "ann")


def test_a_job_that_a_program_stores_in_the_target_is_not_deleted(place: Places, source: str) -> None:
    with closing(open_store(source)) as one, closing(open_store(place("sqlite-2"))) as other:
        other.migrate()
        copy = StoreCopy(one, other)
        copy.check()
        stored: list[Job] = []

        def enqueue(_: int) -> None:
            if not stored:
                stored.append(add(other))

        copy.advance = enqueue
        with pytest.raises(Refused, match="stores jobs in the target"):
            copy.run("ann")
        assert row(other, stored[0].id).state is State.READY


def test_a_copy_that_another_program_has_ended_writes_no_more(place: Places, source: str) -> None:
    with closing(open_store(source)) as one, closing(open_store(place("sqlite-2"))) as other:
        other.migrate()
        copy = StoreCopy(one, other)
        copy.check()
        copy.advance = lambda _: store_acts.accept(other, "ann", "by mistake")
        with pytest.raises(Refused, match="is not complete"):
            copy.run("ann")
        copy.advance = lambda _: other.accept(other.standing("", (), None).incarnation, "another", None)
        with pytest.raises(Refused, match="no copy into this store is under way"):
            copy.run("ann")


def test_a_row_that_the_source_has_lost_is_not_in_the_copy(place: Places, source: str) -> None:
    """A job that is deleted from the source after the first pass."""
    with closing(open_store(source)) as one, closing(open_store(place("sqlite-2"))) as other:
        other.migrate()
        copy = StoreCopy(one, other)
        copy.check()
        gone: list[str] = []

        def forget(_: int) -> None:
            if not gone and len(_ids(place("sqlite-2"))) > 5:
                job = one.find(Filter(states=(State.DEAD,)))[0]
                gone.append(job.id)
                one.delete([job.seen])

        copy.advance = forget
        copy.run("ann")
        assert gone
        assert other.get(gone[0]) is None


def test_workers_wait_for_the_end_of_a_copy_and_leave_the_source_alone(place: Places, source: str) -> None:
    with closing(open_store(source)) as one, closing(open_store(place("sqlite-2"))) as other:
        other.migrate()
        copy = StoreCopy(one, other)
        copy.check()
        seen: list[int] = []
        copy.advance = lambda _: seen.append(other.standing("", (), None).doubts)
        copy.run("ann")
        assert set(seen) == {1}
        assert other.standing("", (), None).doubts == 0
        assert one.standing("", (), None).doubts == 1


def test_a_fleet_is_drained_and_moved_by_one_command(place: Places, tmp_path: Path) -> None:
    """Workers of a supervisor stop after their jobs, and the next fleet on the new store does the rest."""
    (tmp_path / "moved.py").write_text(
        "import holdfast\n"
        "app = holdfast.App()\n"
        "@app.task\n"
        "def note(number: int) -> None:\n"
        "    with open('ran', 'a') as out: out.write(f'{number}\\n')\n"
    )
    holdfast, before, after = [sys.executable, "-m", "holdfast"], place("sqlite-1"), place("postgres-1")
    with closing(open_store(before)) as store:
        store.migrate()
        store.add([make_job(task="moved.note", payload=f'{{"number":{number}}}') for number in range(3)])
        store.add([make_job(task="moved.note", payload='{"number":7}', delay_s=3600.0)])
        fleet = [*holdfast, "worker", "moved:app", "--processes", "2", "--name", "box", "--db", before]
        with (tmp_path / "log").open("wb") as log:
            worker = subprocess.Popen(fleet, cwd=tmp_path, stdout=log, stderr=log)
        try:
            until(lambda: len([each for each in store.workers() if each.gone_at is None]) >= 2)
            until(lambda: store.counts()["default"].get(State.DONE) == 3)
            copy = [*holdfast, "db", "copy", "--from", before, "--to", after, "--drain", "--json"]
            said = subprocess.run(copy, cwd=tmp_path, check=True, capture_output=True)
            shown = json.loads(said.stdout)
            assert shown["lost"] == 0
            assert {each["table"]: each["rows"] for each in shown["tables"]}["job"] == 4
            assert store.orders() == []
        finally:
            worker.terminate()
            worker.wait(60)
    with closing(App(after)) as app:
        assert app.counts()["ready"] == 1
        assert app.store.orders() == []


def test_every_table_and_column_is_copied_or_left_out_for_a_reason(place: Places) -> None:
    found = {}
    for kind in ("sqlite-1", "postgres-1", "redis-1"):
        with closing(open_store(place(kind))) as store:
            store.migrate()
            found[kind] = tables_of(store).columns()
    copied = {table.name for table in TABLES}
    for kind, tables in found.items():
        assert set(tables) - NOT_COPIED == copied, kind
    redis = found.pop("redis-1")
    for table in TABLES:
        rows = [dict.fromkeys(tables[table.name], "x") for tables in found.values()]
        assert neutral(table.name, rows[0]).keys() == neutral(table.name, rows[1]).keys(), table.name
        left_out = {"holder", "until"} if table.name == "duty" else set()
        assert neutral(table.name, rows[0]).keys() - left_out == set(redis[table.name]) - left_out, table.name


def test_a_table_that_was_damaged_on_the_way_is_found(place: Places, source: str) -> None:
    """The last pass reads both stores again: what another program changed meanwhile is mended before the end."""
    with closing(open_store(source)) as one, closing(open_store(place("sqlite-2"))) as other:
        other.migrate()
        copy = StoreCopy(one, other)
        copy.check()
        file = place("sqlite-2").removeprefix("sqlite:///").partition("?")[0]
        hit: list[bool] = []

        def damage(_: int) -> None:
            if not hit and _ids(place("sqlite-2")):
                hit.append(True)
                with closing(sqlite3.connect(file)) as db, db:
                    db.execute("UPDATE holdfast_job SET payload = '{}' WHERE seq = 2")

        copy.advance = damage
        copy.run("ann")
        assert hit
        was, now = ({job.id: job.payload for job in each.find(Filter(limit=1000))} for each in (one, other))
        assert was == now
