"""The fixture `holdfast` of the pytest plugin, as a project uses it, on each kind of store."""

import sqlite3
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast import App, Context, Flow, Retry, RetryLater, UsageError
from holdfast.core.machine import State
from holdfast.testing import AppTester

app = App("postgresql://nobody@db.example.invalid/shop")  # no test may ever reach it
done: list[str] = []


@app.task(on_crash="hold")
def charge(order_id: int, cents: int = 3) -> int:
    done.append(f"charge {order_id}")
    return cents


@app.task(retry=Retry(attempts_max=5))
def fetch(ctx: Context, name: str, width: int = 1) -> str:
    done.append(f"fetch {ctx.attempt}")
    try:
        ctx.progress(0.5, note="half")
    finally:
        done.append("left")
    if ctx.attempt < 3:
        raise RetryLater(3600)
    return name


@app.task
async def greet(name: str) -> str:
    return f"hello {name}"


@app.task
def parent(count: int) -> None:
    for number in range(count):
        greet.enqueue(str(number))


@app.task
def endless() -> None:
    endless.enqueue()


@app.task
def ship(ctx: Context, order_id: int) -> int:
    with ctx.transaction() as db:
        db.execute("UPDATE shipped SET number = number + 1")
    return order_id


def pay(order_id: int) -> int:
    done.append("pay")
    return order_id


def post(order_id: int) -> str:
    done.append("post")
    return f"P{order_id}"


@app.workflow
def checkout(flow: Flow, order_id: int) -> str:
    flow.step(pay, order_id)
    flow.sleep(days=1)
    return flow.step(post, order_id)


@app.workflow
def asking(flow: Flow) -> str:
    return "yes" if flow.approve("May I?", timeout=7200, default=False) else "no"


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres") if request.param == "postgres" else request.param)


@pytest.fixture
def holdfast_store(request: pytest.FixtureRequest) -> str:
    """The project's own choice: what a test is parametrized with, or memory."""
    return str(request.getfixturevalue("store")) if "store" in request.fixturenames else "memory"


two_stores = pytest.mark.parametrize("store", ["memory", "sqlite"], indirect=True)
stores = pytest.mark.parametrize("store", ["memory", "sqlite", "postgres"], indirect=True)


@stores
def test_a_module_level_app_is_redirected_and_each_test_begins_with_an_empty_store(
    holdfast: AppTester, store: str
) -> None:
    assert app.counts()["ready"] == 0
    charge.enqueue(1)
    greet.enqueue("ann")
    assert app.counts()["ready"] == 2
    assert "example.invalid" not in app.url
    assert holdfast.drain() == 2


@stores
def test_the_address_of_an_app_is_that_of_the_tests_store_before_its_first_use(holdfast: AppTester, store: str) -> None:
    assert "example.invalid" not in app.url
    assert "?" not in app.url or store.startswith("postgres")  # an engine of SQLAlchemy can have it
    assert app.url.startswith(store.partition(":")[0])


def test_the_app_has_its_own_store_and_clock_again_after_the_test() -> None:
    before = {**vars(app)}
    with AppTester():
        charge.enqueue(1)
        assert app.counts()["ready"] == 1
    assert vars(app) == before
    assert app.url == "postgresql://nobody@db.example.invalid/shop"


def test_an_app_that_is_made_or_was_opened_before_is_redirected_too(tmp_path: Path) -> None:
    file = f"sqlite:///{tmp_path}/own.db"
    with App(file) as own:
        own.task(greet.fn, name="greet").enqueue("before")
        with AppTester():
            assert own.counts()["ready"] == 0
            late = App(file)
            late.task(greet.fn, name="greet").enqueue("during")
            assert own.counts()["ready"] == 1, "apps of one address share a store, as they do in production"
        assert own.counts()["ready"] == 1
        [job] = own.find()
        assert "before" in job.row.payload


@stores
def test_drain_runs_delayed_and_retried_jobs_and_moves_the_clock(holdfast: AppTester, store: str) -> None:
    began = holdfast.clock.wall()
    job = fetch.using(run_after=600).enqueue("a")
    assert job.row.run_at == pytest.approx(began + 600, abs=0.001)
    assert holdfast.run_due() == 0
    assert holdfast.drain() == 3
    assert job.result(timeout=0) == "a"
    assert holdfast.clock.wall() == pytest.approx(began + 600 + 2 * 3600, abs=0.1)  # stores round


def test_drain_runs_jobs_that_jobs_enqueue(holdfast: AppTester) -> None:
    parent.enqueue(3)
    assert holdfast.drain() == 4
    assert app.counts()["done"] == 4


