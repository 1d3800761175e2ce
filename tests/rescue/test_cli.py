"""`holdfast rescue`, as a person and cron use it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.clock import SystemClock, pause
from holdfast.rescue import Map
from tests.rescue.conftest import TIMES, Shop

PATIENCE_S = 60.0


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", "rescue", *args]


def run(*args: str, code: int = 0, point: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **({"HOLDFAST_POINT": point} if point else {})}
    done = subprocess.run(command(*args), capture_output=True, text=True, env=env, timeout=PATIENCE_S, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done


@contextmanager
def watching(*args: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command("watch", *args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def eventually(holds: Any) -> None:
    clock = SystemClock()
    give_up_at = clock.lease() + PATIENCE_S
    while not holds():
        assert clock.lease() < give_up_at
        pause(0.05)


@pytest.mark.slow  # four processes of the command line
def test_from_a_proposed_map_to_a_rescued_table(shop: Shop, tmp_path: Path) -> None:
    shop.add(1)
    shop.add(2, ago_s=1)
    shop.run("UPDATE jobs SET status = 'queued' WHERE id = 0")
    shop.run("INSERT INTO jobs VALUES (8, 'queued', 0, NULL, NULL, NULL, NULL)")
    shop.run("INSERT INTO jobs VALUES (9, 'failed', 0, NULL, NULL, NULL, NULL)")
    path = tmp_path / "proposed.toml"
    run("init", "--url", shop.url, "--table", "jobs", "--map", str(path))
    proposed = tomllib.loads(path.read_text())
    assert {key: proposed[key] for key in ("running", "ready", "dead", "worker", "error")} == {
        "running": "running",
        "ready": "queued",
        "dead": "failed",
        "worker": "locked_by",
        "error": "last_error",
    }
    assert ("time_zone" in proposed) is (TIMES[shop.engine] != "timestamptz")
    assert proposed["updated"] == "seen_at"
    place = ("--url", shop.url, "--map", str(path))
    found = json.loads(run("scan", *place, "--json", "--check", code=7).stdout)
    assert (found["dry_run"], found["ghosts_found"], found["ghosts_rescued"]) == (True, 1, 0)
    assert shop.row(1)[0] == "running"
    shown = run("fix", *place)
    assert "1 of 1 ghosts rescued: 1 run again. 1 places are free again." in shown.stderr
    assert "its last sign of life is" in shown.stdout
    assert (shop.row(1)[0], shop.row(2)[0]) == ("queued", "running")


def test_a_rescuer_that_is_killed_leaves_no_row_half_rescued(shop: Shop, map_file: Path) -> None:
    for number in range(1, 7):
        shop.add(number)
    place = ("--url", shop.url, "--map", str(map_file))
    run("fix", *place, code=-signal.SIGKILL, point="rescue.middle=kill:3")
    rescued = {number for number in range(1, 7) if shop.row(number)[0] == "queued"}
    assert len(rescued) == 2
    assert {int(job) for job, *_ in shop.journal()} == rescued
    run("fix", *place)
    assert [shop.row(number)[:2] for number in range(1, 7)] == [("queued", 1)] * 6
    assert sorted(int(job) for job, *_ in shop.journal()) == [1, 2, 3, 4, 5, 6]


def test_watch_rescues_what_dies_later_and_leaves_in_good_order(shop: Shop, map_file: Path) -> None:
    place = ("--url", shop.url, "--map", str(map_file))
    with watching(*place, "--fix", "--interval", "100ms") as process:
        shop.add(1)
        eventually(lambda: shop.row(1)[0] == "queued")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert "recovered 1 orphaned rows of jobs" in said
    assert "rescued 1 rows" in said


def test_watch_without_fix_only_says_what_it_sees(shop: Shop, map_file: Path) -> None:
    if shop.engine != "sqlite":
        pytest.skip("the engine makes no difference")
    shop.add(1)
    with watching("--url", shop.url, "--map", str(map_file), "--interval", "100ms") as process:
        assert process.stderr is not None
        eventually(lambda: "found 1 orphaned rows of jobs; nothing was changed" in process.stderr.readline())
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert shop.row(1)[0] == "running"


def test_init_names_what_it_did_not_find(shop: Shop, tmp_path: Path) -> None:
    if shop.engine != "sqlite":
        pytest.skip("the engine makes no difference")
    shop.run("CREATE TABLE odd (nr INTEGER PRIMARY KEY, state TEXT CHECK (state IN ('active', 'todo')), title TEXT)")
    done = run("init", "--url", shop.url, "--table", "odd", code=7)
    found = tomllib.loads(done.stdout)
    assert (found["id"], found["status"], found["running"], found["ready"]) == ("nr", "state", "active", "todo")
    assert "nothing was found for dead, started, attempts, error: fill that in" in done.stderr
    path = tmp_path / "there.toml"
    path.write_text("")
    assert "is there already" in run("init", "--url", shop.url, "--table", "jobs", "--map", str(path), code=2).stderr


def test_a_proposal_can_be_read_as_a_map(shop: Shop) -> None:
    from holdfast.rescue.proposal import propose
    from holdfast.rescue.sweep import opened

    shop.add(1)
    shop.run("INSERT INTO jobs VALUES (8, 'queued', 0, NULL, NULL, NULL, NULL)")
    shop.run("INSERT INTO jobs VALUES (9, 'failed', 0, NULL, NULL, NULL, NULL)")
    with opened(shop.url) as database:
        proposal = propose(database, "jobs")
    assert proposal.missing == ()
    assert Map.of(tomllib.loads(proposal.text)).status == "status"


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("sqlite:///no/such.db", 3, "there is no file"),
        ("oracle://x", 2, "must be an address such as"),
        ("postgresql://holdfast@127.0.0.1:1/x", 3, "cannot be reached"),
    ],
)
def test_an_address_that_does_not_work_says_why(url: str, code: int, says: str, map_file: Path) -> None:
    assert says in run("scan", "--url", url, "--map", str(map_file), code=code).stderr
