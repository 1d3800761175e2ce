"""The port of a Celery application: each thing that it used is there, and behaves as docs/from-celery.md says."""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from holdfast import JobCancelled, JobDead
from holdfast.testing import ShiftedClock

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(params=["memory", "sqlite"])
def port(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, imported anew, so that nobody else has its app; a clock that a test sets ahead."""
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db?synchronous=normal"
    monkeypatch.setenv("HOLDFAST_DB", url)
    spec = importlib.util.spec_from_file_location("celery_port", ROOT / "examples" / "celery_port.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "celery_port", module)
    spec.loader.exec_module(module)
    module.app.clock = ShiftedClock()
    with module.app:
        yield module


def run(port: ModuleType, *, hours: float = 0.0) -> None:
    """Run what is due, and what that makes due: a chain goes on when its child has ended."""
    port.app.clock.advance(hours * 3600)
    while port.app.tick(budget_s=60).settled:
        pass


def test_only_the_named_exceptions_are_retried(port: ModuleType) -> None:
    flaky, gone = port.fetch.enqueue("https://flaky.example"), port.fetch.enqueue("https://gone.example")
    for _ in range(3):
        run(port, hours=1)
    assert (flaky.result(timeout=0), flaky.refresh().row.failures) == ("content of https://flaky.example", 2)
    with pytest.raises(JobDead, match="410 Gone"):
        gone.result(timeout=0)
    assert gone.refresh().row.attempt == 1


def test_a_task_asks_to_be_run_again_later(port: ModuleType) -> None:
    job = port.poll_export.enqueue("export 7")
    run(port)
    run(port, hours=1)
    assert (job.result(timeout=0), job.refresh().row.attempt) == ("export 7 is ready", 2)


def test_the_rate_holds_for_the_fleet(port: ModuleType) -> None:
    jobs = [port.fetch.enqueue(f"https://{number}.example") for number in range(6)]
    while any(job.refresh().state == "ready" for job in jobs):
        port.app.tick(budget_s=60)
    assert {job.refresh().state for job in jobs} == {"done"}
    starts = sorted(job.row.claimed_at for job in jobs)
    for first, last in itertools.combinations(range(6), 2):
        gap_s = starts[last] - starts[first]
        assert last - first + 1 <= math.ceil(gap_s * 20 + 1e-6) + 1, f'rate="20/1s", burst=2: {starts}'


def test_the_callback_of_a_failure_runs_once(port: ModuleType) -> None:
    unpaid, paid = port.charge.enqueue(13), port.charge.enqueue(1)
    run(port)
    run(port)
    assert port.mails == ["ValueError: ValueError: no such order"]
    assert (unpaid.refresh().state, paid.result(timeout=0)) == ("dead", "order 1 is paid")


def test_a_job_that_nobody_claimed_in_time_never_runs(port: ModuleType) -> None:
    late, in_time = port.send_code.enqueue("1"), port.send_code.using(expires_s=7200).enqueue("2")
    run(port, hours=1)
    with pytest.raises(JobCancelled):
        late.result(timeout=0)
    assert (late.refresh().row.attempt, in_time.result(timeout=0)) == (0, "sent 2")


def test_chain_group_and_chord(port: ModuleType) -> None:
    chain, chord = port.add_then_mul.enqueue(2), port.sum_of_doubles.enqueue([1, 2, 3])
    group = port.app.enqueue_many([port.add.job(number, number) for number in range(3)])
    with port.app.batch(then=port.all_fetched) as batch:
        batch.add(*(port.add.job(number, 1) for number in range(20)))
    run(port)
    assert (chain.result(timeout=0), chord.result(timeout=0)) == (48, 12)
    assert [job.result(timeout=0) for job in group] == [0, 2, 4]
    assert port.app.get(f"{batch.id}:then:0").result(timeout=0) == "20 pages, 0 failed"


def test_beat_fires_at_the_instants(port: ModuleType) -> None:
    port.app.tick(budget_s=60)
    assert set(port.app.schedules) == {"weekly-report", "heartbeat"}
    port.app.clock.advance(8 * 86_400)
    assert port.app.tick(budget_s=60).fired == 2, "the week's report once, and the newest half minute"
    [weekly] = port.app.find(task="report")
    assert (weekly.result(timeout=0), weekly.row.queue) == ("report of Monday", "reports")


def test_routes_send_tasks_to_queues(port: ModuleType) -> None:
    default, urgent = port.report.enqueue("today"), port.report.using(queue="urgent").enqueue("today")
    assert (default.row.queue, urgent.row.queue) == ("reports", "urgent")
    port.app.tick(budget_s=60, queues=["urgent"])
    assert (default.refresh().state, urgent.refresh().state) == ("ready", "done")


def test_a_countdown_delays_a_job(port: ModuleType) -> None:
    job = port.add.using(run_after=1800).enqueue(20, 22)
    run(port)
    assert job.refresh().state == "ready"
    run(port, hours=1)
    assert job.result(timeout=0) == 42


def test_a_revoked_job_never_runs_and_a_running_one_stops(port: ModuleType) -> None:
    waits = port.crunch.enqueue()
    port.app.cancel(waits.id)
    run(port)
    assert (waits.refresh().state, waits.row.attempt) == ("cancelled", 0)
    running = port.crunch.enqueue()
    with port.app.worker(slots=1):
        while running.refresh().state == "ready":
            port.add.enqueue(1, 1)
        port.app.cancel(running.id)
        with pytest.raises(JobCancelled):
            running.result(timeout=60)
    assert running.refresh().state == "cancelled"


def test_the_page_names_everything_that_the_port_uses() -> None:
    page = (ROOT / "docs" / "from-celery.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    wanted = (
        *("autoretry_for", "self.retry", "rate_limit", "expires", "chain", "group", "chord", "beat_schedule"),
        *("task_routes", "revoke", "countdown", "on_failure", "link", "acks_late", "visibility_timeout"),
    )
    for word in wanted:
        assert any(re.search(rf"`[^`|]*\b{re.escape(word)}\b", row) for row in rows), word
