"""Mutants of SQL: each condition of every statement that guards something, dropped in turn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.stores.sql import expand
from tests.mutants.mutant import PACKAGE, ROOT, Mutant

CONFORMANCE = "tests/conformance"
STORE = (CONFORMANCE, "tests/stores/test_sqlite_store.py")

# Where else a statement whose name begins so is tested; these run first.
FURTHER = {
    "move_": f"{CONFORMANCE}/test_move_steps.py",
    "signal_": f"{CONFORMANCE}/test_parking.py",
    "settle": f"{CONFORMANCE}/test_parking.py",
    "stand": f"{CONFORMANCE}/test_standing.py",
    "standing": "tests/worker/test_continuity.py",
    "migrate_": "tests/stores/test_migrations.py",
    "declare_again": "tests/stores/test_postgres_schedules.py",
}

# Statements whose WHERE protects somebody: every conjunct is a guard.
GUARDED = {
    "sqlite": (
        *("claim_worker", "claim", "claim_answers", "beat_worker", "beat", "beat_lost", "beat_cancelled"),
        *("settle", "settle_done", "transaction", "overdue", "vanished", "retire", "move", "purge", "delete", "due"),
        *("declare", "schedule", "schedules", "fire", "fire_job", "pause_schedule", "forget_schedule"),
        *("publish", "published", "forget_task"),
        *("batch_add", "close_batch", "find_unended_batches", "end_batch", "batches_purged"),
        *("key_live", "keys_purged", "expired", "dependents", "add_awaiting"),
        *("record_owned", "record", "record_facts", "record_taken", "record_child", "steps", "steps_aside"),
        *(
            "signal_known",
            "signal_reach",
            "inbox",
            "inbox_signals",
            "wake_due",
            "wake_due_next",
            "due_waits",
            "fork_source",
            "fork",
            "move_aside",
            "move_give_back",
        ),
        *("purge_steps", "purge_signals", "standing", "migrate_running", "migrate_retire"),
    ),
    "postgres": (
        *("add_holders", "claim", "claim_answers", "beat", "settle", "settle_done", "settle_seen", "transaction"),
        *("overdue", "deadline", "vanished", "retire", "acquire", "resign", "move", "purge", "delete", "find"),
        *(
            "unserved",
            "due",
            "declare",
            "declare_again",
            "schedule",
            "schedules",
            "fire",
            "pause_schedule",
            "forget_schedule",
        ),
        *("publish", "published", "forget_task"),
        *("batch_add", "close_batch", "find_unended_batches", "end_batch", "batches_purged"),
        *("key_live", "keys_purged", "expired", "dependents", "dependents_on", "add_awaiting"),
        *("record", "record_child", "record_seen", "locked", "steps", "signal", "signal_parents", "inbox"),
        *("wake_due", "due_waits", "fork_source", "fork", "move_lock", "move_steps", "move_aside", "move_give_back"),
        *("find_workflows", "wake", "standing", "migrate_running", "migrate_retire"),
    ),
}

OF_LOCKED_ROWS = ("beside", "%(ids)s", "%(row_locked)s::boolean")  # they matter while another transaction has a row
OF_SCHEDULES = (
    *("declare", "declare_again", "schedule", "schedules", "fire", "fire_job", "pause_schedule", "forget_schedule"),
)

OF_BATCHES = ("batch_add", "close_batch", "find_unended_batches", "end_batch", "batches_purged")

OF_KEYS = ("key_live", "keys_purged")

OF_TASKS = ("publish", "published", "forget_task")


@dataclass(frozen=True, slots=True)
class Guard:
    """One condition of a statement, and the statement without it."""

    store: str
    query: str
    name: str
    statement: str


def sql_mutants() -> Iterator[Mutant]:
    for store in GUARDED:
        file = queries_of(store)
        whole = expand((PACKAGE / file).read_text())
        for guard in guards(store):
            start, end = span(whole, guard.query)
            verb = "acquire" if ".duty:" in guard.name or ".allowed:" in guard.name else guard.query.split("_")[0]
            verb = "fire" if guard.query in OF_SCHEDULES else verb
            verb = "publish" if guard.query in OF_TASKS else verb
            verb = "batches" if guard.query in OF_BATCHES else verb
            verb = "keys" if guard.query in OF_KEYS else verb
            nearest = f"{CONFORMANCE}/test_{verb}.py"
            near = [*(file for word, file in FURTHER.items() if guard.query.startswith(word)), nearest]
            tests = (*(test for test in near if (ROOT / test).exists()), *STORE)
            tests = (tests[0], "tests/stores/test_postgres_guards.py", *tests[1:]) if store == "postgres" else tests
            if "claim_try" in guard.name:
                tests = ("tests/stores/test_postgres_outages.py",)
            if store == "postgres" and any(word in guard.name for word in OF_LOCKED_ROWS):
                tests = ("tests/worker/test_locked_rows.py", "tests/stores/test_postgres_locked_rows.py")
            if guard.query == "locked":
                tests = ("tests/stores/test_postgres_locks.py",)
            if "coalesce(value ->> 0, '')" in guard.name:
                tests = ("tests/stores/test_postgres_plans.py",)
            if guard.query == "wake" or guard.name.startswith("postgres due:"):
                tests = ("tests/stores/test_postgres_wakeups.py",)
            if guard.query == "transaction":
                tests = ("tests/worker/test_transaction.py", *tests)
            yield Mutant(guard.name, file, whole[:start] + guard.statement + whole[end:], tests)


def guards(store: str) -> Iterator[Guard]:
    """Return every guard of the statements in GUARDED."""
    whole = expand((PACKAGE / queries_of(store)).read_text())
    names = Counter[str]()
    for query in GUARDED[store]:
        start, end = span(whole, query)
        statement = whole[start:end]
        for begin, stop, instead in conditions(statement):
            part = part_of(statement, begin)
            name = f"{store} {query}{part}: {' '.join(statement[begin:stop].split())}"
            names[name] += 1
            name += f" ({names[name]})" if names[name] > 1 else ""
            yield Guard(store, query, name, statement[:begin] + instead + statement[stop:])


def queries_of(store: str) -> str:
    return f"stores/{store}/queries.sql"


def span(whole: str, query: str) -> tuple[int, int]:
    """Return where a statement begins and ends in its file."""
    start = whole.index(f"-- name: {query}\n")
    end = whole.find("\n-- name: ", start + 1)
    return start, end if end >= 0 else len(whole)


BEGINS = re.compile(r"\b(?:WHERE|AND|OR|(?<!DISTINCT )ON(?! CONFLICT))\s+")
ENDS = re.compile(
    r"\s+(?:AND|OR|AS|ORDER BY|LIMIT|RETURNING|GROUP BY|UNION|FOR|(?:LEFT |CROSS )?JOIN|WHERE|ON CONFLICT)\b"
    r"|(?<!DISTINCT)\s+FROM\b|;|,|\s*\)|\s*$"
)
PART = re.compile(r"^(?:WITH (?:RECURSIVE )?)?(\w+)(?: \([\w, ]+\))? AS (?:MATERIALIZED )?\($", re.MULTILINE)


def conditions(statement: str) -> Iterator[tuple[int, int, str]]:
    """Find what stands behind each WHERE, AND, ON and OR of this depth; and what it is replaced by to drop it."""
    for match in BEGINS.finditer(statement):
        begin = at = match.end()
        depth = 0
        while at < len(statement) and not (depth == 0 and ENDS.match(statement, at)):
            depth += {"(": 1, ")": -1}.get(statement[at], 0)
            at += 1
        line = statement[statement.rfind("\n", 0, begin) + 1 : begin]
        if statement[begin:at].strip() not in ("", "true") and not line.startswith("--"):
            yield begin, at, "false" if match[0].startswith("OR") else "true"


def part_of(statement: str, at: int) -> str:
    """Return the name of the CTE around this place, with a dot before it."""
    last = None
    for last in PART.finditer(statement, 0, at):  # noqa: B007
        pass
    inside = last is not None and re.search(r"^\),?$", statement[last.end() : at], re.MULTILINE) is None
    return f".{last[1]}" if last is not None and inside else ""
