"""A person may be far from the database: a command that reads asks it three times at most, however much it shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.core.settlement import settlement
from holdfast.core.verdict import Failed, Lost, judge
from holdfast.stores.postgres.connection import Connections
from holdfast.stores.postgres.store import PostgresStore
from tests.cli.conftest import Run
from tests.factory import add, enrol, park, start, start_flow

ROUNDS_MAX = 3
COMMANDS = """
status
top --once
errors --since 2h
report --since 2h
audit
audit --since 2h
zombies
zombies --list
jobs list
jobs list --state running
jobs list --state retrying
jobs list --task pay --since 2h
jobs list --crashed --since 24h
jobs show JOB
jobs show JOB --json
held list
held list --json
dead list
queues list
tasks list
schedules list
workers list --gone
workers show box
worker-health --name box
batches list
workflows list
db status
"""


@pytest.fixture
def mess(postgres: str) -> Iterator[PostgresStore]:
    store = PostgresStore(postgres)
    store.migrate()
    worker = enrol(store, name="box", queues=["shop"], release="2.4.1")

    def ends(outcome: Failed | Lost, **given: Any) -> None:
        job = start(store, worker, **{"task": "shop.pay", "queue": "shop"} | given)
        store.settle([settlement(job, judge(outcome, job, store.now().wall, chance=0.5))])

    for number in range(3):
        ends(Failed("ValueError: no card", error_kind="ValueError"), attempts_max=1)
        ends(Lost("vanished", "killed by SIGKILL"), on_crash="hold")
        ends(Lost("exit", "killed by SIGKILL"), task=f"shop.ship_{number}")
        add(store, queue=f"q{number}", task="shop.gone")
    park(store, start_flow(store, worker, task="shop.order", queue="shop"), "signal:approve:1", question="Ship it?")
    store.pause("q1", True, actor="ann", note="the bank is down")
    yield store
    store.close()


def test_a_command_that_reads_asks_the_server_three_times_at_most(
    run: Run, mess: PostgresStore, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(mess, enrol(mess, name="other", queues=["shop"]), queue="shop", task="shop.ship")
    asked: list[str] = []
    original = Connections.run

    def counted(self: Connections, work: Any, limits: Any = None) -> Any:
        asked.append(work.__qualname__)
        return original(self, work, limits)

    monkeypatch.setattr(Connections, "run", counted)
    found = {}
    for line in COMMANDS.strip().splitlines():
        asked.clear()
        words = [running.id if word == "JOB" else word for word in line.split()]
        run("--db", postgres, *words, code=7 if line == "status" else 0)
        found[line] = len([each for each in asked if "_schema" not in each])  # as every command, at its start
    assert {line: number for line, number in found.items() if number > ROUNDS_MAX} == {}
    assert found["status"] > 0
