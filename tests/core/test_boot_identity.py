"""Which clock a lease is counted on: the boot, and the time namespace where its clock is another (DESIGN 15.4)."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import clock
from holdfast.clock import SystemClock
from holdfast.stores.sqlite.store import SqliteStore
from tests.factory import enrol, start

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has time namespaces")
SHIFTED = ["unshare", "--user", "--map-root-user", "--time", "--boottime", "100000", "--fork"]


@linux
@pytest.mark.parametrize(
    ("offsets", "suffix"),
    [
        ("monotonic           0         0\nboottime            0         0\n", ""),
        ("monotonic         100         0\nboottime            0         0\n", ""),  # leases are not counted on it
        ("monotonic           0         0\nboottime          100         0\n", "/boottime+100s+0ns"),
        ("monotonic           0         0\nboottime         -100       500\n", "/boottime-100s+500ns"),
        ("monotonic           0         0\nboottime            0         1\n", "/boottime+0s+1ns"),
        (None, ""),
    ],
)
def test_the_boot_identity_changes_only_where_the_clock_does(
    offsets: str | None, suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an ordinary host it is what it always was: workers of an older version share the file."""
    monkeypatch.setattr(clock, "_OFFSETS", tmp_path / "offsets")
    if offsets is not None:
        (tmp_path / "offsets").write_text(offsets)
    assert clock._boot_id.__wrapped__() == BOOT_ID.read_text().strip() + suffix


LOOK = """
import sys
from holdfast.stores.sqlite.store import SqliteStore
store = SqliteStore("sqlite:///" + sys.argv[1])
print(store._clock.boot_id, [job.id for job in store.overdue()], store.deadline())
store.close()
"""


@linux
def test_a_live_lease_is_not_expired_for_a_process_in_another_time_namespace(tmp_path: Path) -> None:
    try:
        subprocess.run([*SHIFTED, "true"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no time namespace can be made here")
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db")
    store.migrate()
    worker = enrol(store, boot_id=SystemClock().boot_id)
    start(store, worker)
    command = [*SHIFTED, sys.executable, "-c", LOOK, str(tmp_path / "jobs.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    store.retire(worker, "the test is over")
    store.close()
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{SystemClock().boot_id}/boottime+100000s+0ns", "[]", "None"]


@linux
def test_a_worker_of_the_landed_version_and_a_new_one_know_each_others_boot(tmp_path: Path) -> None:
    """The landed version stored the kernel's boot id as it is."""
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db")
    store.migrate()
    if clock._clock_offset():
        pytest.skip("this very test runs in a time namespace of its own")
    worker = enrol(store, boot_id=BOOT_ID.read_text().strip(), beat_s=0.001)
    start(store, worker)
    assert SystemClock().boot_id == BOOT_ID.read_text().strip()
    assert store.vanished() == [], "it is judged by its lock and its lease, as any worker of this host"
    assert store.overdue() == []
    assert store.deadline() is not None
    store.retire(worker, "the test is over")
    store.close()
