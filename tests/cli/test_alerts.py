"""Alerts on the command line: `alerts test`, and a reaper and a worker that tell of a job that was held."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.alerts.rules import Thresholds
from holdfast.alerts.webhook import sign
from holdfast.cli.alerts import alerts_of
from holdfast.cli.alerts import test as the_test
from holdfast.clock import SystemClock, pause
from holdfast.core import acts
from holdfast.core.machine import State
from holdfast.core.verdict import Failed
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from tests.alerts.receiver import Receiver, receiving
from tests.cli.conftest import Run, lose
from tests.factory import enrol, job_in, move, settle, start

SECRET = "s3cret-s3cret"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as server:
        yield server


def until(condition: Callable[[], bool], what: str) -> None:
    clock = SystemClock()
    give_up_at = clock.lease() + 60
    while not condition():
        assert clock.lease() < give_up_at, f"not in 60 s: {what}"
        pause(0.02)


def test_a_test_goes_through_each_channel_of_the_options(
    run: Run, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_ALERT_SECRET", SECRET)
    rows = run.json(
        *("alerts", "test", "--alert-webhook", receiver.url, "--alert-private"),
        *("--alert-command", f"{sys.executable} -c 'import sys; sys.stdin.read()'"),
    )
    name = f"command {Path(sys.executable).name}"
    assert rows == [
        {"channel": name, "told": True, "what": "ended with code 0"},
        {"channel": f"webhook http://127.0.0.1:{receiver.port}/…", "told": True, "what": "answered 204"},
    ]
    [(_, headers, body)] = receiver.requests
    assert headers["Holdfast-Signature"] == "v1=" + sign(SECRET, headers["Holdfast-Timestamp"], body)


def test_plain_http_is_refused_with_the_option_that_allows_it(run: Run) -> None:
    told = run("alerts", "test", "--alert-webhook", "http://127.0.0.1/", code=2).stderr
    assert "begins with https://; plain http only with private=True (--alert-private)" in told


def test_a_test_goes_through_the_channels_of_an_app_and_opens_no_store(
    run: Run, folder: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "alerted", raising=False)
    (folder / "alerted.py").write_text(
        "from holdfast import App\napp = App('sqlite:///none.db')\n"
        f"app.alert(log=True, webhook={receiver.url!r}, private=True)\napp.alert(log=True, on=['held'])\n"
    )
    shown = run("alerts", "test", "alerted:app").stdout
    assert "log" in shown
    assert "answered 204" in shown
    assert receiver.told[0]["store"] == f"sqlite:///{folder}/none.db"
    assert [path.name for path in folder.iterdir() if path.suffix == ".db"] == []
    monkeypatch.delitem(sys.modules, "alerted")


def test_limits_are_taken_from_options_and_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["--alert-log", "--alert-limit", "crashes=3", "--alert-limit", "false_max=0.1"]
    [alert] = alerts_of(the_test.make_context("test", words).params)
    assert alert.limits == Thresholds(crashes=3, false_max=0.1)
    monkeypatch.setenv("HOLDFAST_ALERT_LIMIT", "zombies_max=50 window_s=60 again_s=5")
    monkeypatch.setenv("HOLDFAST_ALERT_ON", "held,dead")
    [alert] = alerts_of(the_test.make_context("test", ["--alert-log"]).params)
    assert alert.limits == Thresholds(zombies_max=50, window_s=60.0, again_s=5.0)
    assert alert.on == ("held", "dead")
    monkeypatch.setenv("HOLDFAST_ALERT_LIMIT", "backlog_s=60 recovered_min=0.5 errors_max=0.1")
    monkeypatch.setenv("HOLDFAST_ALERT_FORM", "slack")
    [alert] = alerts_of(the_test.make_context("test", ["--alert-webhook", "https://example.org/"]).params)
    assert alert.limits == Thresholds(backlog_s=60.0, recovered_min=0.5, errors_max=0.1)
    assert alert.channels[0].identity == "slack https://example.org/"


def test_a_channel_that_takes_nothing_ends_with_1(run: Run, receiver: Receiver) -> None:
    refused = run("alerts", "test", "--alert-webhook", f"https://127.0.0.1:{receiver.port}/k3y?t=t0ken", code=1)
    assert "refused: its address is private" in refused.stdout
    assert "k3y" not in refused.stdout + refused.stderr
    assert "t0ken" not in refused.stdout + refused.stderr
    assert receiver.requests == []


@pytest.mark.parametrize(
    "words",
    [
        ["alerts", "test"],
        ["alerts", "test", "--alert-private"],
        ["alerts", "test", "--alert-form", "slack"],
        ["alerts", "test", "--alert-webhook", "https://example.org/", "--alert-form", "party"],
        ["alerts", "test", "--alert-on", "held"],
        ["alerts", "test", "--alert-log", "--alert-on", "party"],
        ["alerts", "test", "--alert-limit", "crashes=3"],
        ["alerts", "test", "--alert-log", "--alert-limit", "party=3"],
        ["alerts", "test", "--alert-log", "--alert-limit", "crashes=many"],
        ["alerts", "test", "--alert-log", "--alert-limit", "again_s=5000"],
        ["alerts", "test", "--alert-command", "'"],
        ["alerts", "test", "--alert-command", " "],
        ["alerts", "test", "--alert-webhook", "http://example.org/"],
        ["reaper", "--alert-webhook", "ftp://example.org/"],
    ],
)
def test_alerts_that_can_never_work_end_with_2(run: Run, store: Store, words: list[str]) -> None:
    run(*words, code=2)


@pytest.mark.slow  # a real process that starts and stops
def test_the_reaper_tells_by_its_own_options_and_keeps_secrets_to_itself(tmp_path: Path, receiver: Receiver) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    store.migrate()
    told = tmp_path / "told"
    command = [sys.executable, "-m", "holdfast", "--db", store.url, "reaper", "--alert-private"]
    command += ["--alert-webhook", f"{receiver.url}?t=t0ken", "--alert-log", "--alert-on", "held,dead"]
    command += ["--alert-command", f"sh -c 'cat > {told}.part; env >> {told}.part; mv {told}.part {told}'"]
    env = {**os.environ, "HOLDFAST_ALERT_SECRET": SECRET}
    job = job_in(store, State.HELD, task="charge")
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(command, stderr=log, env=env)
        try:
            until(lambda: len(receiver.requests) == 1 and told.exists(), "both were told")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
            store.close()
    [(_, headers, body)] = receiver.requests
    assert headers["Holdfast-Signature"] == "v1=" + sign(SECRET, headers["Holdfast-Timestamp"], body)
    assert [each["id"] for each in receiver.told[0]["jobs"]] == [job.id]
    assert json.JSONDecoder().raw_decode(told.read_text())[0]["kind"] == "held"
    text = (tmp_path / "log").read_text()
    assert f"alert: held: job {job.id} (charge) is held" in text
    assert not [secret for secret in (SECRET, "t0ken") if secret in text + told.read_text()]


@pytest.mark.slow  # real processes that start and stop
def test_a_reaper_that_is_started_again_tells_nothing_twice(tmp_path: Path, receiver: Receiver) -> None:
    store: Store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    store.migrate()
    command = [sys.executable, "-m", "holdfast", "--db", store.url, "-q", "reaper", "--alert-private"]
    command += ["--alert-webhook", receiver.url, "--alert-on", "held"]
    jobs = []
    try:
        for task in ("charge", "refund"):
            jobs.append(job_in(store, State.HELD, task=task).id)
            process = subprocess.Popen(command, env={**os.environ, "HOLDFAST_ALERT_SECRET": SECRET})
            try:
                until(lambda: any(each["jobs"][0]["id"] == jobs[-1] for each in receiver.told), "the job was told")
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 0
            finally:
                process.kill()
                process.wait()
    finally:
        store.close()
    assert [each["id"] for message in receiver.told for each in message["jobs"]] == jobs


@contextlib.contextmanager
def reaping(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, env={**os.environ, "HOLDFAST_ALERT_SECRET": SECRET})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def notes(folder: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(folder / "jobs.db")) as db:
        return [note for (note,) in db.execute("SELECT note FROM holdfast_duty WHERE note IS NOT NULL")]


@pytest.mark.slow  # real processes, of which one is killed, and the end of its duty
def test_a_reaper_that_is_started_after_a_kill_tells_the_end_of_what_was_told_and_no_old_news(
    tmp_path: Path, receiver: Receiver
) -> None:
    store: Store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    store.migrate()
    command = [sys.executable, "-m", "holdfast", "--db", store.url, "-q", "reaper", "--alert-private"]
    command += ["--alert-webhook", receiver.url, "--alert-on", "held"]
    try:
        held = [job_in(store, State.HELD, task="charge")]
        with reaping(command):  # and is killed
            until(lambda: bool(receiver.told and notes(tmp_path)), "the job was told, and a note was left")
        held.append(job_in(store, State.HELD, task="refund"))  # while nobody is there
        for job in held:
            done = acts.resolve(job, "done", SystemClock().wall(), actor="ann")
            assert move(store, job.id, job.state, job.fence, done)
        with reaping(command) as second:
            until(lambda: len(receiver.told) > 1, "the end was told")
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
    finally:
        store.close()
    assert [(each["task"], each["status"]) for each in receiver.told] == [("charge", "new"), ("charge", "over")]


HOOKED = """
from pathlib import Path
from holdfast import App

