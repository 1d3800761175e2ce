"""Steps: done once, returned in every replay; what fails, what is caught, what no longer fits."""

import asyncio
import enum
import threading
import time
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from holdfast import AsyncFlow, Flow, JobDead, Retry, Snooze, UsageError
from holdfast.insight.explain import FIX_CODE, explain
from holdfast.stores.protocol import Reply
from holdfast.stores.sqlite.transaction import SqliteTransaction
from holdfast.workflow import sync_driver, values
from tests.worker.house import House, until

QUICK = Retry(attempts_max=2, base_s=0.0, cap_s=0.0)


class Declined(Exception):
    """A replay finds it by its name."""


class Ledger:
    """What was really done, whatever is recorded."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def do(self, what: Any) -> Any:
        self.lines.append(what)
        return what


@dataclass
class Point:
    x: int
    y: int


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_a_recorded_step_is_not_done_again(house: House, ledger: Ledger) -> None:
    tries = []

    @house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow, order: int) -> list[Any]:
        first = flow.step(ledger.do, order)
        second = flow.step(ledger.do, first + 1, name="second")
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("between two steps")
        return [first, second, flow.step(ledger.do, 3, name="third")]

    house.start()
    job = work.enqueue(1)
    assert job.result(60) == [1, 2, 3]
    assert ledger.lines == [1, 2, 3]
    steps = house.app.steps(job.id)
    assert [(step.path, step.name, step.state, step.attempt) for step in steps] == [
        *(("1", "do", "recorded", 1), ("2", "second", "recorded", 1), ("3", "third", "recorded", 2)),
    ]
    assert house.row(job.id).failures == 1


def test_an_async_workflow_awaits_the_same_names(house: House, ledger: Ledger) -> None:
    async def later(what: int) -> int:
        await asyncio.sleep(0)
        return int(ledger.do(what))

    @house.app.workflow(name="w", retry=QUICK)
    async def work(flow: AsyncFlow, order: int) -> list[Any]:
        first = await flow.step(later, order)
        both = await flow.gather(flow.step(later, 2, name="a"), flow.step(ledger.do, 3, name="b"))
        if flow.ctx.attempt == 1:
            raise ValueError("between two steps")
        return [first, *both, await flow.step(later, 4)]

    house.start()
    job = work.enqueue(1)
    assert job.result(60) == [1, 2, 3, 4]
    assert sorted(ledger.lines) == [1, 2, 3, 4]
    assert {step.path: step.name for step in house.app.steps(job.id)} == {
        "1": "later",
        "2": "a",
        "3": "b",
        "5": "later",
    }


def test_results_are_of_the_annotated_type_live_and_in_a_replay(one_house: House) -> None:
    seen: list[Any] = []

    def point() -> Point:
        return Point(1, 2)

    def pair() -> tuple[int, str]:
        return 1, "a"

    @one_house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow) -> None:
        seen.append((flow.step(point), flow.step(pair), flow.step(lambda: {1, 2}, name="set")))
        if flow.ctx.attempt == 1:
            raise ValueError("again")

    one_house.start()
    work.enqueue().result(60)
    assert seen == [(Point(1, 2), (1, "a"), [1, 2])] * 2


class Colour(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_result_is_converted_at_once_as_a_replay_will(one_house: House, kind: str) -> None:
    seen: list[list[tuple[Any, type]]] = []

    def price() -> Decimal:
        return "1.50"  # type: ignore[return-value]

    def ratio() -> float:
        return 1

    def plain():  # type: ignore[no-untyped-def]
        return Colour.RED

    def colour() -> Colour:
        return Colour.RED

    @one_house.app.workflow(name="sync", retry=QUICK)
    def sync(flow: Flow) -> None:
        seen.append([((value := flow.step(fn)), type(value)) for fn in (price, ratio, plain, colour)])
        if flow.ctx.attempt == 1:
            raise ValueError("again")

    @one_house.app.workflow(name="async", retry=QUICK)
    async def loop(flow: AsyncFlow) -> None:
        seen.append([((value := await flow.step(fn)), type(value)) for fn in (price, ratio, plain, colour)])
        if flow.ctx.attempt == 1:
            raise ValueError("again")

    one_house.start()
    (sync if kind == "sync" else loop).enqueue().result(60)
    assert seen[0] == seen[1]
    assert [kind for _, kind in seen[0]] == [Decimal, float, int, Colour]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_result_that_does_not_fit_its_annotation_is_held_at_once_and_not_made_again(house: House, kind: str) -> None:
    ran: list[str] = []

    def wrong() -> str:
        ran.append("wrong")
        return None  # type: ignore[return-value]

    @house.app.workflow(name="sync", retry=QUICK)
    def sync(flow: Flow) -> None:
        flow.step(wrong)
        flow.step(ran.append, "next")

    @house.app.workflow(name="async", retry=QUICK)
    async def loop(flow: AsyncFlow) -> None:
        await flow.step(wrong)
        await flow.step(ran.append, "next")

    house.start()
    job = (sync if kind == "sync" else loop).enqueue()
    row = house.until_state(job.id, "held")
    assert "null is recorded as number 1: step wrong: the result: Expected `str`, got `null`" in str(row.error)
    assert FIX_CODE in explain(house.store, row).sentence
    assert (row.attempt, ran) == (1, ["wrong"])
    wrong.__annotations__["return"] = None
    values._shape_of.cache_clear()
    house.app.resolve(job.id, "retry")
    job.result(60)
    assert ran == ["wrong", "next"]


def test_chance_and_time_are_the_same_in_every_replay(house: House) -> None:
    seen: list[Any] = []

    @house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow) -> None:
        seen.append((flow.now(), flow.random(), flow.uuid(), flow.uuid()))
        if flow.ctx.attempt == 1:
            raise ValueError("again")

    house.start()
    work.enqueue().result(60)
    assert seen[0] == seen[1]
    assert seen[0][0].utcoffset() is not None
    assert seen[0][2] != seen[0][3]


def test_branches_are_recorded_one_by_one_and_known_by_their_place(house: House, ledger: Ledger) -> None:
    @house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow) -> list[Any]:
        def branch(number: int) -> int:
            first = flow.step(ledger.do, number, name="same")
            if number == 1:
                until(lambda: len(ledger.lines) >= 3, "the other branch is faster")
            return int(flow.step(ledger.do, first * 10, name="same"))

        results = flow.gather(lambda: branch(1), lambda: branch(2))
        if flow.ctx.attempt == 1:
            raise ValueError("again")
        return [*results, flow.step(ledger.do, 5)]

    house.start()
    job = work.enqueue()
    assert job.result(60) == [10, 20, 5]
    assert sorted(ledger.lines) == [1, 2, 5, 10, 20]
    results = {step.path: step.result for step in house.app.steps(job.id)}
    assert results == {"1.1.1": "1", "1.1.2": "10", "1.2.1": "2", "1.2.2": "20", "2": "5"}


def test_branches_on_the_loop_are_lines_of_their_own(house: House, ledger: Ledger) -> None:
    @house.app.workflow(name="w", retry=QUICK)
    async def work(flow: AsyncFlow) -> list[Any]:
        async def branch(number: int) -> Any:
            if number == 1:
                await flow.step(asyncio.sleep, 0.05, name="slow")
            return await flow.step(ledger.do, number, name="same")

        results = await flow.gather(branch(1), flow.step(ledger.do, 7), lambda: branch(2))
        both = await flow.gather(flow.gather(branch(3), flow.step(ledger.do, 4)), branch(5))
        if flow.ctx.attempt == 1:
            raise ValueError("again")
        return [*results, *both]

    house.start()
    job = work.enqueue()
    assert job.result(60) == [1, 7, 2, [3, 4], 5]
    assert sorted(ledger.lines) == [1, 2, 3, 4, 5, 7]
    assert {step.path for step in house.app.steps(job.id)} == {"1", "2.1.1", "2.1.2", "2.3.1", "3", "4.1.1", "5.2.1"}


def test_the_first_error_of_branches_is_raised_once_all_have_ended(one_house: House, ledger: Ledger) -> None:
    def boom() -> None:
        raise KeyError("b")

    @one_house.app.workflow(name="w")
    def work(flow: Flow) -> str:
        try:
            flow.gather(lambda: flow.step(ledger.do, 1), lambda: flow.step(boom), lambda: flow.step(ledger.do, 2))
        except KeyError:
            return "caught"
        return "missed"

    one_house.start()
    assert work.enqueue().result(60) == "caught"
    assert sorted(ledger.lines) == [1, 2]


def test_an_error_that_was_caught_is_recorded_with_the_next_call(house: House, ledger: Ledger) -> None:
    def pay() -> None:
        ledger.do("pay")
        raise Declined("no money")

    @house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow) -> str:
        try:
            flow.step(pay)
        except Declined as error:
            said = str(error)
            flow.step(ledger.do, "remind")
        if flow.ctx.attempt == 1:
            raise ValueError("again")
        return said

    house.start()
    job = work.enqueue()
    assert job.result(60) == "no money"
    assert ledger.lines == ["pay", "remind"]
    assert [(step.name, step.error) for step in house.app.steps(job.id)] == [
        ("pay", "Declined: no money"),
        ("do", None),
    ]


def test_an_error_that_leaves_the_workflow_is_not_recorded_and_the_step_runs_again(
    house: House, ledger: Ledger
) -> None:
    def flaky() -> str:
        if len(ledger.lines) == 0:
            ledger.do("failed")
            raise ValueError("at first")
        return "fine"

    @house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow) -> str:
        return flow.step(flaky)

    house.start()
    assert work.enqueue().result(60) == "fine"


def test_a_step_is_tried_again_here_and_now_if_it_says_so(one_house: House, ledger: Ledger) -> None:
    def flaky() -> int:
        ledger.do("try")
        if len(ledger.lines) < 3:
            raise OSError("not yet")
        return 7

    @one_house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow) -> int:
        return flow.step(flaky, retry=Retry(attempts_max=3, base_s=0.0, cap_s=0.0))

    one_house.start()
    assert work.enqueue().result(60) == 7
    assert ledger.lines == ["try"] * 3


def test_a_step_that_catches_every_exception_keeps_to_its_time_limit_all_the_same(one_house: House) -> None:
    caught: list[str] = []

    def tries_again() -> None:
        while True:
            try:
                sum(range(100))
            except Exception as error:
                caught.append(repr(error))

    @one_house.app.workflow(name="w")
    def work(flow: Flow) -> str:
        try:
            flow.step(tries_again, timeout_s=0.05)
        except TimeoutError as error:
            return str(error)
        return ""

    one_house.start()
    assert work.enqueue().result(60) == "the step took longer than 0.05 s"
    assert caught == []


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_step_that_is_recorded_is_progress(one_house: House, kind: str) -> None:
    moved: list[float] = []

    def note(flow: Flow | AsyncFlow) -> None:
        moved.append(flow._run.attempt.activity.moved_at)

    @one_house.app.workflow(name="sync", stall_s=60)
    def sync(flow: Flow) -> None:
        note(flow)
        flow.step(int)
        note(flow)

    @one_house.app.workflow(name="async", stall_s=60)
    async def loop(flow: AsyncFlow) -> None:
        note(flow)
        await flow.step(int)
        note(flow)

    one_house.start()
    (sync if kind == "sync" else loop).enqueue().result(60)
    assert moved[1] > moved[0]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_step_has_a_time_limit_of_its_own(one_house: House, kind: str) -> None:
    def spin() -> None:
        while True:
            sum(range(100))

    async def hang() -> None:
        await asyncio.sleep(60)

    @one_house.app.workflow(name="sync")
    def sync(flow: Flow) -> str:
        try:
            flow.step(spin, timeout_s=0.05)
        except TimeoutError as error:
            return str(error)
        return ""

    @one_house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> str:
        try:
            await flow.step(hang, timeout_s=0.05)
        except TimeoutError as error:
            return str(error)
        return ""

    one_house.start()
    job = (sync if kind == "sync" else loop).enqueue()
    assert job.result(60) == "the step took longer than 0.05 s"


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_step_that_must_not_be_repeated_cannot_ask_for_that(one_house: House, kind: str) -> None:
    """What it raised is on record, and would be raised whenever the workflow is run again."""

    def charge() -> None:
        raise Snooze(0.01)

    @one_house.app.workflow(name="sync")
    def sync(flow: Flow) -> None:
        flow.step(charge, repeatable=False)

    @one_house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> None:
        await flow.step(charge, repeatable=False)

    one_house.start()
    with pytest.raises(JobDead, match="it is not retried"):
        (sync if kind == "sync" else loop).enqueue().result(60)


def test_a_step_that_may_be_repeated_is_run_again_after_a_snooze(one_house: House, ledger: Ledger) -> None:
    def poll() -> int:
        ledger.do("poll")
        if len(ledger.lines) < 3:
            raise Snooze(0.01)
        return len(ledger.lines)

    @one_house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow) -> int:
        return flow.step(poll)

    one_house.start()
    assert work.enqueue().result(60) == 3


def test_a_time_limit_that_comes_too_late_hits_nobody(one_house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step returns in the very moment in which its time is up."""
    fired, over, interrupt = threading.Event(), threading.Event(), sync_driver.interrupt

    def late(*given: Any) -> None:
        fired.set()
        over.wait(0.5)  # until the step is behind, unless it is waited for
        interrupt(*given)

    monkeypatch.setattr(sync_driver, "interrupt", late)

    @one_house.app.workflow(name="w", retry=Retry(attempts_max=1))
    def work(flow: Flow) -> bool:
        found = flow.step(fired.wait, 20, timeout_s=0.01)
        over.set()
        for _ in range(50):  # where it would hit
            time.sleep(0.01)
        return found

    one_house.start()
    assert work.enqueue().result(60) is True


