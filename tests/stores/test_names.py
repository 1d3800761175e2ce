"""P14 on SQLite: one database under two names is refused, because each name has its own `-wal` and `-shm` files."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.errors import StoreUnsupported
from holdfast.stores.sqlite import locks, names
from holdfast.stores.sqlite.store import SqliteStore
from tests.factory import add
from tests.stores.test_wal import add_elsewhere, jobs_seen_elsewhere, python, worker
from tests.worker.house import until

OPEN = (
    "import sys; from holdfast.errors import StoreError; from holdfast.stores.sqlite.store import SqliteStore\n"
    "try:\n"
    "    store = SqliteStore(f'sqlite:///{sys.argv[1]}'); print(len(store.counts())); store.close()\n"
    "except StoreError as error: print(type(error).__name__, error)"
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A store that nobody uses."""
    (folder := tmp_path / "a").mkdir()
    with closing(SqliteStore(f"sqlite:///{folder}/jobs.db")) as store:
        store.migrate()
        add(store)
    return folder / "jobs.db"


@pytest.fixture
def link(tmp_path: Path) -> Path:
    """Where its second name goes."""
    (tmp_path / "b").mkdir()
    return tmp_path / "b" / "other.db"


def everything(folder: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


# -------------------------------------------------------------------------------------------- hard links


@pytest.mark.parametrize("create", [True, False])
def test_a_file_with_two_names_is_refused_before_anything_is_written(
    tmp_path: Path, file: Path, link: Path, create: bool
) -> None:
    link.hardlink_to(file)
    before = everything(tmp_path)
    for name in (file, link):
        with pytest.raises(StoreUnsupported, match=r"has 2 names \(hard links\).*find FOLDER -xdev -samefile"):
            SqliteStore(f"sqlite:///{name}", create=create)
    assert everything(tmp_path) == before
    link.unlink()
    with closing(SqliteStore(f"sqlite:///{file}")) as store:
        assert len(store.counts()) == 1


def test_a_file_that_is_linked_while_in_use_is_used_on_under_its_own_name_only(
    file: Path, link: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A backup made of hard links must not stop a worker, nor keep it from starting a child again."""
    with closing(SqliteStore(f"sqlite:///{file}")) as store:
        kept = {add(store).id}
        link.hardlink_to(file)
        with caplog.at_level(logging.ERROR, "holdfast.stores"):
            kept |= {add(store).id for _ in range(3)}
        [said] = [record.getMessage() for record in caplog.records]
        assert (
            "has 2 names (hard links), and each has its own -wal file: jobs would be lost; this process continues"
            in said
        )
        kept |= add_elsewhere(file)
        with closing(SqliteStore(f"sqlite:///{file}")) as another:
            kept.add(add(another).id)
        assert python(OPEN, link).startswith("StoreUnsupported")
        assert kept <= jobs_seen_elsewhere(file)
    assert python(OPEN, file).startswith("StoreUnsupported"), "the last program that used it has ended"
    assert not list(link.parent.glob("*-wal")), "nothing was made under the other name"


def test_a_file_is_known_to_be_in_use_also_where_the_kernel_lists_no_locks(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_LIST", file.with_name("nothing"))
    assert not locks.is_used(file)
    with closing(SqliteStore(f"sqlite:///{file}")) as store:
        store.counts()
        assert locks.is_used(file)


@pytest.mark.slow
def test_a_worker_whose_file_is_linked_goes_on_and_replaces_a_killed_process(tmp_path: Path) -> None:
    """Slow: a real worker is started, and one of its processes is killed."""
    with worker(tmp_path) as program:
        program.until_said(" is ready")
        (tmp_path / "snapshot.db").hardlink_to(program.file)
        program.until_said("has 2 names (hard links)")
        with closing(SqliteStore(f"sqlite:///{program.file}")) as store:
            [child] = store.workers()
            os.kill(child.pid, signal.SIGKILL)
            until(
                lambda: [each.pid for each in store.workers()] not in ([], [child.pid]), "another one takes its place"
            )
        job = program.enqueue()
        until(lambda: program.state(job) == "done", "the job is done")
        doctor = program.holdfast("doctor", "-q")
        assert doctor.returncode == 7
        assert "The file has more than one name" in doctor.stdout
        program.popen.send_signal(signal.SIGTERM)
        assert program.popen.wait(60) == 0
        doctor = program.holdfast("doctor")
        assert doctor.returncode == 3
        assert "has 2 names (hard links)" in " ".join(doctor.stdout.split())


# ----------------------------------------------------------------------------------------------- mounts


def opened_under_a_mount(mounting: list[str], source: Path, target: Path, name: Path) -> str:
    script = 'mount --bind "$1" "$2" && exec "$3" -c "$4" "$5"'
    command = [*mounting, "sh", "-c", script, "sh", *map(str, (source, target, sys.executable, OPEN, name))]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("name", ["other.db", "my jöbs\\.db"])
def test_a_file_that_is_mounted_by_itself_is_refused(
    tmp_path: Path, file: Path, link: Path, mounting: list[str], name: str
) -> None:
    """As `docker run -v jobs.db:/data/jobs.db` does."""
    link = link.with_name(name)
    link.touch()
    before = everything(tmp_path)
    said = opened_under_a_mount(mounting, file, link, link)
    assert said.startswith(f"StoreUnsupported {link} is mounted by itself")
    assert "mount the folder that has the file instead" in said
    assert everything(tmp_path) == before


def test_a_folder_may_be_mounted_under_another_name(file: Path, link: Path, mounting: list[str]) -> None:
    with closing(SqliteStore(f"sqlite:///{file}")) as store:
        store.counts()
        assert opened_under_a_mount(mounting, file.parent, link.parent, link.parent / file.name) == "1\n"


def test_mount_points_are_read_with_any_bytes_in_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "mounts"
    table.write_bytes(b"63 60 0:27 /x /srv/my\\040j\xc3\xb6bs\\134\xff.db rw,relatime shared:1 - tmpfs tmpfs rw\n")
    monkeypatch.setattr(names, "_MOUNTS", table)
    path = Path(os.fsdecode(b"/srv/my j\xc3\xb6bs\\\xff.db"))
    assert list(names.mounts()) == [(path, "tmpfs")]
    with pytest.raises(StoreUnsupported, match="is mounted by itself"):
        names.check(path, 1)