app = App("sqlite:///jobs.db")
app.alert(command=["sh", "-c", "cat > told.part && mv told.part told"], on=["held"])

@app.on("held")
def on_held(event):
    Path("hooked.part").write_text(event["id"])
    Path("hooked.part").rename("hooked")
"""


def test_a_scan_tells_by_its_own_options(run: Run, store: Store, folder: Path, receiver: Receiver) -> None:
    told = folder / "told"
    held, _ = lose(store, task="charge", on_crash="hold"), lose(store, task="once", on_crash="fail")
    options = ["--alert-webhook", receiver.url, "--alert-private", "--alert-on", "held,dead", "--alert-log"]
    run("scan", *options, "--alert-command", f"sh -c 'cat > {told}'")
    assert (receiver.requests, told.exists()) == ([], False), "nothing was changed, and nothing is told"
    shown = run("scan", "--fix", *options)
    assert sorted(message["kind"] for message in receiver.told) == ["dead", "held"]
    assert f"alert: held: job {held.id} (charge) is held" in shown.stderr
    run("scan", "--fix", *options)
    assert len(receiver.requests) == 2, "what the scan before found is not told again"


def test_a_scan_with_an_app_tells_its_hooks_and_alerts(
    run: Run, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "hooked_scan.py").write_text(HOOKED)
    job = lose(store, on_crash="hold")
    monkeypatch.syspath_prepend(folder)
    run("scan", "hooked_scan:app", "--fix")
    assert (folder / "hooked").read_text() == job.id
    assert json.loads((folder / "told").read_text())["kind"] == "held"


def test_hooks_and_alerts_are_told_what_became_of_the_jobs_of_a_forgotten_worker(
    run: Run, store: Store, folder: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "hooked_forget.py").write_text(HOOKED)
    job = start(store, enrol(store, name="old"), on_crash="hold")  # by the clock of this store it is long ago
    monkeypatch.syspath_prepend(folder)
    options = ["--alert-webhook", receiver.url, "--alert-private", "--alert-on", "held"]
    run("workers", "forget", "old", "hooked_forget:app", *options)
    assert (folder / "hooked").read_text() == job.id
    assert json.loads((folder / "told").read_text())["kind"] == "held"
    assert [message["kind"] for message in receiver.told] == ["held"]


@pytest.mark.slow  # a real process that starts and stops
def test_a_reaper_with_an_app_tells_its_hooks_and_alerts(store: Store, folder: Path) -> None:
    (folder / "jobs.py").write_text(HOOKED)
    job = lose(store, on_crash="hold")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "holdfast", "reaper", "jobs:app"], cwd=folder, stderr=log)
        try:
            until(lambda: (folder / "hooked").exists() and (folder / "told").exists(), "both were told")
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    assert (folder / "hooked").read_text() == job.id


PROGRAM = """
import os, time
from holdfast import App