def test_the_flow_is_refused_in_a_thread_that_it_does_not_know(one_house: House) -> None:
    import threading

    said: list[str] = []

    @one_house.app.workflow(name="w")
    def work(flow: Flow) -> None:
        def elsewhere() -> None:
            try:
                flow.step(lambda: 1)
            except UsageError as error:
                said.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    one_house.start()
    work.enqueue().result(60)
    assert "flow.gather" in said[0]


CHANGES = {
    "renamed": (["a", "b", "c"], ["a", "x", "c"], "number 2 the code asks for step 'x'", "recorded there is step 'b'"),
    "inserted": (["a", "b"], ["x", "a", "b"], "number 1 the code asks for step 'x'", "recorded there is step 'a'"),
    "removed": (["a", "b"], ["b"], "number 1 the code asks for step 'b'", "recorded there is step 'a'"),
    "cut short": (["a", "b"], ["a"], "the code has ended", "recorded as number 2 is step 'b'"),
}


@pytest.mark.parametrize(("before", "after", "asks", "has"), CHANGES.values(), ids=CHANGES.keys())
def test_code_that_does_not_fit_the_record_is_held_with_both_sides(
    house: House, ledger: Ledger, before: list[str], after: list[str], asks: str, has: str
) -> None:
    @house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow) -> None:
        for name in before if flow.ctx.attempt == 1 else after:
            flow.step(ledger.do, name, name=name)
        if flow.ctx.attempt == 1:
            raise ValueError("again")

    house.start()
    job = work.enqueue()
    held = until(lambda: house.row(job.id).state == "held" and house.row(job.id), "it is held")
    assert held.error is not None
    assert asks in held.error
    assert has in held.error
    assert FIX_CODE in explain(house.store, held).sentence
    assert ledger.lines == before