def test_drain_says_when_jobs_never_end(holdfast: AppTester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.testing.tester.ROUNDS_MAX", 3)
    monkeypatch.setattr("holdfast.testing.tester.TICK_S", 0.3)
    endless.enqueue()
    with pytest.raises(AssertionError, match="do not end"):
        holdfast.drain()


def test_advance_runs_what_becomes_due_at_its_own_instant_and_nothing_else(holdfast: AppTester) -> None:
    soon, late = greet.using(run_after=3600).enqueue("soon"), greet.using(run_after=10_000).enqueue("late")
    began = holdfast.clock.wall()
    assert holdfast.advance(hours=1, minutes=30) == 1
    assert soon.result(timeout=0) == "hello soon"
    assert soon.row.ended_at == pytest.approx(began + 3600)
    assert late.refresh().state == "ready"
    assert holdfast.clock.wall() == began + 5400


def test_schedules_fire_once_for_each_instant_that_passes() -> None:
    own = App("memory://")
    with AppTester(wall=1_700_000_000) as tester:
        own.cron("0 3 * * *", own.task(greet.fn, name="greet").job("ann"), tz="Europe/Berlin")
        own.counts()
        assert tester.advance(days=3) == 3
        hours = {int(job.row.run_at) % 86_400 // 3600 for job in own.find()}
    assert hours == {2}


def test_a_workflow_sleeps_through_drain_and_waits_for_an_answer(holdfast: AppTester) -> None:
    slept, asked = checkout.enqueue(7), asking.enqueue()
    holdfast.drain()
    assert slept.result(timeout=0) == "P7"
    assert asked.refresh().row.question == "May I?" or asked.state == "done"


def test_drain_leaves_a_question_open_and_advance_lets_it_expire(holdfast: AppTester) -> None:
    first, second = asking.enqueue(), asking.enqueue()
    holdfast.drain()
    assert (first.refresh().state, second.refresh().state) == ("waiting", "waiting")
    app.approve(first.id)
    holdfast.drain()
    assert first.result(timeout=0) == "yes"
    holdfast.advance(hours=2)
    assert second.result(timeout=0) == "no"


def test_assert_enqueued_finds_jobs_by_a_part_of_their_arguments(holdfast: AppTester) -> None:
    first = fetch.enqueue("a", width=2)
    second = fetch.using(queue="other").enqueue("b")
    assert holdfast.assert_enqueued(fetch, "a").id == first.id
    assert holdfast.assert_enqueued(fetch, width=2).id == first.id
    assert holdfast.assert_enqueued(fetch).id == second.id
    assert holdfast.assert_enqueued(fetch.name, name="b").row.queue == "other"
    assert [job.id for job in holdfast.enqueued(fetch)] == [first.id, second.id]
    holdfast.assert_not_enqueued(fetch, "c")
    holdfast.assert_not_enqueued(charge)


def test_a_failed_assertion_says_what_was_enqueued(holdfast: AppTester) -> None:
    with pytest.raises(AssertionError, match=r"no job of .*fetch with any arguments was enqueued; nothing was"):
        holdfast.assert_enqueued(fetch)
    charge.enqueue(1)
    with pytest.raises(AssertionError, match=r'with \(order_id=2\) .*charge \{"order_id":1.*\} \(ready\)'):
        holdfast.assert_enqueued(charge, order_id=2)
    with pytest.raises(AssertionError, match=r"1 jobs of .*charge were enqueued"):
        holdfast.assert_not_enqueued(charge)
    with pytest.raises(UsageError, match="has no argument 'oder_id'"):
        holdfast.assert_enqueued(charge, oder_id=1)


@pytest.mark.holdfast(eager=True)
def test_eager_runs_each_job_before_its_enqueue_returns(holdfast: AppTester) -> None:
    assert charge.enqueue(5).result(timeout=0) == 3
    parent.enqueue(2)
    assert app.counts()["done"] == 4


def test_eager_mode_may_last_for_a_block(holdfast: AppTester) -> None:
    with holdfast.eager():
        assert greet.enqueue("ann").result(timeout=0) == "hello ann"
    assert greet.enqueue("bob").state == "ready"


@two_stores
@pytest.mark.parametrize(("at", "charged"), [("start", 0), ("end", 1)])
def test_a_worker_that_dies_in_a_task_leaves_it_to_on_crash(
    holdfast: AppTester, store: str, at: Any, charged: int
) -> None:
    job = charge.enqueue(1)
    crash = holdfast.crash(during=charge, at=at)
    holdfast.drain()
    assert job.refresh().state == "held"
    assert len(done) == charged
    assert crash.happened == 1
    kinds = [event.kind for event in app.store.journal(job.id)]
    assert kinds == ["zombie", "held"]
    app.resolve(job.id, "retry")
    holdfast.drain()
    assert job.result(timeout=0) == 3


def test_a_worker_that_dies_at_a_note_of_progress_runs_the_job_again(holdfast: AppTester) -> None:
    job = fetch.enqueue("a")
    holdfast.crash(during=fetch, note="half", times=2)
    holdfast.drain()
    assert job.result(timeout=0) == "a"
    assert job.refresh().row.crashes == 2
    assert done == ["fetch 1", "left", "fetch 2", "left", "fetch 3", "left"]


@two_stores
@pytest.mark.parametrize(("at", "paid", "during"), [("start", 1, pay), ("end", 2, "pay"), ("saved", 1, pay)])
def test_a_worker_that_dies_in_a_step_repeats_it_unless_its_result_is_saved(
    holdfast: AppTester, store: str, at: Any, paid: int, during: Any
) -> None:
    job = checkout.enqueue(1)
    holdfast.crash(during=during, at=at)
    holdfast.drain()
    assert job.result(timeout=0) == "P1"
    assert done == [*["pay"] * paid, "post"]
    assert job.refresh().row.crashes == 1


def test_a_dead_worker_writes_nothing_of_its_transaction(tmp_path: Path) -> None:
    with AppTester("sqlite", folder=tmp_path) as tester:
        app.counts()
        with sqlite3.connect(tmp_path / "jobs.db") as db:
            db.execute("CREATE TABLE shipped AS SELECT 0 AS number")
        db.close()
        job = ship.enqueue(1)
        tester.crash(during=ship)
        tester.drain()
        assert (job.result(timeout=0), job.row.crashes) == (1, 1)
        with sqlite3.connect(tmp_path / "jobs.db") as db:
            assert db.execute("SELECT number FROM shipped").fetchall() == [(1,)]
        db.close()


def test_a_crash_that_never_happens_fails_the_test() -> None:
    with (
        pytest.raises(AssertionError, match=r"these never happened: crash\(during='.*charge', at='end'\)"),
        AppTester() as t,
    ):
        t.crash(during=charge)


def test_a_crash_that_makes_no_sense_is_refused(holdfast: AppTester) -> None:
    with pytest.raises(UsageError, match='at="saved" is for steps'):
        holdfast.crash(during=charge, at="saved")
    with pytest.raises(UsageError, match="note is for tasks"):
        holdfast.crash(during=pay, note="half")
    with pytest.raises(UsageError, match="must be a task"):
        holdfast.crash(during=7)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be"):
        AppTester("redis")


def test_a_job_cannot_drain_the_test(holdfast: AppTester) -> None:
    @app.task(name="drains", retry=Retry(attempts_max=1))
    def drains() -> None:
        holdfast.drain()

    try:
        job = drains.enqueue()
        holdfast.drain()
        assert "a job cannot run the jobs of its test" in str(job.refresh().row.error)
    finally:
        app.tasks = {name: task for name, task in app.tasks.items() if name != "drains"}


def test_a_held_job_stays_where_it_is(holdfast: AppTester) -> None:
    job = charge.enqueue(1)
    holdfast.crash(during=charge)
    holdfast.drain()
    assert [each.id for each in app.find(state="held")] == [job.id]
    assert app.counts()[State.HELD] == 1


@pytest.mark.slow  # it starts pytest for a project of its own
def test_a_project_chooses_its_store_in_its_configuration_and_per_test(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nholdfast_store = sqlite\naddopts = --strict-markers\n")
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""
        import sys
        import pytest
        from holdfast import App

        app = App("memory://")

        def test_who_does_not_ask_for_the_fixture_pays_nothing():
            assert "holdfast.testing" not in sys.modules

        def test_the_store_of_the_project(holdfast):
            app.counts()
            assert app.url.startswith("sqlite:")

        @pytest.mark.holdfast(store="memory", wall=1000)
        def test_the_store_of_one_test(holdfast):
            app.counts()
            assert app.url.startswith("memory:")
            assert holdfast.clock.wall() == 1000

        @pytest.mark.holdfast("memory")
        def test_a_wrong_marker(holdfast):
            pass
        """)
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "3 passed, 1 error" in run.stdout, run.stdout
    assert "named settings only" in run.stdout


def test_drain_waits_for_the_rate_of_a_queue(holdfast: AppTester) -> None:
    with App("memory://") as slow:

        @slow.task(name="slow", queue="slow")
        def slowly() -> None: ...

        slow.queue("slow", rate="1/60s")
        began = holdfast.clock.wall()
        for _ in range(3):
            slowly.enqueue()
        assert holdfast.drain() == 3
        assert 120 <= holdfast.clock.wall() - began < 180
        slow.pause("slow")
        slowly.enqueue()
        assert holdfast.drain() == 0  # a person has to resume it