app = App("sqlite:///jobs.db")
app.alert(webhook=os.environ["HOOK"], secret=os.environ["HOOK_KEY"], private=True)

@app.task(on_crash="hold")
def charge() -> None:
    os.kill(os.getpid(), 9)

if __name__ == "__main__":
    charge.enqueue()
"""


@pytest.mark.slow  # a real worker whose process is killed
def test_a_worker_tells_of_the_job_that_died_with_its_process(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "jobs.py").write_text(PROGRAM)
    env = {**os.environ, "HOOK": receiver.url, "HOOK_KEY": SECRET}
    subprocess.run([sys.executable, "jobs.py"], cwd=tmp_path, env=env, check=True)
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "worker", "jobs:app"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        until(lambda: bool(receiver.requests), "the job was told as held")
        worker.send_signal(signal.SIGTERM)
        log, _ = worker.communicate(timeout=60)
    finally:
        worker.kill()
        worker.wait()
    assert (receiver.told[0]["kind"], receiver.told[0]["task"]) == ("held", "jobs.charge")
    assert "was killed by SIGKILL" in receiver.told[0]["text"]
    assert SECRET not in log


FAILING = """
import os
from holdfast import App

app = App("sqlite:///jobs.db")
app.alert(webhook=os.environ["HOOK"], private=True, form="slack", on=["error_rate"])

@app.task
def pay() -> None: ...

if __name__ == "__main__":
    app.tick(5)
"""
WAYS = {
    "worker": ["-m", "holdfast", "worker", "jobs:app"],
    "reaper": ["-m", "holdfast", "reaper", "jobs:app"],
    "scan": ["-m", "holdfast", "scan", "jobs:app", "--fix"],
    "tick": ["jobs.py"],
}


@pytest.mark.slow  # a real process of each kind
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_running_tells_of_a_task_that_fails(tmp_path: Path, receiver: Receiver, way: str) -> None:
    (tmp_path / "jobs.py").write_text(FAILING)
    store: Store = SqliteStore(f"sqlite:///{tmp_path}/jobs.db?synchronous=normal")
    store.migrate()
    try:
        worker = enrol(store, boot_id=SystemClock().boot_id)
        for _ in range(25):
            settle(
                store, start(store, worker, task="shop.pay", attempts_max=1), Failed("no", error_kind="E", origin="a")
            )
        store.retire(worker, "stopped")
    finally:
        store.close()
    with subprocess.Popen(
        [sys.executable, *WAYS[way]], cwd=tmp_path, env={**os.environ, "HOOK": receiver.url}, stderr=subprocess.DEVNULL
    ) as process:
        try:
            until(lambda: bool(receiver.requests), "the rate was told")
            if way in ("worker", "reaper"):
                process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
    [told] = receiver.told
    text = "🔴 error rate: 100% of the attempts of shop.pay failed: 25 of about 25 in the last 10 min"
    assert told["text"].split("\n")[0] == text
