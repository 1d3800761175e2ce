"""What a person sees at 80, 100 and 160 columns, kept as text in `screens/`.

After a change that is meant, write them anew and look at the difference: HOLDFAST_TEST_SCREENS=write.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from holdfast.cli import output
from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Lost, Outcome, judge
from holdfast.stores.protocol import Store
from holdfast.testing import FakeClock
from tests.cli.conftest import Run
from tests.factory import add, enrol, park, start, start_flow

SCREENS = Path(__file__).parent / "screens"
INSTANT = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
COMMANDS = {
    "jobs": ("jobs", "list"),
    "held": ("held", "list"),
    "dead": ("dead", "list"),
    "errors": ("errors",),
    "audit": ("audit",),
    "zombies": ("zombies", "--list"),
}
# At 80 columns, too, each of these can be read whole: the state, the cause, the question.
WHOLE = {
    "jobs": ["held", "dead", "running", "ready", "scheduled"],
    "held": ["Pay 4,200.00 EUR to the supplier of order 4711?", "killed by SIGKILL"],
    "dead": ["ConnectionError: the bank at bank.example.com does not answer"],
    "errors": ["ConnectionError: the bank at bank.example.com does not answer, in shop.payments.bank.call"],
    "audit": ["the bank is down; call its hotline before you resume"],
    "zombies": ["vanished", "exit", "held", "ready"],
}


def id_of(number: int) -> str:
    return f"0193aaaa-0000-7000-8000-{number:012}"


@pytest.fixture
def mess(store: Store, clock: FakeClock) -> Store:
    clock.set_wall(clock.wall() - 540)  # the ages of all jobs are ten minutes, however slow the test is
    worker = enrol(store, name="box-17/1", queues=["payments", "mail"], release="2026.11.19")

    def ends(number: int, outcome: Outcome, **given: object) -> None:
        job = start(store, worker, id=id_of(number), **{"task": "shop.payments.charge", "queue": "payments"} | given)
        verdict = judge(outcome, job, store.now().wall, chance=0.5, release="2026.11.19")
        store.settle([settlement(job, verdict)])
        clock.advance(1)

    bank = "ConnectionError: the bank at bank.example.com does not answer"
    failed = Failed(bank, error_kind="ConnectionError", origin="shop.payments.bank.call")
    lost = {"seconds_since_beat": 2.5, "worker": "box-17/1"}
    ends(1, failed, attempts_max=1)
    ends(2, failed, attempts_max=1)
    ends(3, Lost("vanished", "killed by SIGKILL", lost), on_crash="hold", attempts_max=3)
    ends(4, Lost("exit", "killed by SIGKILL", lost), attempts_max=3)
    park(
        store,
        start_flow(store, worker, id=id_of(5), task="shop.orders.fulfil", queue="payments"),
        "signal:approve:1",
        question="Pay 4,200.00 EUR to the supplier of order 4711?",
    )
    start(store, worker, id=id_of(6), task="shop.mail.send", queue="mail", lease_s=600.0)
    add(store, id=id_of(7), task="shop.mail.digest", queue="mail", run_at=clock.wall() + 86_400)
    store.pause("mail", True, actor="ann@box", note="the bank is down; call its hotline before you resume")
    return store


def shown(run: Run, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], columns: int) -> str:
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    text = run(*words).stdout
    return "\n".join(INSTANT.sub("2026-01-31 12:00:00", line).rstrip() for line in text.splitlines()) + "\n"


@pytest.mark.parametrize("columns", [80, 100, 160])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_screen_is_as_it_was_looked_at(
    run: Run, mess: Store, monkeypatch: pytest.MonkeyPatch, name: str, columns: int
) -> None:
    text, file = shown(run, monkeypatch, COMMANDS[name], columns), SCREENS / f"{name}-{columns}.txt"
    if os.environ.get("HOLDFAST_TEST_SCREENS") == "write":
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8")


@pytest.mark.parametrize("columns", [80, 100, 160])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_list_fits_and_shows_whole_what_people_look_for(
    run: Run, mess: Store, monkeypatch: pytest.MonkeyPatch, name: str, columns: int
) -> None:
    text = shown(run, monkeypatch, COMMANDS[name], columns)
    assert max(len(line) for line in text.splitlines()) <= columns
    words = " ".join(text.split())
    assert [each for each in WHOLE[name] if each not in words] == []
