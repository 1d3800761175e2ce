"""Attacks on `holdfast db copy`: programs that start too early, full disks, strange and damaged rows, other schemas."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path

import psycopg
import pytest

from holdfast import App
from holdfast.acts.copy import StoreCopy, copy_store
from holdfast.core.machine import State
from holdfast.core.records import Filter, NewEvent
from holdfast.core.verdict import Succeeded
from holdfast.errors import Refused, SchemaMismatch, StoreFull, StoreUnavailable
from holdfast.stores import open_store
from holdfast.stores.protocol import Store
from holdfast.upkeep.reaper import reap
from tests.factory import add, enrol, make_job, settle, start
from tests.servers import RedisServer
from tests.stores.conftest import Places
from tests.stores.test_copy import fill
from tests.worker.house import until

CLI = [sys.executable, "-m", "holdfast"]
MIB = 1 << 20


@contextmanager
def under_way(source_url: str, target_url: str, meanwhile: Callable[[Store, Store], None]) -> Iterator[StoreCopy]:
    """Copy, and do something once, after the first jobs were written."""
    with closing(open_store(source_url)) as source, closing(open_store(target_url)) as target:
        target.migrate()
        copy = StoreCopy(source, target)
        copy.check()
        done: list[bool] = []

        def advance(_: int) -> None:
            if not done and target.find(Filter(limit=1)):
                done.append(True)
                meanwhile(source, target)

        copy.advance = advance
        yield copy
        assert done


def retire_all(store: Store) -> None:
    for worker in store.workers():
        store.retire(worker.id, "the machine was switched off")


def filled(url: str) -> str:
    with closing(open_store(url)) as store:
        store.migrate()
        fill(store)
    return url


@pytest.mark.parametrize("kind", ["sqlite-2", "redis-1"])
def test_a_worker_that_starts_on_the_target_too_early_waits(place: Places, tmp_path: Path, kind: str) -> None:
    """It judges no job of the copy, fires no schedule and claims nothing until the copy is complete; then it works."""
    source, target = filled(place("sqlite-1")), place(kind)
    (tmp_path / "early.py").write_text(
        "import holdfast\napp = holdfast.App()\n"
        "@app.task(name='ok')\n"
        "def ok() -> None: pass\n"
        "app.cron('* * * * *', ok.job(), key='each-minute')\n"
    )
    with closing(open_store(source)) as store:
        store.add([job := make_job(task="ok")])
    started: list[subprocess.Popen[bytes]] = []
    log = tmp_path / "log"

    def begin(_: Store, there: Store) -> None:
        with log.open("wb") as out:
            words = [*CLI, "worker", "early:app", "--db", target]
            started.append(subprocess.Popen(words, cwd=tmp_path, stdout=out, stderr=out))
        until(lambda: b"not complete" in log.read_bytes())
        with pytest.raises(StoreUnavailable, match="not complete"), closing(App(target)) as app:
            app.task(name="no")(print).enqueue()
        with pytest.raises(StoreUnavailable, match="not complete"):
            reap(there, App(target).clock)

    try:
        with under_way(source, target, begin) as copy:
            report = copy.run("ann")
        assert report.lost == 3, "no program had settled one of them"
        with closing(open_store(target)) as store:
            until(lambda: (found := store.get(job.id)) is not None and found.state is State.DONE)
    finally:
        for process in started:
            process.terminate()
            process.wait(60)


def test_a_worker_that_starts_on_the_source_in_time_stops_the_copy(place: Places) -> None:
    """It has looked at the store just before the copy said that it begins, so it may claim."""
    source = filled(place("sqlite-1"))
    with closing(open_store(source)) as one, closing(open_store(place("sqlite-2"))) as other:
        other.migrate()
        copy = StoreCopy(one, other)
        copy.check()
        enrol(one, name="quick")
        with pytest.raises(Refused, match="of the source still beat: quick"):
            copy.run("ann")
        assert not other.find(Filter()), "nothing was copied"


def test_a_copy_of_another_store_is_not_continued(place: Places) -> None:
    first, second, target = filled(place("sqlite-1")), filled(place("sqlite-2")), place("redis-1")

    def stop(*_: Store) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), under_way(first, target, stop) as copy:
        copy.run("ann")
    with pytest.raises(Refused, match="unfinished copy of another store"):
        copy_store(second, target, "ann")
    assert copy_store(first, target, "ann").lost == 3


def test_a_disk_that_is_full_stops_the_copy_and_loses_nothing(
    place: Places, tmp_path: Path, mounting: list[str]
) -> None:
    """The file of the target is on a file system of 2 MB; the same command continues elsewhere it has room."""
    source = filled(place("sqlite-1"))
    with closing(open_store(source)) as store:
        settle(store, start(store), Succeeded('"' + "x" * (4 * MIB) + '"'))
        retire_all(store)
    small = tmp_path / "small"
    small.mkdir()
    script = (
        'mount -t tmpfs -o size=2m tmpfs "$1" || exit 99\n'
        '"$2" -m holdfast db copy --from "$3" --to "sqlite:///$1/copy.db"; echo "exit $?" >&2\n'
        'mount -o remount,size=64m "$1" || exit 99\n'
        'exec "$2" -m holdfast db copy --from "$3" --to "sqlite:///$1/copy.db"'
    )
    command = [*mounting, "sh", "-c", script, "sh", str(small), sys.executable, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    first, _, rest = done.stderr.partition("exit ")
    assert "full" in first, done.stderr
    assert "Traceback" not in done.stderr
    assert not rest.startswith("0"), done.stderr
    assert done.returncode == 0, done.stderr
    assert "may claim" in done.stdout + done.stderr


def test_a_server_that_is_full_stops_the_copy_and_loses_nothing(place: Places) -> None:
    source = filled(place("sqlite-1"))
    with closing(open_store(source)) as store:
        for _ in range(3):
            settle(store, start(store), Succeeded('"' + "x" * MIB + '"'))
        retire_all(store)
    server = RedisServer()
    try:
        server.set("maxmemory", "3mb")
        with pytest.raises(StoreFull, match="maxmemory"):
            copy_store(source, server.url, "ann")
        with closing(open_store(server.url)) as half:
            assert [doubt.evidence for doubt in half.doubts()] == ["copy"]
        server.set("maxmemory", "0")
        copy_store(source, server.url, "ann")
        _same(source, server.url)
    finally:
        server.close()


def _same(one: str, other: str) -> None:
    with closing(open_store(one)) as first, closing(open_store(other)) as second:
        was, now = (
            {job.id: (job.payload, job.result) for job in each.find(Filter(limit=1000))} for each in (first, second)
        )
        assert now == was
        assert second.check() == []
        assert second.doubts() == []


def test_huge_and_strange_values_survive_the_way_over_every_store(place: Places) -> None:
    """Arguments of 5 MB, text in every plane of Unicode, numbers at the edge, histories of a thousand lines."""
    strange = "\u2028 \U0001f600 ﷽ a\u0301 \x7f ' \" \\ %s {x} $1"
    url = place("sqlite-1")
    with closing(open_store(url)) as store:
        store.migrate()
        add(store, payload='{"x":"' + "é" * (2 * MIB) + '"}', queue="große", task=f"täsk {strange}", key=strange)
        add(store, priority=2**31 - 1, run_at=253402300799.0, group=strange, meta='{"n":"9007199254740993"}')
        add(store, priority=-(2**31), payload='{"n": 123456789012345678901234567890, "f": 1e-300, "z": -0.0}')
        settle(store, start(store), Succeeded('"' + strange.replace('"', "").replace("\\", "") + '"'))
        retire_all(store)
        for number in range(1200):
            store.note_act(
                NewEvent("warning", {"n": number, "text": strange, "list": [1.5, None, {"a": []}]}, "ännchen")
            )
    path = ["sqlite-1", "postgres-1", "redis-1", "sqlite-2"]
    sums = []
    for here, there in pairwise(path):
        report = copy_store(place(here), place(there), "ann")
        sums.append({each.name: each.sha256 for each in report.tables if each.name not in ("incarnation", "worker")})
        _same(place(here), place(there))
    assert sums[0] == sums[1] == sums[2]
    with closing(open_store(place("redis-1"))) as one, closing(open_store(place("sqlite-2"))) as other:
        assert [event.detail for event in one.audit(2000)] == [event.detail for event in other.audit(2000)]


def test_a_damaged_row_is_named_and_stops_the_copy(place: Places) -> None:
    source = filled(place("sqlite-1"))
    with closing(open_store(source)) as store:
        waiting = store.find(Filter(states=(State.WAITING,)))[0]
    file = source.removeprefix("sqlite:///").partition("?")[0]
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("UPDATE holdfast_job SET awaits = '[1' WHERE id = ?", [waiting.id])
    command = [*CLI, "db", "copy", "--from", source, "--to", place("redis-1")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr, done.stderr
    assert waiting.id in done.stderr, done.stderr


@pytest.mark.parametrize("kind", ["sqlite-2", "postgres-1"])
def test_an_older_schema_on_either_side_is_migrated_by_a_person_first(place: Places, kind: str) -> None:
    """The store of somebody else, given by mistake as the target, is not migrated either."""
    source, old = filled(place("sqlite-1")), place(kind)
    with closing(open_store(old)) as store:
        store.migrate()
        found = store.schema().found
    _set_schema(old, found - 1)
    for one, other in ((source, old), (old, source)):
        command = [*CLI, "db", "copy", "--from", one, "--to", other]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, "holdfast db migrate" in done.stderr) == (4, True), done.stderr
        with pytest.raises(SchemaMismatch):
            copy_store(one, other, "ann")
    _set_schema(old, found + 1)
    with pytest.raises(SchemaMismatch, match="newest Holdfast"):
        copy_store(source, old, "ann")


def _set_schema(url: str, number: int) -> None:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///").partition("?")[0])) as db, db:
            db.execute("UPDATE holdfast_meta SET value = ? WHERE name = 'schema'", [str(number)])
        return
    address, _, schema = url.partition("?schema=")
    with psycopg.connect(address) as server:
        server.execute(f"UPDATE {schema}.meta SET value = %s WHERE name = 'schema'", [str(number)])


def test_a_target_that_cannot_be_written_is_named(place: Places, tmp_path: Path) -> None:
    """A folder that is not there, and a user of the server who may only read."""
    source = filled(place("sqlite-1"))
    for target in (
        f"sqlite:///{tmp_path}/nowhere/copy.db",
        place("postgres-1") + "&options=-c%20default_transaction_read_only=on",
    ):
        done = subprocess.run(
            [*CLI, "db", "copy", "--from", source, "--to", target], capture_output=True, text=True, check=False
        )
        assert done.returncode != 0
        assert "Traceback" not in done.stderr, done.stderr
        with closing(open_store(source)) as store:
            assert not store.doubts(), "the source goes on"