def test_versions_run_side_by_side_and_one_that_nobody_has_is_left(house: House) -> None:
    @house.app.workflow(name="w", version=1)
    def old(flow: Flow) -> str:
        return flow.step(lambda: "old", name="s")

    @house.app.workflow(name="w", version=2)
    def new(flow: Flow) -> str:
        return flow.step(lambda: "new", name="s")

    jobs = [old.enqueue(), new.enqueue()]
    assert [job.row.task for job in jobs] == ["w", "w@2"]
    house.start()
    assert [job.result(60) for job in jobs] == ["old", "new"]


def test_a_patch_is_taken_by_new_runs_and_not_by_those_that_were_further(house: House) -> None:
    patched: dict[str, bool] = {}

    @house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow, which: str) -> str:
        flow.step(lambda: 1, name="first")
        if which == "old" and flow.ctx.attempt == 1:  # as the code was
            flow.step(lambda: 1, name="second")
            raise ValueError("a deploy comes in between")
        patched[which] = flow.patched("new tax")
        if patched[which]:
            flow.step(lambda: 1, name="tax")
        flow.step(lambda: 1, name="second")
        return which

    house.start()
    assert [work.enqueue(which).result(60) for which in ("old", "new")] == ["old", "new"]
    assert patched == {"old": False, "new": True}


