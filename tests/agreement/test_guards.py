"""The machine itself is tested: with one guard of the SQL dropped, the two stores must stop agreeing."""

import inspect
import sqlite3
from collections.abc import Collection

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import RULE_MARKER, run_state_machine_as_test

from holdfast.stores.postgres.connection import _QUERIES
from holdfast.stores.sqlite.statements import Q
from tests.agreement.machine import Stores
from tests.agreement.postgres import stores_at
from tests.agreement.workflows import Workflows
from tests.mutants import guards

SEEDS = 150  # the first finds most
# What the guards below need. With these rules alone they are missed soon, also when the machine has learned more.
RULES = {
    *("add", "start", "claim", "beat", "settle", "look", "reap", "pass_of_the_real_reaper", "lose", "retire"),
    *("see", "act", "act_at_once", "wait", "every_zombie_comes_back", "every_person_acts_on_what_was_true_once"),
    *("keep_house", "read"),
}
FLOW_RULES = {
    *("add", "start", "claim", "beat", "settle", "lose", "retire", "see", "act", "act_at_once", "wait", "read"),
    *("every_zombie_comes_back", "start_flows", "start_a_child", "record", "every_zombie_records", "send"),
    *("look_into_the_inbox", "park", "wait_and_be_woken", "wake_due", "say_of_a_flow", "go_on_from_a_step", "fork"),
    "read_flows",
}
FEW = settings(
    max_examples=4,  # of so few, none is drawn small on purpose
    stateful_step_count=60,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # the first finding will do
    suppress_health_check=list(HealthCheck),
)
WITHOUT = {guard.name: guard for store in ("sqlite", "postgres") for guard in guards(store)}
ON_SQLITE = [
    "claim: state = 'ready'",
    "claim: (:started = 1 OR on_crash = 'retry')",
    "claim_worker: gone_at IS NULL",
    "beat: job.fence = pulse.fence",
    "beat: job.claim_id = pulse.claim_id",
    "beat: job.state = 'running'",
    "settle: job.fence = ending.fence",
    "settle: job.claim_id = ending.claim_id",
    "settle: job.state = 'running'",
    "settle: (ending.seen_lease_until IS NULL OR job.lease_until <= ending.seen_lease_until + 0.000001)",
    "settle: (ending.state = 'done' OR job.cancel_requested = ending.seen_cancel)",
    "settle_done: job.fence = ending.fence",
    "settle_done: job.claim_id = ending.claim_id",
    "move: job.fence = act.seen_fence",
    "move: job.state = act.seen_state",
]
ON_POSTGRES = [  # those that are found soon; tests/mutants drops every one
    "claim.enrolled: gone_at IS NULL",
    "claim.picked: state = 'ready' (3)",
    "claim.taken: (nth <= %(limit)s::bigint OR on_crash = 'retry')",
    "beat.enrolled: worker.gone_at IS NULL",
    "beat.mine: job.state || '' = 'running'",
    "settle.free: job.fence = ending.fence",
    "settle.free: job.state || '' = 'running'",
    "settle.applied: (ending.state = 'done' OR job.cancel_requested = ending.seen_cancel)",
    "settle_done.free: job.fence = ending.fence",
    "settle_done.free: job.claim_id = ending.claim_id",
    "settle_done.free: job.state || '' = 'running'",
    "move.free: job.state || '' = act.seen_state",
    "delete.gone: job.fence = (seen ->> 2)::bigint",
]
FLOWS_ON_SQLITE = [
    "record_owned: job.fence = token.value ->> 1",
    "record_owned: job.claim_id = token.value ->> 2",
    "record_owned: job.state = 'running'",
    "record: step.state = 'started'",
    "record: excluded.state = 'undone'",
    "record_taken: +job_id = :id",
    "signal_reach: workflow = 1",
    "signal_reach: state IN ('ready', 'running', 'waiting', 'held')",
    "signal_reach: :what IN (SELECT value FROM json_each(awaits))",
    "settle: job.inbox = ending.inbox",
    "inbox_signals: taken IS NULL",
    "wake_due: wake_at <= :wall",
    "move_aside: position >= :aside_from",
]
FLOWS_ON_POSTGRES = [  # those that are found soon
    "record.mine: job.fence = token.fence",
    "record.mine: job.state || '' = 'running'",
    "record.written: (value ->> 20)::bigint IN (SELECT place FROM mine)",
    "record.notified: job.id IN (SELECT id FROM mine)",
]


def search(machine: type[Stores], guard: str, rules: Collection[str]) -> None:
    """Draw a few runs from each seed in turn, until the two stores do not agree."""
    members = inspect.getmembers(machine, lambda member: hasattr(member, RULE_MARKER))
    others = {name: None for name, rule in members if rule.__name__ not in rules}
    for number in range(SEEDS):
        run_state_machine_as_test(seed(number)(type(guard, (machine,), others)), settings=FEW)


@pytest.mark.parametrize("guard", ON_SQLITE)
def test_the_machine_misses_it_when_it_is_gone(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without = WITHOUT[f"sqlite {guard}"]
    monkeypatch.setitem(Q, without.query, without.statement)
    with pytest.raises(AssertionError):
        search(Stores, guard, RULES)


@pytest.mark.slow  # some need ten runs, each of a thousand round trips
@pytest.mark.parametrize("guard", ON_POSTGRES)
def test_it_is_missed_on_postgres(guard: str, monkeypatch: pytest.MonkeyPatch, postgres_server: str) -> None:
    without = WITHOUT[f"postgres {guard}"]
    monkeypatch.setitem(_QUERIES, without.query, without.statement)
    with pytest.raises(AssertionError):
        search(stores_at(postgres_server), guard, RULES)


@pytest.mark.slow  # sixty steps of two stores, some of them many times
@pytest.mark.parametrize("guard", FLOWS_ON_SQLITE)
def test_the_machine_of_workflows_misses_it(guard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    without = WITHOUT[f"sqlite {guard}"]
    monkeypatch.setitem(Q, without.query, without.statement)
    with pytest.raises((AssertionError, sqlite3.Error)):
        search(Workflows, guard, FLOW_RULES)


@pytest.mark.slow  # some need ten runs, each of a thousand round trips
@pytest.mark.parametrize("guard", FLOWS_ON_POSTGRES)
def test_the_machine_of_workflows_misses_it_on_postgres(
    guard: str, monkeypatch: pytest.MonkeyPatch, postgres_server: str
) -> None:
    without = WITHOUT[f"postgres {guard}"]
    monkeypatch.setitem(_QUERIES, without.query, without.statement)
    with pytest.raises(AssertionError):
        search(stores_at(postgres_server, Workflows), guard, FLOW_RULES)
