"""`holdfast db backup`: a copy of a SQLite store that is in use."""

import json
import os
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.core.records import Filter
from holdfast.errors import UsageError
from holdfast.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Run
from tests.factory import add, make_job
from tests.worker.house import until


def test_a_backup_of_a_store_in_use_is_one_sound_snapshot(tmp_path: Path, run: Run) -> None:
    """Acknowledged before it began: in it. Whatever others commit meanwhile neither waits nor makes it begin again."""
    url = f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    store = SqliteStore(url)
    store.migrate()
    before = {added.id for added in store.add([make_job(payload=json.dumps({"x": "y" * 2000})) for _ in range(2000)])}
    done = threading.Event()
    added = 0

    def write() -> None:
        nonlocal added
        while not done.is_set():
            store.add([make_job()])
            added += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: added)
        shown = run.json("db", "backup", str(tmp_path / "copy.db"), "--db", url)
        at_the_end = added
        until(lambda: added > at_the_end, "the writer goes on")
    finally:
        done.set()
        writer.join()
    assert shown == {"file": f"{tmp_path}/copy.db", "bytes": (tmp_path / "copy.db").stat().st_size}
    assert sorted(each.name for each in tmp_path.glob("copy*")) == ["copy.db"]
    assert stat.S_IMODE((tmp_path / "copy.db").stat().st_mode) == 0o600
    copy = SqliteStore(f"sqlite:///{tmp_path}/copy.db", create=False)
    copy.migrate()
    assert copy.check() == []
    with copy._db.reading() as db:
        assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert before <= {job.id for job in copy.find(Filter(limit=100_000))}
    copy.close()
    store.close()


def test_a_backup_never_overwrites_a_file(tmp_path: Path, run: Run, url: str, store: SqliteStore) -> None:
    (tmp_path / "taken.db").write_text("precious")
    (tmp_path / "link.db").symlink_to(tmp_path / "nowhere")
    add(store)
    for name in ("taken.db", "link.db", "jobs.db"):
        assert "exists; name a new file" in run("db", "backup", name, code=2).stderr
    assert "cannot write in" in run("db", "backup", "no/such/folder.db", code=2).stderr
    assert (tmp_path / "taken.db").read_text() == "precious"
    assert run("db", "backup", "new.db").stdout.startswith("new.db written (")
    assert not list(tmp_path.glob("*.part"))
    with closing(sqlite3.connect(tmp_path / "new.db")) as copy:
        assert copy.execute("SELECT count(*) FROM holdfast_job").fetchone() == (1,)


@pytest.mark.parametrize("name", ["jobs.db-journal", "jobs.db-doubt", "jobs.db-workers/copy.db"])
def test_a_backup_never_becomes_a_file_of_the_store(tmp_path: Path, run: Run, store: SqliteStore, name: str) -> None:
    (tmp_path / "jobs.db-workers").mkdir(exist_ok=True)
    assert "is a name of the store's own files" in run("db", "backup", name, code=2).stderr
    with pytest.raises(UsageError, match="the store's own files"):
        store.backup(tmp_path / name, lambda _: None)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_a_backup_never_takes_the_place_of_a_file_that_was_made_meanwhile(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def unsupported(*_: object) -> None:
        raise PermissionError("no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", unsupported)
    add(store)
    target = tmp_path / "new.db"
    with pytest.raises(UsageError, match="exists; name a new file"):
        store.backup(target, lambda _: None if target.exists() else target.write_text("precious"))
    assert target.read_text() == "precious"
    target.unlink()
    assert store.backup(target, lambda _: None) == target.stat().st_size
    assert not list(tmp_path.glob("*.part"))


def test_a_backup_of_another_kind_of_store_is_refused(tmp_path: Path, run: Run) -> None:
    assert "PostgreSQL has pg_dump" in run("db", "backup", "x.db", "--db", "memory://", code=2).stderr
    assert not (tmp_path / "x.db").exists()