def test_a_workflow_without_a_flow_and_a_bad_version_are_refused(one_house: House) -> None:
    with pytest.raises(UsageError, match="first argument must be the flow"):
        one_house.app.workflow(lambda order: order, name="w")  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="version=0"):
        one_house.app.workflow(version=0)(lambda flow: None)  # type: ignore[arg-type]


def test_a_transaction_writes_and_records_in_one_commit(sql_house: House) -> None:
    is_file = sql_house.app.url.startswith("sqlite")
    with_table = "CREATE TABLE IF NOT EXISTS paid (n integer)"

    def pay(db: Any, n: int) -> int:
        db.execute(with_table)
        db.execute("INSERT INTO paid VALUES (?)" if is_file else "INSERT INTO paid VALUES (%s)", (n,))
        return int(db.execute("SELECT count(*) FROM paid").fetchone()[0])

    def fails(db: Any) -> None:
        pay(db, 99)
        raise KeyError("after the write")

    @sql_house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow) -> list[int]:
        first = flow.transaction(pay, 1)
        try:
            flow.transaction(fails)
        except KeyError:
            second = flow.transaction(pay, 2)
        if flow.ctx.attempt == 1:
            raise ValueError("again")
        return [first, second]

    sql_house.start()
    job = work.enqueue()
    try:
        assert job.result(60) == [1, 2]
        assert [(s.kind, s.name, s.error_kind) for s in sql_house.app.steps(job.id)] == [
            *(("transaction", "pay", None), ("transaction", "fails", "KeyError"), ("transaction", "pay", None)),
        ]
    finally:
        if not is_file:
            import psycopg

            with psycopg.connect(sql_house.app.url, autocommit=True) as db:
                db.execute("DROP TABLE IF EXISTS paid")


