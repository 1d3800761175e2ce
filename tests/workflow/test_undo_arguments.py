"""An undo is called with the arguments that its step was called with, whatever today's code would pass."""

import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import App, AsyncFlow, Flow, JobRolledBack, PayloadError, Retry, Rollback
from holdfast.core.payload import JSON
from tests.factory import a_step
from tests.worker.house import House, until
from tests.workflow.test_parking import with_early_record

ONCE = Retry(attempts_max=1)


@dataclass
class Money:
    cents: int


class Bank:
    """What was charged and refunded; `price` is a constant of the code, which a deploy changes."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.price = 999

    def charge(self, order_id: int, money: Money, *, currency: str = "EUR") -> str:
        self.lines.append(f"charged {order_id} {money.cents} {currency}")
        return "receipt"

    def refund(self, result: str | None, order: int, money: Money, *, currency: str = "EUR") -> None:
        assert isinstance(money, Money)
        self.lines.append(f"refunded {order} {money.cents} {currency} {result}")


@pytest.fixture
def bank() -> Bank:
    return Bank()


@pytest.mark.parametrize("form", ["sync", "async"])
def test_a_refund_is_of_what_was_charged_and_not_of_what_the_code_says_today(
    house: House, bank: Bank, form: str
) -> None:
    @house.app.workflow(name="sync")
    def sync(flow: Flow) -> None:
        flow.step(bank.charge, 7, Money(bank.price), currency="USD", undo=bank.refund)
        flow.wait("go")

    @house.app.workflow(name="async")
    async def loop(flow: AsyncFlow) -> None:
        await flow.step(bank.charge, 7, Money(bank.price), currency="USD", undo=bank.refund)
        await flow.wait("go")

    house.start()
    job = (sync if form == "sync" else loop).enqueue()
    house.until_state(job.id, "waiting")
    bank.price = 1099  # the constant is deployed anew
    house.app.rollback(job.id, by="ann")
    with pytest.raises(JobRolledBack):
        job.result(60)
    assert bank.lines == ["charged 7 999 USD", "refunded 7 999 USD receipt"]


def test_the_arguments_are_on_record_before_the_function_runs(one_house: House) -> None:
    seen: list[Any] = []

    @one_house.app.workflow(name="w")
    def work(flow: Flow) -> None:
        def charge(items: list[int]) -> None:
            [step] = one_house.app.steps(flow.id)
            seen.append((step.state, json.loads(step.arguments or "null")))
            items.clear()

        flow.step(charge, [1, 2], undo=lambda result, items: seen.append(items))
        raise Rollback("why")

    one_house.start()
    with pytest.raises(JobRolledBack):
        work.enqueue().result(60)
    assert seen == [("started", {"positional": 1, "arguments": {"items": [1, 2]}}), [1, 2]]


@pytest.mark.parametrize(
    ("argument", "words"),
    [(object(), "argument 'what'"), ("x" * 1_100_000, "1,048,576")],
    ids=["not JSON", "too large"],
)
def test_arguments_that_cannot_be_recorded_fail_before_the_step(one_house: House, argument: Any, words: str) -> None:
    ran: list[Any] = []

    def do(what: Any) -> None:
        ran.append(what)

    @one_house.app.workflow(name="w", retry=ONCE)
    def work(flow: Flow) -> str:
        try:
            flow.step(do, argument, undo=lambda result, what: None)
        except PayloadError as error:
            return str(error)
        return "it ran"

    one_house.start()
    said = work.enqueue().result(60)
    assert said.startswith("step do: ")
    assert words in said.replace("1048576", "1,048,576")
    assert ran == []


def test_arguments_are_not_recorded_without_an_undo(one_house: House) -> None:
    @one_house.app.workflow(name="w")
    def work(flow: Flow) -> int:
        return flow.step(id, object()) and flow.step(int, "7", repeatable=False)

    one_house.start()
    job = work.enqueue()
    assert job.result(60) == 7
    assert [step.arguments for step in one_house.app.steps(job.id)] == [None, None]


class Secret:
    """A codec that nobody can read: what it is given, backwards."""

    def encode(self, plain: Any) -> str:
        return JSON.encode(plain)[::-1]

    def decode(self, text: str) -> Any:
        return JSON.decode(text[::-1])


def test_the_arguments_are_encoded_by_the_codec_of_the_app() -> None:
    undone: list[Any] = []

    house = House(App("memory://", codec=Secret()))

    @house.app.workflow(name="w")
    def work(flow: Flow) -> None:
        flow.step(str, "card 4711", undo=lambda result, card: undone.append(card))
        raise Rollback("why")

    try:
        house.start()
        job = work.enqueue()
        until(lambda: house.row(job.id).state == "rolled_back", "it is rolled back")
        assert undone == ["card 4711"]
        assert "1174 drac" in str(house.app.steps(job.id)[0].arguments)
    finally:
        house.close()


def test_a_step_that_was_recorded_without_arguments_is_undone_by_todays_code_with_a_warning(
    house: House, bank: Bank, caplog: pytest.LogCaptureFixture
) -> None:
    @house.app.workflow(name="sync")
    def sync(flow: Flow) -> None:
        flow.step(bank.charge, 7, Money(bank.price), undo=bank.refund)
        raise Rollback("why")

    job = sync.enqueue()
    old = a_step(position=1, path="1", name="charge", state="recorded", result='"receipt"', has_undo=True)
    with_early_record(house, job.id, old)
    with caplog.at_level(logging.WARNING, "holdfast"):
        house.start()
        with pytest.raises(JobRolledBack):
            job.result(60)
    assert bank.lines == ["refunded 7 999 EUR receipt"]
    assert len([each for each in caplog.messages if "without its arguments" in each]) == 1


def test_arguments_that_todays_signature_cannot_read_hold_the_rollback(one_house: House) -> None:
    undone: list[Any] = []
    renamed = False

    def charge(cents: int) -> None: ...
    def charged(amount: int) -> None: ...

    @one_house.app.workflow(name="w")
    def work(flow: Flow) -> None:
        flow.step(charged if renamed else charge, 5, undo=lambda _, cents: undone.append(cents), name="charge")
        flow.wait("go")

    one_house.start()
    job = work.enqueue()
    one_house.until_state(job.id, "waiting")
    renamed = True
    one_house.app.rollback(job.id, by="ann")
    held = one_house.until_state(job.id, "held")
    assert "unexpected argument 'cents'" in str(held.error)
    assert undone == []
    renamed = False
    one_house.app.resolve(job.id, "retry", by="ann")
    with pytest.raises(JobRolledBack):
        job.result(60)
    assert undone == [5]


def test_any_callable_can_have_an_undo(one_house: House) -> None:
    """Built-ins that do not tell their signature, partials, stars, and annotations that cannot be resolved."""
    import functools

    undone: list[Any] = []

    def stars(first: int, *rest: int, **named: str) -> None: ...
    def local(value: "Unknown") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    @one_house.app.workflow(name="w")
    def work(flow: Flow) -> None:
        def note(result: Any, *args: Any, **kwargs: Any) -> None:
            undone.append([list(args), kwargs])

        flow.step(stars, 1, 2, 3, a="x", undo=note)
        flow.step(functools.partial(stars, 1), 2, b="y", undo=note, name="partial")
        flow.step(max, 4, 5, undo=note)
        flow.step(local, [6], undo=note)
        flow.step(dict, a=7, undo=note)
        raise Rollback("why")

    one_house.start()
    with pytest.raises(JobRolledBack):
        work.enqueue().result(60)
    assert undone == [
        [[], {"a": 7}],
        [[[6]], {}],
        [[4, 5], {}],
        [[2], {"b": "y"}],
        [[1, 2, 3], {"a": "x"}],
    ]


def test_an_app_is_all_that_is_needed(bank: Bank) -> None:
    """The whole way, without a house: `tick` runs the workflow and its rollback."""
    app = App("memory://")

    @app.workflow(name="w")
    def work(flow: Flow) -> None:
        flow.step(bank.charge, 1, Money(5), undo=bank.refund)
        raise Rollback("why")

    job = work.enqueue()
    while app.get(job.id).row.ended_at is None:
        app.tick(budget_s=5)
    app.close()
    assert bank.lines == ["charged 1 5 EUR", "refunded 1 5 EUR receipt"]