@pytest.mark.parametrize("sql_house", ["sqlite"], indirect=True)
def test_a_transaction_that_meets_a_locked_row_is_not_recorded_without_its_writes(
    sql_house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, answers = SqliteTransaction.record, iter([Reply.LOCKED, Reply.AGAIN])
    monkeypatch.setattr(SqliteTransaction, "record", lambda self, record: next(answers, None) or real(self, record))

    def pay(db: Any) -> int:
        db.execute("CREATE TABLE paid (n integer)")
        return 1

    @sql_house.app.workflow(name="w", retry=QUICK)
    def work(flow: Flow) -> list[int]:
        paid = flow.transaction(pay)
        return [paid, flow.transaction(lambda db: db.execute("SELECT count(*) FROM paid").fetchone()[0])]

    sql_house.start()
    assert work.enqueue().result(60) == [1, 0]


def test_a_failure_that_is_on_record_is_final(house: House, ledger: Ledger) -> None:
    def charge() -> None:
        ledger.do("charge")
        raise ValueError("declined")

    @house.app.workflow(name="w", retry=Retry(attempts_max=5, base_s=60.0))
    def work(flow: Flow) -> None:
        flow.step(charge, repeatable=False)

    house.start()
    job = work.enqueue()
    with pytest.raises(JobDead, match="declined; it is not retried"):
        job.result(60)
    assert ledger.lines == ["charge"]
    assert house.row(job.id).open_step is None
