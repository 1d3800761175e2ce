"""Break one guard at a time; something must go red. A net is trusted only after something was thrown into it.

    make mutants                          every mutant, an hour or so on two cores
    .venv/bin/python tests/mutants.py settle judge      only those whose name contains one of the words
    .venv/bin/python tests/mutants.py postgres          only those of that store
    .venv/bin/python tests/mutants.py --list

Three kinds. *SQL* (`sqlite`, `postgres`): each conjunct of every guarding statement in queries.sql is dropped, and each
alternative. *Judge*: each condition in core/verdict.py and core/acts.py is negated, each comparison moved by one, each
operand of `and`/`or` dropped, each move of the machine's table removed. *Hand*: guards that a program cannot find, with
the tests that should notice. A mutant is dead when a test fails; one that survives ends this program with exit code 1.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # not this folder, which has a `typing` in it

from tests.servers import QUICK, PostgresServer  # noqa: E402

SRC = ROOT / "src"
CONFORMANCE = "tests/conformance"
CORE = ("tests/core",)
STORE = (CONFORMANCE, "tests/test_sqlite_store.py")

# Where else a statement whose name begins so is tested; these run first.
FURTHER = {
    "move_": f"{CONFORMANCE}/test_move_steps.py",
    "signal_": f"{CONFORMANCE}/test_parking.py",
    "settle": f"{CONFORMANCE}/test_parking.py",
    "stand": f"{CONFORMANCE}/test_standing.py",
    "standing": "tests/worker/test_continuity.py",
    "migrate_": "tests/stores/test_migrations.py",
}

# Statements whose WHERE protects somebody: every conjunct is a guard.
GUARDED = {
    "sqlite": (
        *("claim_worker", "claim", "claim_answers", "beat_worker", "beat", "beat_lost", "beat_cancelled"),
        *("settle", "settle_done", "transaction", "overdue", "vanished", "retire", "move", "purge", "delete", "due"),
        *("declare_again", "fire", "fire_job", "pause_schedule"),
        *("record_owned", "record", "record_facts", "record_taken", "steps", "steps_aside", "signal_known"),
        *(
            "signal_reach",
            "inbox",
            "inbox_signals",
            "rouse",
            "rouse_next",
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
        *("unserved", "due", "declare_again", "fire", "pause_schedule"),
        *("record", "record_seen", "locked", "steps", "signal", "signal_parents", "inbox"),
        *("rouse", "fork_source", "fork", "move_lock", "move_steps", "move_aside", "move_give_back", "find_workflows"),
        *("standing", "migrate_running", "migrate_retire"),
    ),
}

OF_SCHEDULES = ("declare_again", "fire", "fire_job", "pause_schedule")
# Conjuncts that can be dropped without harm, each with its reason.
EQUIVALENT = {
    "sqlite claim_answers: state = 'running'": "a claim_id is only on rows that this claim made running, and is unique",
    "sqlite claim_answers: worker = :worker": "only its own worker knows a claim_id",
    "sqlite beat_cancelled: state = 'running'": "only a running job has a worker: a CHECK says so",
    "sqlite due: priority = :priority": "it only says which lane is read; the earliest of all is the same",
    "sqlite overdue: job.state = 'running'": "only a running job has a lease: a CHECK says so",
    "postgres claim.wanted: EXISTS (SELECT FROM enrolled)": "it spares the look; `holder` lets nobody else take anything",
    "postgres claim.given: state = 'running'": "only a running job has a worker: a CHECK says so",
    "postgres claim.given: worker = %(worker)s": "only its own worker knows a claim_id",
    **{
        f"postgres {name}": "it only says which lanes are looked at; one without ready jobs of the queue gives none"
        for name in (
            "claim.picked: job.state = 'ready'",
            "claim.picked: job.queue = wanted.queue",
            "claim.picked: job.state = 'ready' (2)",
            "claim.picked: job.queue = wanted.queue (2)",
            "claim.picked: lane.priority IS NOT NULL (2)",
            "due.lane: job.state = 'ready'",
            "due.lane: job.queue = wanted.queue",
            "due.lane: job.state = 'ready' (2)",
            "due.lane: job.queue = lane.queue",
            "due: job.priority = begun.priority",
        )
    },
    "postgres claim_answers: job.state = 'running'": "only a running job has a worker: a CHECK says so",
    "postgres claim_answers: job.worker = %(worker)s": "only its own worker knows a claim_id",
    "postgres beat: job.state = 'running'": "only a running job has a worker: a CHECK says so",
    "postgres settle.told: state = 'ready'": "a hint too many: who is woken looks and sleeps again",
    "postgres settle.told: due": "a hint too many: who is woken looks and sleeps again",
    "postgres overdue: job.state = 'running'": "only a running job has a lease: a CHECK says so",
    "postgres deadline: state = 'running'": "only a running job has a lease: a CHECK says so",
    "postgres vanished.held: %(watch)s": "it spares the look at the locks; who does not watch finds nobody below",
    "postgres vanished.held: locktype = 'advisory'": "no other kind of lock has objsubid 1",
    "postgres vanished.held: objsubid = 1": "a lock with two numbers is another one, but for a chance of one in 2^64",
    "postgres vanished.held: granted": "nobody waits for such a lock: all of them are tried",
    "postgres vanished.held: database = (SELECT oid FROM pg_database WHERE datname = current_database())": (
        "the ids of workers are unique over all databases"
    ),
    "postgres vanished.dead: job.state = 'running'": "only a running job has a worker: a CHECK says so",
    "postgres vanished: job.state = 'running'": "only a running job has a worker: a CHECK says so",
    "postgres retire.forgotten: allowed.yes": "who is long gone and holds nothing may be forgotten by anybody",
    "postgres retire.old: job.state = 'running'": "only a running job has a worker: a CHECK says so",
    "sqlite standing: name = 'identity'": "the rows are read in the order of their names, and this one is the first",
    "sqlite migrate_running: job.state = 'running'": "only a running job has a lease: a CHECK says so",
    "postgres migrate_running: job.state = 'running'": "only a running job has a lease: a CHECK says so",
    "sqlite rouse: state = 'waiting'": "only who waits has a wake_at: a CHECK says so",
    "sqlite rouse: wake_at IS NOT NULL": "it names the index; NULL is not before anything",
    "sqlite rouse_next: state = 'waiting'": "only who waits has a wake_at: a CHECK says so",
    "sqlite rouse_next: wake_at IS NOT NULL": "it names the index; the least of all is never NULL",
    "postgres rouse.due: job.state = 'waiting'": "only who waits has a wake_at: a CHECK says so",
    "postgres rouse.due: job.wake_at IS NOT NULL": "it names the index; NULL is not before anything",
    "postgres rouse: job.state = 'waiting'": "only who waits has a wake_at: a CHECK says so",
    "postgres rouse: job.wake_at IS NOT NULL": "it names the index; NULL comes last",
    "postgres locked.mine: id = ANY (%(ids)s::text[])": "it locks more than it must",
    "postgres settle: id NOT IN (SELECT id FROM applied)": "what was applied is not asked for",
    "postgres move_lock: id = ANY (ARRAY[%(id)s, (SELECT parent FROM {schema}.job WHERE id = %(id)s)])": (
        "it locks more than it must"
    ),
    "postgres signal.reached: NOT EXISTS (SELECT FROM known)": "the key of the table says the same, later",
    "postgres signal.told: state = 'ready'": "a hint too many: who is woken looks and sleeps again",
    "postgres signal_parents.told: state = 'ready'": "a hint too many: who is woken looks and sleeps again",
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """One file of the package, changed in one place."""

    name: str
    file: str
    text: str
    tests: tuple[str, ...]

    @property
    def on_postgres(self) -> bool:
        """Say whether only tests of PostgreSQL can notice it."""
        return "postgres" in self.file or all("postgres" in test for test in self.tests)


# ----------------------------------------------------------------------------------------------- SQL


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
        whole = (SRC / file).read_text()
        for guard in guards(store):
            start, end = span(whole, guard.query)
            verb = "acquire" if ".duty:" in guard.name or ".allowed:" in guard.name else guard.query.split("_")[0]
            verb = "fire" if guard.query in OF_SCHEDULES else verb
            nearest = f"{CONFORMANCE}/test_{verb}.py"
            near = [*(file for word, file in FURTHER.items() if guard.query.startswith(word)), nearest]
            tests = (*(test for test in near if (ROOT / test).exists()), *STORE)
            tests = (tests[0], "tests/stores/test_postgres_guards.py", *tests[1:]) if store == "postgres" else tests
            if "claim_try" in guard.name:
                tests = OUTAGES
            if "besides" in guard.name or "%(ids)s" in guard.name or "aside" in guard.name or "beside" in guard.name:
                tests = LOCKED_ROWS
            if guard.query == "locked":
                tests = LOCKS
            if "coalesce(value ->> 0, '')" in guard.name:
                tests = PLANS
            if guard.query == "transaction":
                tests = ("tests/worker/test_transaction.py", *tests)
            yield Mutant(guard.name, file, whole[:start] + guard.statement + whole[end:], tests)


def guards(store: str) -> Iterator[Guard]:
    """Return every guard of the statements in GUARDED."""
    whole = (SRC / queries_of(store)).read_text()
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
    return f"holdfast/stores/{store}/queries.sql"


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


# --------------------------------------------------------------------------------------------- judge


class _Change(ast.NodeTransformer):
    """Apply the nth possible change to a tree; remember what it was."""

    def __init__(self, nth: int) -> None:
        self._left = nth
        self.done: str | None = None

    def _is_it(self) -> bool:
        self._left -= 1
        return self._left == -1

    def _negate(self, test: ast.expr, where: str) -> ast.expr:
        if self._is_it():
            self.done = f"line {test.lineno}: {where} not ({ast.unparse(test)})"
            return ast.UnaryOp(ast.Not(), test)
        return test

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        node.test = self._negate(node.test, "if")
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        node.test = self._negate(node.test, "if")
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        self.generic_visit(node)
        if node.guard is not None:
            node.guard = self._negate(node.guard, "case if")
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        moved = {ast.GtE: ast.Gt, ast.Gt: ast.GtE, ast.LtE: ast.Lt, ast.Lt: ast.LtE}
        if type(node.ops[0]) in moved and self._is_it():
            self.done = f"line {node.lineno}: boundary of {ast.unparse(node)}"
            node.ops[0] = moved[type(node.ops[0])]()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        for value in list(node.values):
            if len(node.values) > 1 and self._is_it():
                self.done = f"line {node.lineno}: without ({ast.unparse(value)}) in ({ast.unparse(node)})"
                node.values = [other for other in node.values if other is not value]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) in (bool, int) and node.value in (0, 1) and self._is_it():
            self.done = f"line {node.lineno}: {node.value} flipped"
            return ast.copy_location(ast.Constant(type(node.value)(not node.value)), node)
        return node


def judge_mutants() -> Iterator[Mutant]:
    judges = {
        "verdict": ("verdict",),
        "acts": ("acts", "acts_of_workflows"),
        "lease": ("lease",),
        "continuity": ("continuity",),
    }
    for judge, nearest in judges.items():
        file = f"holdfast/core/{judge}.py"
        near = tuple(f"tests/core/test_{name}.py" for name in nearest)
        source = (SRC / file).read_text()
        nth = 0
        while True:
            tree, change = ast.parse(source), _Change(nth)
            functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
            for function in functions:
                for index, statement in enumerate(function.body):
                    function.body[index] = change.visit(statement)
            if change.done is None:
                break
            ast.fix_missing_locations(tree)
            yield Mutant(f"judge {Path(file).name} {change.done}", file, ast.unparse(tree), (*near, *CORE, *STORE[:1]))
            nth += 1
    table = (SRC / "holdfast/core/machine.py").read_text()
    for match in re.finditer(r"^ +Move\.(\w+): State\.(\w+),\n|\{(Move\.\w+: State\.\w+)\}", table, re.MULTILINE):
        cut = table[: match.start()] + ("{}" if match[3] else "") + table[match.end() :]
        yield Mutant(f"judge machine.py without {match[0].strip()}", "holdfast/core/machine.py", cut, CORE)


# ---------------------------------------------------------------------------------------------- hand

WORKER = ("tests/worker",)
SQLITE = ("tests/test_sqlite_store.py", "tests/worker")
CRASH = ("tests/crash",)
PROTECTED = ("tests/stores/test_protected.py",)
LIVENESS = ("tests/worker/test_liveness.py",)
LAUNCH = ("tests/crash/test_launch.py",)
WAL = ("tests/stores/test_wal.py",)
OWN_LOCK = ("tests/crash/test_own_lock.py",)
BACKUP = ("tests/cli/test_backup.py",)
# Where a broken line of this file is most likely to be noticed: these run first.
NEAREST = {
    "shield.py": ("tests/worker/test_interrupts.py",),
    "stores/sqlite/writers.py": ("tests/worker/test_interrupts.py",),
    "stores/sqlite/transaction.py": ("tests/worker/test_transaction.py", "tests/worker/test_interrupts.py"),
    "worker/context.py": ("tests/worker/test_interrupts.py",),
    "worker/executors.py": (
        "tests/worker/test_interrupts.py",
        "tests/worker/test_stopping.py",
        "tests/worker/test_runner.py",
    ),
    "worker/keeper.py": ("tests/worker/test_keeper.py", "tests/worker/test_outage.py", "tests/crash/test_zombies.py"),
    "worker/watch.py": ("tests/worker/test_time_limits.py", "tests/worker/test_outage.py"),
    "worker/settler.py": ("tests/worker/test_settler.py", "tests/worker/test_cancel.py", "tests/worker/test_outage.py"),
    "worker/runner.py": (
        "tests/worker/test_outage.py",
        "tests/worker/test_claiming.py",
        "tests/crash/test_recovery.py",
    ),
    "worker/supervisor.py": ("tests/worker/test_supervisor.py", "tests/crash/test_recovery.py"),
    "worker/pool.py": ("tests/worker/test_isolation_parts.py", "tests/worker/test_isolation.py"),
    "cli/child.py": ("tests/crash/test_signals.py",),
}
REAPER = ("tests/worker/test_reaper.py", "tests/test_daemon.py")

POSTGRES = (CONFORMANCE, "tests/stores/test_postgres_guards.py")
SETTINGS = ("tests/stores/test_postgres_settings.py",)
TRANSACTIONS = ("tests/stores/test_postgres_transaction.py", "tests/worker/test_transaction.py")
CONFLICTS = ("tests/stores/test_postgres_conflicts.py",)
OUTAGES = ("tests/stores/test_postgres_outages.py",)
PLANS = ("tests/stores/test_postgres_plans.py",)
ISOLATION = tuple(f"tests/worker/test_isolation{part}.py" for part in ("_pool", "_parts", "", "_endings"))
CELLS = ("tests/crash/test_isolation.py",)
FORKS = ("tests/worker/test_forks.py",)
BROKEN = ("tests/worker/test_broken.py",)
MODULES = ("tests/crash/test_modules.py",)
ENTRANCE = ("tests/worker/test_entrance.py",)
PRUNER = ("tests/test_pruner.py",)
RETENTION = ("tests/core/test_retention.py",)
PRUNING = ("tests/crash/test_pruning.py",)
LINES = ("tests/worker/test_lines.py",)
KEEPER = ("tests/worker/test_keeper.py",)
TICK = ("tests/worker/test_tick.py",)
SUPERVISOR = ("tests/worker/test_supervisor.py",)
HEALTH = ("tests/insight/test_health.py",)
DEATHS = ("tests/insight/test_deaths.py",)
DOCTOR = ("tests/cli/test_doctor.py",)
LOADING = ("tests/cli/test_loading.py",)
PROCESS = ("tests/cli/test_process.py",)
VIEWS = ("tests/cli/test_views.py",)
SCHEDULE = ("tests/core/test_schedule.py",)
STORMS = ("tests/cli/test_zombies.py",)
MISBEHAVING = ("tests/crash/test_misbehaving.py",)
FIRE = ("tests/conformance/test_fire.py",)
SCHEDULER = ("tests/test_scheduler.py",)
ALERTS_RULES = ("tests/alerts/test_rules.py",)
ALERTS_TELLER = ("tests/alerts/test_teller.py",)
ALERTS_WEBHOOK = ("tests/alerts/test_webhook.py",)
ALERTS_COMMAND = ("tests/alerts/test_command.py",)
WORKFLOW = tuple(f"tests/workflow/test_{part}.py" for part in ("steps", "undo", "waiting"))
ANSWERS = ("tests/workflow/test_answers.py",)
UNDO_ARGUMENTS = ("tests/workflow/test_undo_arguments.py",)
PARKING = ("tests/workflow/test_parking.py",)
WAITING = ("tests/workflow/test_waiting.py",)
RACES = ("tests/workflow/test_races.py",)
OWN_TASKS = ("tests/workflow/test_own_tasks.py",)
GATHER = ("tests/workflow/test_gather.py",)
RAISED = ("tests/workflow/test_raised.py",)
MISUSE = ("tests/workflow/test_misuse.py",)
OPEN_STEPS = ("tests/workflow/test_open_steps.py",)
RETRIES = ("tests/workflow/test_retries.py",)

LOCKS = ("tests/stores/test_postgres_locks.py",)
LOCKED_ROWS = ("tests/worker/test_locked_rows.py", "tests/stores/test_postgres_locked_rows.py")
LOCKED_BY_OTHERS = LOCKED_ROWS[1:]  # only a server can lock a row
WORKFLOWS_CLI = ("tests/cli/test_workflows.py",)

HAND: list[tuple[str, str, str, str, tuple[str, ...]]] = [
    # name, file, what stands there, what stands there instead, tests that should notice
    ("an interrupt hits inside the store", "shield.py", "        if state.depth:\n", "        if False:\n", WORKER),
    (
        "every job asks the interpreter to forget interrupts",
        "shield.py",
        "        if not state.was_raised:\n",
        "        if False:\n",
        WORKER,
    ),
    ("an interrupt that was taken back hits later", "shield.py", "            state.was_raised = True\n", "", WORKER),
    (
        "anybody may give a writer's place back",
        "stores/sqlite/writers.py",
        "self._holder is not None and self._holder == token",
        "True",
        WORKER,
    ),
    (
        "a finished job that cannot be stored is run again",
        "worker/executors.py",
        'could not be stored: {error}", finished=True)',
        'could not be stored: {error}")',
        WORKER,
    ),
    (
        "SQLite's own rollback goes unnoticed",
        "stores/sqlite/transaction.py",
        "if self._lent and not self.in_transaction:",
        "if False:",
        WORKER,
    ),
    ("a wrong progress reaches the beat", "worker/context.py", "_checked_fraction(fraction)", "fraction", WORKER),
    (
        "memory: any lease owns the job",
        "stores/memory/store.py",
        "not rows.owns(job, settlement.lease)",
        "False",
        STORE,
    ),
    ("memory: any beat owns the job", "stores/memory/store.py", "not rows.owns(job, pulse.lease)", "False", STORE),
    (
        "memory: a settled job is settled again",
        "stores/memory/store.py",
        "if job.state is not State.RUNNING:\n            return Answer.ALREADY",
        "if False:\n            return Answer.ALREADY",
        STORE,
    ),
    (
        "memory: a renewed lease is reaped",
        "stores/memory/store.py",
        "seen is not None and job.lease_until != seen",
        "False",
        STORE,
    ),
    (
        "memory: a cancel is overlooked",
        "core/settlement.py",
        "each.seen_cancel != bool(cancel_requested)",
        "False",
        STORE,
    ),
    (
        "memory: a step that was begun meanwhile is overlooked",
        "core/settlement.py",
        'each.seen_open_step != (open_step or "")',
        "False",
        STORE,
    ),
    (
        "memory: what is to be undone by now is overlooked",
        "core/settlement.py",
        "each.seen_undoable == bool(undoable)",
        "True",
        STORE,
    ),
    (
        "a settlement does not say which step its judge saw open",
        "core/settlement.py",
        'seen_open_step=(job.open_step or "") if looked else None',
        "seen_open_step=None",
        STORE,
    ),
    (
        "a settlement does not say whether its judge saw something to undo",
        "core/settlement.py",
        "seen_undoable=job.undoable if looked else None",
        "seen_undoable=None",
        STORE,
    ),
    (
        "a job of a dead worker that has changed meanwhile is left to others",
        "reaper.py",
        "frozenset({Answer.ACCEPTED, Answer.AGAIN})",
        "frozenset({Answer.ACCEPTED})",
        ("tests/worker/test_reaper.py",),
    ),
    (
        "a worker does not learn what was begun behind its back",
        "worker/settler.py",
        'attempt.learn(open_step=row.open_step or "", undoable=row.undoable)',
        "pass",
        ("tests/workflow/test_undo.py",),
    ),
    (
        "a success waits for what is recorded beside it",
        "core/settlement.py",
        "job.workflow and verdict.state is not State.DONE",
        "job.workflow",
        STORE,
    ),
    (
        "a success that names what was seen is not compared",
        "stores/codec.py",
        "is_done and looked == (None, None, None)",
        "is_done and settlement.seen_lease_until is None",
        STORE,
    ),
    (
        "rows: the fence is not compared",
        "core/rows.py",
        "job.fence == lease.fence and job.claim_id == lease.claim_id",
        "job.claim_id == lease.claim_id",
        STORE,
    ),
    (
        "rows: the claim_id is not compared",
        "core/rows.py",
        "job.fence == lease.fence and job.claim_id == lease.claim_id",
        "job.fence == lease.fence",
        STORE,
    ),
    (
        "rows: a claim does not raise the fence",
        "core/rows.py",
        "fence=job.fence + 1, attempt=job.attempt + 1",
        "fence=max(job.fence, 1), attempt=job.attempt + 1",
        STORE,
    ),
    (
        "rows: a lease may get shorter",
        "core/rows.py",
        "max(lease_end(job), now.lease + job.lease_s)",
        "now.lease + job.lease_s",
        STORE,
    ),
    (
        "rows: a reaper does not raise the fence",
        "core/rows.py",
        "fence=job.fence + verdict.raises_fence",
        "fence=job.fence",
        STORE,
    ),
    (
        "claim does not raise the fence",
        "stores/sqlite/queries.sql",
        "    fence = fence + 1,\n",
        "    fence = max(fence, attempt + 1),\n",
        STORE,
    ),
    ("claim does not count the attempt", "stores/sqlite/queries.sql", "    attempt = attempt + 1,\n", "", STORE),
    (
        "a beat may shorten a lease",
        "stores/sqlite/queries.sql",
        "max(job.lease_until, :lease + job.lease_s)",
        ":lease + job.lease_s",
        STORE,
    ),
    (
        "a reaper does not raise the fence",
        "stores/sqlite/queries.sql",
        "fence = job.fence + ending.raises_fence",
        "fence = job.fence",
        STORE,
    ),
    ("an act does not raise the fence", "stores/sqlite/queries.sql", "    fence = fence + :raises_fence,\n", "", STORE),
    (
        "postgres: claim does not raise the fence",
        "stores/postgres/queries.sql",
        "        fence = job.fence + 1,\n",
        "        fence = greatest(job.fence, job.attempt + 1),\n",
        POSTGRES,
    ),
    (
        "postgres: claim does not count the attempt",
        "stores/postgres/queries.sql",
        "        attempt = job.attempt + 1,\n",
        "",
        POSTGRES,
    ),
    (
        "postgres: a beat may shorten a lease",
        "stores/postgres/queries.sql",
        "greatest(job.lease_until, clock.lease + job.lease_s)",
        "clock.lease + job.lease_s",
        POSTGRES,
    ),
    (
        "postgres: a reaper does not raise the fence",
        "stores/postgres/queries.sql",
        "fence = job.fence + ending.raises_fence::integer",
        "fence = job.fence",
        POSTGRES,
    ),
    (
        "postgres: an act does not raise the fence",
        "stores/postgres/queries.sql",
        "        fence = job.fence + %(raises_fence)s::boolean::integer,\n",
        "",
        POSTGRES,
    ),
    (
        "postgres: any fence is the attempt's own",
        "stores/postgres/queries.sql",
        "    job.fence = token.fence AND job.claim_id",
        "    job.claim_id",
        POSTGRES,
    ),
    (
        "postgres: the isolation is not pinned",
        "stores/postgres/queries.sql",
        "    ('default_transaction_isolation', 'read committed'),\n",
        "",
        SETTINGS,
    ),
    (
        "postgres: the digits of floats are not pinned",
        "stores/postgres/queries.sql",
        "    ('extra_float_digits', '1'),\n",
        "",
        SETTINGS,
    ),
    (
        "postgres: idle sessions may be ended",
        "stores/postgres/queries.sql",
        "    ('idle_session_timeout', '0'),\n",
        "",
        SETTINGS,
    ),
    (
        "postgres: the search path is not pinned",
        "stores/postgres/queries.sql",
        "    ('search_path', 'pg_catalog, pg_temp'),\n",
        "",
        SETTINGS,
    ),
    (
        "postgres: behind a pooler the encoding is not carried",
        "stores/postgres/queries.sql",
        "SET LOCAL client_encoding = 'UTF8';\n",
        "",
        SETTINGS,
    ),
    (
        "postgres: behind a pooler the digits of floats are not carried",
        "stores/postgres/queries.sql",
        "SET LOCAL extra_float_digits = 1;\n",
        "",
        SETTINGS,
    ),
    (
        "postgres: behind a pooler the search path is not carried",
        "stores/postgres/queries.sql",
        "SET LOCAL search_path = pg_catalog, pg_temp;\n",
        "",
        SETTINGS,
    ),
    (
        "postgres: a pooler's session keeps what was pinned",
        "stores/postgres/queries.sql",
        "pinned.value, pg_backend_pid() <> %(told)s)",
        "pinned.value, false)",
        SETTINGS,
    ),
    (
        "postgres: the end of an overdue lease is rounded",
        "stores/postgres/store.py",
        "lease_until=ends[job.id]",
        "lease_until=job.lease_until",
        SETTINGS,
    ),
    (
        "postgres: any encoding of the database will do",
        "stores/postgres/connection.py",
        'if encoding != "UTF8":',
        "if False:",
        SETTINGS,
    ),
    (
        "postgres: any search path of a caller will do",
        "stores/postgres/batch.py",
        "if not leads_to_ours:",
        "if False:",
        SETTINGS,
    ),
    (
        "postgres: keys are taken in the order of the call",
        "stores/postgres/queries.sql",
        """    ORDER BY (value ->> 4) COLLATE "C", place\n""",
        "    ORDER BY place\n",
        CONFLICTS,
    ),
    (
        "postgres: keys are streamed in the order of the call",
        "stores/postgres/batch.py",
        'key=lambda each: (each[1].key or "", each[0])',
        "key=lambda each: each[0]",
        CONFLICTS,
    ),
    (
        "postgres: jobs are numbered by their keys",
        "stores/postgres/batch.py",
        "if sum(job.key is not None for job in jobs) > 1:",
        "jobs = sorted(jobs, key=lambda job: job.key or str())\n            if False:",
        CONFLICTS,
    ),
    (
        "postgres: a deadlock is not tried again",
        "stores/postgres/connection.py",
        "                    except _CONFLICTS:\n                        pause(pause_s)\n",
        "                    except _CONFLICTS:\n                        raise\n",
        CONFLICTS,
    ),
    (
        "an outage inside ctx.transaction() costs budget",
        "worker/executors.py",
        "    if attempt.outage is not None and any(",
        "    if False and any(",
        TRANSACTIONS,
    ),
    (
        "an outage at the commit of ctx.transaction() costs budget",
        "worker/settler.py",
        "if transaction.outage is not None or (isinstance(error, StoreUnavailable) and is_outage(error)):",
        "if False:",
        TRANSACTIONS,
    ),
    (
        "an outage at the start of ctx.transaction() costs budget",
        "worker/context.py",
        "self._attempt.outage = error if is_outage(error) else None",
        "pass",
        TRANSACTIONS,
    ),
    (
        "an outage in flow.transaction() is recorded as a failed step",
        "workflow/run.py",
        "if open_one.outage is not None:",
        "if False:",
        TRANSACTIONS,
    ),
    (
        "postgres: a success is reported without the writes of its transaction",
        "stores/postgres/queries.sql",
        "    ORDER BY job.id\n    FOR NO KEY UPDATE OF job\n)\nSELECT current_setting",
        "    ORDER BY job.id\n)\nSELECT current_setting",
        TRANSACTIONS,
    ),
    (
        "postgres: a transaction commits without waiting for the row of its job's parent",
        "stores/postgres/queries.sql",
        "WHERE job.id = ANY (ARRAY[%(id)s, (SELECT parent FROM {schema}.job WHERE id = %(id)s)])",
        "WHERE job.id = ANY (ARRAY[%(id)s])",
        TRANSACTIONS,
    ),
    (
        "postgres: every error in ctx.transaction() is an outage",
        "stores/postgres/connection.py",
        "return no_room or isinstance(error,",
        "return True or isinstance(error,",
        TRANSACTIONS,
    ),
    (
        "a folder of locks that others may write is used",
        "stores/sqlite/liveness.py",
        "if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):",
        "if False:",
        SQLITE,
    ),
    (
        "an async handler that raises GeneratorExit never ends",
        "worker/executors.py",
        "return self._is_dead and isinstance(error, GeneratorExit)",
        "return isinstance(error, GeneratorExit)",
        ("tests/worker/test_runner.py",),
    ),
    (
        "a worker waits for ever for a store that no worker can use",
        "worker/runner.py",
        "                self._unusable = error\n                self.stop()\n",
        "                self._clock.wait(self._stopping, self._trouble.met(error))\n",
        ("tests/crash/test_upgrade.py", "tests/worker/test_tick.py"),
    ),
    (
        "a worker starts its process again and again on a store that no worker can use",
        "worker/supervisor.py",
        "if code == EXIT_UNSUPPORTED and not enrolled:",
        "if False:",
        ("tests/crash/test_upgrade.py",),
    ),
    (
        "a password on the command line stays in ps",
        "cli/base.py",
        "        overwrite(value, masked_url(value))\n",
        "",
        ("tests/cli/test_process.py",),
    ),
    (
        "a password on the command line is not warned of",
        "cli/base.py",
        "if given is not None and given != masked_url(given):",
        "if False:",
        ("tests/cli/test_process.py",),
    ),
    (
        "an export follows a link that somebody prepared",
        "cli/export.py",
        'descriptor, name = tempfile.mkstemp(prefix=f"{output.name}.", suffix=".part", dir=output.parent)',
        'name = f"{output}.part"; descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)',
        ("tests/cli/test_export.py",),
    ),
    (
        "postgres: two live jobs may share a key",
        "stores/postgres/migrations/0001_engine.sql",
        "CREATE UNIQUE INDEX job_key",
        "CREATE INDEX job_key",
        POSTGRES,
    ),
    (
        "postgres: a stale report is written every time",
        "stores/postgres/migrations/0001_engine.sql",
        "CREATE UNIQUE INDEX journal_stale",
        "CREATE INDEX journal_stale",
        POSTGRES,
    ),
    (
        "postgres: a refused settlement commits the task's writes",
        "stores/postgres/transaction.py",
        "if answer is Answer.ACCEPTED:",
        "if True:",
        POSTGRES,
    ),
    (
        "two live jobs may share a key",
        "stores/sqlite/migrations/0001_foundation.sql",
        "CREATE UNIQUE INDEX holdfast_job_key",
        "CREATE INDEX holdfast_job_key",
        STORE,
    ),
    (
        "a stale report is written every time",
        "stores/sqlite/migrations/0001_foundation.sql",
        "CREATE UNIQUE INDEX holdfast_journal_stale",
        "CREATE INDEX holdfast_journal_stale",
        STORE,
    ),
    (
        "a plain success ignores what a reaper saw",
        "stores/codec.py",
        "    return is_done and looked == (None, None, None)",
        "    return is_done and looked[1:] == (None, None)",
        STORE,
    ),
    (
        "an old term may settle",
        "stores/sqlite/batch.py",
        "if duty is not None and db.execute",
        "if False and db.execute",
        STORE,
    ),
    (
        "an old term may prune",
        "stores/sqlite/store.py",
        "            batch.check_duty(db, under)\n            deleted = 0",
        "            deleted = 0",
        STORE,
    ),
    ("a purge of two states may delete twice as many", "stores/sqlite/store.py", "limit - deleted", "limit", STORE),
    (
        "an old term may prune in memory",
        "stores/memory/store.py",
        "            self._check_duty(under)\n            old: ",
        "            old: ",
        STORE,
    ),
    (
        "an old term may prune on postgres and is told nothing",
        "stores/postgres/store.py",
        "        if not allowed:\n            raise duty_lost(under)\n        return deleted",
        "        return deleted",
        POSTGRES,
    ),
    (
        "a refused settlement commits the task's writes",
        "stores/sqlite/transaction.py",
        "if answer is Answer.ACCEPTED:",
        "if True:",
        (*STORE, *WORKER),
    ),
    (
        "a task may close the connection of its transaction",
        "stores/sqlite/transaction.py",
        '        raise sqlite3.ProgrammingError("ctx.transaction() closes its connection itself; do not close it by hand")',
        "        super().close()",
        WORKER,
    ),
    (
        "a connection closed behind our back breaks its cleanup",
        "stores/sqlite/transaction.py",
        "                if not force:\n",
        "                if True:\n",
        WORKER,
    ),
    (
        "a cleanup that fails keeps the turn to write",
        "stores/sqlite/transaction.py",
        "finally:  # whatever",
        "except ZeroDivisionError:  # whatever",
        WORKER,
    ),
    (
        "a transaction has no end",
        "stores/sqlite/transaction.py",
        "        self._timer.start()\n",
        "",
        (*STORE, *WORKER),
    ),
    (
        "the task may commit by hand",
        "stores/sqlite/transaction.py",
        "return sqlite3.SQLITE_DENY if",
        "return sqlite3.SQLITE_OK if",
        STORE,
    ),
    (
        "a deleted file is not noticed",
        "stores/sqlite/connection.py",
        "        try:\n            found = os.stat(self.options.path)\n",
        "        return\n        try:\n            found = os.stat(self.options.path)\n",
        SQLITE,
    ),
    (
        "a schema that is too new is used",
        "stores/sqlite/store.py",
        "if found.is_too_new:",
        "if False:",
        (*STORE, *SQLITE),
    ),
    (
        "a program that is too old may start a worker",
        "stores/sqlite/store.py",
        "if (schema := self._schema(db)).is_too_new:",
        "if (schema := self._schema(db)).is_stale:",
        ("tests/stores/test_migrations.py",),
    ),
    (
        "a migration does not wait for what runs under older workers",
        "stores/sql.py",
        "raise still_running(migration, running)",
        "pass",
        ("tests/stores/test_migrations.py",),
    ),
    (
        "older workers claim while a migration waits for them",
        "stores/sql.py",
        'editor.ask("migrate_shut")',
        "pass",
        ("tests/stores/test_migrations.py",),
    ),
    (
        "a beat that the store has lost is not missed",
        "core/continuity.py",
        "now.beats < beats",
        "False",
        ("tests/core/test_continuity.py",),
    ),
    (
        "another store of a higher incarnation is taken for an accepted one",
        "core/continuity.py",
        "same = now.identity == seen.identity",
        "same = True",
        ("tests/core/test_continuity.py",),
    ),
    (
        "a doubt that a person has answered is written down again",
        "stores/memory/store.py",
        "if seen == self._incarnation:\n                self._doubts.setdefault",
        "if True:\n                self._doubts.setdefault",
        ("tests/conformance/test_standing.py",),
    ),
    (
        "a job that was claimed while the store came into doubt is started",
        "worker/runner.py",
        " and not self._continuity.in_doubt:\n                attempt",
        ":\n                attempt",
        ("tests/worker/test_continuity.py",),
    ),
    (
        "a worker in doubt keeps the jobs that it has claimed ahead",
        "worker/runner.py",
        '                    self._give_back_buffer(0.0, "the store may not be what it was")\n',
        "",
        ("tests/worker/test_continuity.py",),
    ),
    (
        "a migration by pages ends after the first page",
        "stores/sql.py",
        "Progress(self.pieces, upto) if is_full else",
        "Progress(self.pieces, upto) if False else",
        ("tests/stores/test_migrations.py",),
    ),
    (
        "a producer asks for the last job that it has stored",
        "continuity.py",
        "            self._added.append(job_id)\n",
        "            self._added.append(job_id)\n        else:\n            self._added = [*self._added[1:], job_id]\n",
        ("tests/test_continuity.py",),
    ),
    (
        "a producer asks with every job",
        "continuity.py",
        "if is_due and self.try_to_look():",
        "if self.try_to_look():",
        ("tests/test_continuity.py",),
    ),
    (
        "a job that a producer has stored is forgotten when the store does not answer",
        "continuity.py",
        "            self._added = added or self._added\n",
        "",
        ("tests/test_continuity.py",),
    ),
    (
        "one job that a person has deleted stops every worker",
        "core/continuity.py",
        "if len(now.missing) > 1 or",
        "if now.missing or",
        ("tests/core/test_continuity.py",),
    ),
    (
        "a store without any job is what it was",
        "core/continuity.py",
        " or (now.missing and not now.newest):",
        ":",
        ("tests/core/test_continuity.py",),
    ),
    (
        "beats of other workers that the store has lost are not missed",
        "core/continuity.py",
        "if now.beats_of_all < before.beats_of_all:",
        "if False:",
        ("tests/core/test_continuity.py",),
    ),
    (
        "an app that ticks does not look whether the store was rewound",
        "app.py",
        "        self._watched()\n        report = tick",
        "        report = tick",
        ("tests/test_continuity.py",),
    ),
    (
        "an app that ticks does not notice that its last tick is gone",
        "app.py",
        "        self._watched()  # the store",
        "        # the store",
        ("tests/test_continuity.py",),
    ),
    (
        "a supervisor does not look whether the store was rewound",
        "cli/worker.py",
        "        stack.enter_context(Watcher(found.store, found.clock, name or socket.gethostname(), SUPERVISOR))\n",
        "",
        ("tests/crash/test_continuity.py",),
    ),
    (
        "a reaper does not look whether the store was rewound",
        "cli/reaper.py",
        "Watcher(store, clock, who, REAPER), ",
        "",
        ("tests/cli/test_reaper.py",),
    ),
    (
        "an older copy of a higher incarnation is taken for an accepted store",
        "core/continuity.py",
        " and now.accepted_at >= seen.at",
        "",
        ("tests/core/test_continuity.py",),
    ),
    (
        "a restored store of an earlier incarnation stays in doubt when it was accepted",
        "continuity.py",
        "self._last is not None and is_accepted(self._last, now)",
        "self._before is not None and is_accepted(self._before, now)",
        ("tests/worker/test_continuity.py",),
    ),
    (
        "jobs that a worker of an older version has removed are missed",
        "core/continuity.py",
        "if before.uncounted or now.uncounted:",
        "if False:",
        ("tests/core/test_continuity.py",),
    ),
    (
        "a worker claims from a store that is in doubt",
        "worker/runner.py",
        "if self._continuity.in_doubt:\n                    if asked_at",
        "if False:\n                    if asked_at",
        ("tests/worker/test_continuity.py",),
    ),
    (
        "a silent worker whose row is locked keeps the others from being marked gone",
        "reaper.py",
        'except StoreLocked as error:\n                    log.warning("worker %s, silent',
        'except ZeroDivisionError as error:\n                    log.warning("worker %s, silent',
        REAPER,
    ),
    (
        "a silent worker that cannot be marked gone hides what was recovered",
        "reaper.py",
        "except StoreError as error:  # what was recovered",
        "except ZeroDivisionError as error:  # what was recovered",
        REAPER,
    ),
    (
        "a child whose row is locked delays the next one",
        "worker/supervisor.py",
        "if only is None and not self._stopping.is_set():",
        "if False:",
        ("tests/worker/test_supervisor.py",),
    ),
    (
        "a worker that is silent for a day and holds jobs is marked gone",
        "reaper.py",
        "wall - worker.beat_at > SILENT_MAX_S and not worker.running",
        "wall - worker.beat_at > SILENT_MAX_S",
        ("tests/worker/test_reaper.py",),
    ),
    (
        "a worker that starts while its store is away gives up",
        "cli/worker.py",
        "if is_final(error):",
        "if True:",
        ("tests/crash/test_upgrade.py",),
    ),
    (
        "wal: files that were removed are used on",
        "stores/sqlite/connection.py",
        "if self._beside is not None and wal.beside(self._name) != self._beside:",
        "if False:",
        WAL,
    ),
    (
        "wal: the -shm file does not matter",
        "stores/sqlite/wal.py",
        """return Files(_file(f"{database}-wal"), _file(f"{database}-shm"))""",
        """return Files(_file(f"{database}-wal"), (0, 0))""",
        WAL,
    ),
    (
        "wal: another app of the process uses them on",
        "stores/sqlite/connection.py",
        "if self._identity in _lost:",
        "if False:",
        WAL,
    ),
    (
        "wal: the last connection deletes the files of others",
        "stores/sqlite/connection.py",
        "                wal.keep_open(self.options.path, self._identity)\n",
        "",
        WAL,
    ),
    (
        "wal: nobody looks before a store is closed",
        "stores/sqlite/connection.py",
        "        self.look_before_closing()\n",
        "",
        WAL,
    ),
    (
        "wal: nobody looks before a program ends",
        "stores/sqlite/connection.py",
        "atexit.register(_look_before_exit)\n",
        "",
        WAL,
    ),
    (
        "wal: older files of the caller's connection are not seen",
        "stores/sqlite/connection.py",
        "elif wal.deleted_ones(self._name):",
        "elif False:",
        WAL,
    ),
    (
        "wal: a loss is not noted",
        "stores/sqlite/connection.py",
        """                self._note(Doubt("rewound", evidence, "in use", "deleted"))\n""",
        "",
        WAL,
    ),
    (
        "wal: a store that was accepted since is doubted again",
        "stores/sqlite/queries.sql",
        "AND (number = 1 OR at <= :at)",
        "AND (number = 1 OR at <= :at OR true)",
        WAL,
    ),
    (
        "wal: a supervisor waits for files that never come back",
        "worker/supervisor.py",
        "            self._leave(EXIT_REPLACED)\n",
        "            pass\n",
        WAL,
    ),
    (
        "wal: a worker ends and does not start again",
        "cli/worker.py",
        "        launch.start_again()\n",
        "        pass\n",
        WAL,
    ),
    (
        "what is in a deleted WAL is not saved",
        "stores/sqlite/connection.py",
        'return bool(self._anchor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0)',
        "return True",
        WAL,
    ),
    (
        "a page of a migration is done twice",
        "stores/sql.py",
        "upto, after = progress.page(last, rows == pages.size)",
        "upto, after = progress.page(last, rows == pages.size); after = Progress(after.pieces)",
        ("tests/stores/test_migrations.py",),
    ),
    (
        "a page of a migration that takes too long ends it",
        "stores/sql.py",
        "helps = self.tried and self.size > 1",
        "helps = False",
        ("tests/stores/test_migrations.py",),
    ),
    (
        "a piece of a migration that takes too long is tried for ever",
        "stores/sql.py",
        "helps = self.tried and self.size > 1",
        "helps = self.size > 1",
        ("tests/stores/test_migrations.py",),
    ),
    (
        "a silent worker of another boot is dead at once",
        "stores/sqlite/store.py",
        "return now - since >= worker.beat_s or",
        "return True or",
        SQLITE,
    ),
    (
        "two hosts on one file are not noticed",
        "stores/sqlite/store.py",
        "if worker.beats != beats:",
        "if False:",
        SQLITE,
    ),
    (
        "a process asks about its own lock",
        "stores/sqlite/liveness.py",
        "    if path in _mine:\n        return Life.ALIVE\n",
        "",
        (*STORE, *SQLITE),
    ),
    (
        "protected: the database may be opened inside a worker",
        "stores/sqlite/protected.py",
        "        raise ProtectedFile(",
        "        ProtectedFile(",
        PROTECTED,
    ),
    (
        "protected: a link leads past the protection",
        "stores/sqlite/protected.py",
        "name not in _names and found not in _identities",
        "name not in _names",
        PROTECTED,
    ),
    (
        "protected: every open of a file costs a look at it",
        "stores/sqlite/protected.py",
        "        harmless.add(path)\n",
        "",
        PROTECTED,
    ),
    (
        "protected: a path is harmless for ever",
        "stores/sqlite/protected.py",
        "    if _now() >= _forget_at:\n        _forget()\n",
        "",
        PROTECTED,
    ),
    (
        "protected: a path may become a link to the store",
        "stores/sqlite/protected.py",
        "            _forget()\n        return\n",
        "            pass\n        return\n",
        PROTECTED,
    ),
    (
        "protected: a new -wal file is not noticed",
        "stores/sqlite/connection.py",
        "        protected.refresh()  # the first connection makes a new `-wal` file\n",
        "",
        PROTECTED,
    ),
    (
        "protected: a name alone is refused",
        "stores/sqlite/protected.py",
        "if any(_identity(own) == found for own in list(_paths)):",
        "if True:",
        PROTECTED,
    ),
    (
        "protected: a worker's processes are not",
        "cli/child.py",
        "    protected.install()\n",
        "",
        PROTECTED,
    ),
    (
        "protected: a cell is not",
        "cli/cell.py",
        "    protected.install()\n",
        "",
        PROTECTED,
    ),
    (
        "a lost liveness lock stays lost",
        "stores/sqlite/liveness.py",
        "        fcntl.lockf(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n    return was_held",
        "    return was_held",
        LIVENESS,
    ),
    (
        "a liveness lock whose descriptor means another file is trusted",
        "stores/sqlite/liveness.py",
        "if _file(lock.descriptor) != lock.file:",
        "if False:",
        LIVENESS,
    ),
    (
        "a backup overwrites a file",
        "stores/sqlite/backup.py",
        "if os.path.lexists(target):",
        "if False:",
        BACKUP,
    ),
    (
        "launch: cells inherit the folder that a handler went to",
        "worker/cell.py",
        "                cwd=launch.folder,\n",
        "",
        LAUNCH,
    ),
    (
        "launch: cells inherit the environment that a handler changed",
        "worker/cell.py",
        "                env=launch.environment,\n",
        "",
        LAUNCH,
    ),
    (
        "launch: an address is resolved when the store is opened",
        "app.py",
        "        wanted = absolute_url(url)\n",
        "        wanted = url\n",
        ("tests/api/test_app.py",),
    ),
    (
        "own lock: a worker that locks itself out lives on",
        "worker/runner.py",
        "if error.holder == os.getpid() and self._may_exit:",
        "if False:",
        OWN_LOCK,
    ),
    (
        "own lock: a cell that locks everybody out lives on",
        "worker/pool.py",
        "            if cell.pid == pid:\n",
        "            if False:\n",
        OWN_LOCK,
    ),
    (
        "own lock: a short transaction of the user's own costs the process",
        "worker/keeper.py",
        "isinstance(error, FileLocked) and silent_s >= self._beat_s * LOCKED_BEATS",
        "isinstance(error, FileLocked)",
        OWN_LOCK,
    ),
    (
        "own lock: a beat waits for longer than a lease",
        "stores/sqlite/store.py",
        "min(self._beat_wait_s, worker.beat_s)",
        "self._beat_wait_s",
        OWN_LOCK,
    ),
    (
        "own lock: the only thread waits for itself",
        "stores/sqlite/connection.py",
        "if threading.active_count() == 1 and locks",
        "if False and locks",
        OWN_LOCK,
    ),
    (
        "own lock: any lock of the list is the writer's",
        "stores/sqlite/locks.py",
        "if lock.is_exclusive and lock.first <= _WRITER",
        "if lock.first <= _WRITER + 8",
        OWN_LOCK,
    ),
    (
        "a lock on another device is taken for one on this file",
        "stores/sqlite/locks.py",
        "file = os.makedev(int(major, 16), int(minor, 16)), int(inode)",
        "file = os.stat('.').st_dev, int(inode)",
        ("tests/worker/test_liveness.py",),
    ),
    (
        "a message of the right shape may have anything in it",
        "stores/postgres/frontier.py",
        "in _places.decode(places):",
        "in codec.rows_from(places):",
        ("tests/stores/test_postgres_guards.py",),
    ),
    (
        "a record of an odd name stops what its cell says",
        "worker/lines.py",
        "except Exception as error:  # code of the user's",
        "except ZeroDivisionError as error:  # code of the user's",
        LINES,
    ),
    (
        "the journal mode is whatever another program made it",
        "stores/sqlite/store.py",
        'if found.found and mode != "wal":',
        "if False:",
        ("tests/test_sqlite_store.py",),
    ),
    (
        "the journal mode of a stranger's file is changed",
        "stores/sqlite/store.py",
        'if found.found and mode != "wal":',
        'if mode != "wal":',
        ("tests/test_sqlite_store.py",),
    ),
    (
        "boot: a time namespace is taken for the host's clock",
        "clock.py",
        ".strip() + _clock_offset()",
        ".strip()",
        ("tests/core/test_boot_identity.py",),
    ),
    (
        "boot: the identity of an ordinary host changes",
        "clock.py",
        "(int(seconds), int(nanoseconds)) != (0, 0)",
        "True",
        ("tests/core/test_boot_identity.py",),
    ),
    (
        "another inode is taken for the lock",
        "stores/sqlite/liveness.py",
        "if os.fstat(descriptor).st_ino != inode:",
        "if False:",
        SQLITE,
    ),
    (
        "a free lock is believed at the first look",
        "reaper.py",
        "left_s.get(each.worker.id, 0.0) <= 0",
        "True",
        SQLITE,
    ),
    (
        "an overdue lease is believed at the first look",
        "reaper.py",
        "patience_s = 0.0 if many else SECOND_LOOK_S",
        "patience_s = 0.0",
        REAPER,
    ),
    (
        "the reaper settles without the lease that it saw",
        "reaper.py",
        "judged = self._settle(judged, seen_lease=True)",
        "judged = self._settle(judged, seen_lease=False)",
        REAPER,
    ),
    (
        "a worker is settled before it is marked gone",
        "reaper.py",
        "            self._store.retire(worker.id, str(epitaph), under=self._under)\n",
        "",
        SQLITE,
    ),
    (
        "the daemon acts without its term",
        "reaper.py",
        "        self._under = under\n",
        "        self._under = None\n",
        REAPER,
    ),
    (
        "trust counts from the answer of a beat",
        "worker/keeper.py",
        "attempt.window = trust(sent_at,",
        "attempt.window = trust(self._clock.lease(),",
        WORKER,
    ),
    (
        "a lost lease does not stop its handler",
        "worker/keeper.py",
        '                attempt.stop(LeaseLost("the store says that another attempt has taken over"))',
        "                pass",
        (*WORKER, *CRASH),
    ),
    (
        "progress of a failed beat is forgotten",
        "worker/keeper.py",
        "                attempt.unheard()\n            if not",
        "                pass\n            if not",
        WORKER,
    ),
    # --- isolation
    ("isolation: nobody is", "core/isolation.py", "if declared or ", "if ", ISOLATION),
    ("isolation: who died alone is not", "core/isolation.py", "or job.crashes > 1 or shared", "", ISOLATION),
    (
        "isolation: who died alone is not, while its worker has no other job",
        "worker/runner.py",
        " or (self._may_exit and self._options.slots > 1)",
        "",
        ("tests/crash/test_poison.py",),
    ),
    ("isolation: who was revived is not", "core/isolation.py", "declared or job.suspects == 1", "declared", ISOLATION),
    ("isolation: nobody ends itself", "core/isolation.py", 'return "exit_code" in facts or', "return", ISOLATION),
    (
        "the ending carries no progress",
        "worker/settler.py",
        "replace(verdict, progress=attempt.progress, note=attempt.note)",
        "replace(verdict)",
        WORKER,
    ),
    ("isolation: only the cell is killed", "worker/cell.py", "os.killpg(self.pid, signal.SIGKILL)", "pass", ISOLATION),
    (
        "isolation: who left the group stays",
        "worker/cell.py",
        "strays = self._strays + _descendants(self.pid)",
        "strays: list[int] = []",
        ISOLATION,
    ),
    ("isolation: no warden", "worker/pool.py", "self._warden.add(cell.pid)", "pass", CELLS),
    ("forks: the child comes back", "forks.py", "if os.getpid() == pid:", "if True:", (*ISOLATION, *MISBEHAVING)),
    ("forks: the door is open", "forks.py", "if os.getpid() != pid:", "if False:", FORKS),
    (
        "forks: the child goes on with the loop",
        "worker/executors.py",
        "self._loop.call_soon(end_if_forked, self._pid)",
        "pass",
        MISBEHAVING,
    ),
    (
        "forks: the child rolls its parent back",
        "stores/postgres/transaction.py",
        "if self.connection.is_forked:",
        "if False:",
        MISBEHAVING,
    ),
    # --- a worker of no use
    ("broken: nobody hears of it", "worker/vital.py", "if not self._is_over() and", "if False and", BROKEN),
    (
        "broken: what ran on the loop is left",
        "worker/runner.py",
        "= self._loop.stranded() + self._pool.stranded()",
        "= []",
        BROKEN,
    ),
    (
        "broken: jobs are given back before it is known why",
        "worker/runner.py",
        'self._hold_breath(float("inf"))',
        "self.stop_now()",
        BROKEN,
    ),
    ("broken: what is in hand is lost", "worker/settler.py", "in_hand := self._in_hand or", "in_hand :=", BROKEN),
    (
        "broken: a cell may take for ever to say why",
        "worker/inside.py",
        "        threading.Timer(BROKEN_S, os._exit, (EXIT_BROKEN,)).start()",
        "        threading.Timer(BROKEN_S, os.getpid).start()",
        ISOLATION,
    ),
    ("broken: run says nothing", "worker/runner.py", "raise self._broken", "pass", BROKEN),
    (
        "broken: Ctrl-C while it enrols leaves its row",
        "worker/runner.py",
        "            self.worker_id = worker.id\n            raise\n",
        "            raise\n",
        BROKEN,
    ),
    (
        "a store that fails is a failure of the workflow that reads",
        "workflow/ledger.py",
        "if not is_passing(error):",
        "if True:",
        ("tests/workflow/test_waiting.py",),
    ),
    (
        "an interrupt may hit a thread that has a lock of logging",
        "shield.py",
        "            _set_depth(depth + 1)\n            _let_it_hit()\n            take",
        "            _let_it_hit()\n            take",
        ("tests/worker/test_interrupts.py",),
    ),
    (
        "enqueues at once on one connection of a caller's take no turns",
        "stores/postgres/joining.py",
        "if not turn.acquire(timeout=self._db.options.wait_s):",
        "if turn.acquire(blocking=False) is None:",
        ("tests/api/test_connection_postgres.py",),
    ),
    (
        "a new file is not told what it replaced",
        "stores/sqlite/connection.py",
        "            self._note_replaced(found.st_ino)\n",
        "",
        ("tests/test_sqlite_store.py",),
    ),
    (
        "a new file is told what it replaced again and again",
        "stores/sqlite/connection.py",
        "            if inode == self._noted:\n                return\n",
        "",
        ("tests/test_sqlite_store.py",),
    ),
    (
        "an app closes its store under a tick",
        "app.py",
        "        self.closing.drain()\n",
        "",
        ("tests/worker/test_closing.py",),
    ),
    (
        "a job may close the app that runs it",
        "closing.py",
        "if any(work.runs_the_caller() for work in works):",
        "if False:",
        ("tests/worker/test_closing.py",),
    ),
    (
        "a forked process waits for the ticks of its parent",
        "closing.py",
        "            self._closing = True\n            works = [work for work in self._works if work.pid == os.getpid()]",
        "            self._closing = True\n            works = list(self._works)",
        ("tests/worker/test_closing.py",),
    ),
    (
        "a tick begins on an app that is closed",
        "closing.py",
        "            if self._closing:\n                raise UsageError(CLOSED)\n",
        "",
        ("tests/worker/test_closing.py",),
    ),
    (
        "the threads of the app keep a worker that was told to stop",
        "cli/main.py",
        "        if told.serves:",
        "        if False:",
        ("tests/cli/test_leaving.py",),
    ),
    (
        "a worker under nohup ends when its terminal closes",
        "worker/signals.py",
        "        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:\n            signal.signal",
        "        if True:\n            signal.signal",
        ("tests/cli/test_leaving.py",),
    ),
    (
        "signals that a parent has blocked stay blocked",
        "worker/signals.py",
        "    signal.pthread_sigmask(signal.SIG_UNBLOCK, (*_ENDING, signal.SIGCHLD))",
        "    pass",
        ("tests/cli/test_leaving.py",),
    ),
    (
        "Ctrl-C while a child imports the app shows a traceback",
        "cli/child.py",
        "    handle_signals(lambda *_: os._exit(0))",
        "    handle_signals",
        ("tests/cli/test_leaving.py",),
    ),
    (
        "a second SIGHUP hurries running jobs",
        "worker/supervisor.py",
        "if number in (signal.SIGTERM, signal.SIGINT)])",
        "])",
        ("tests/crash/test_signals.py",),
    ),
    (
        "a job that configures the root logger loses its lines",
        "worker/lines.py",
        "        if other is not handler:\n",
        "        if True:\n",
        ("tests/crash/test_modules.py",),
    ),
    (
        "a job that configures logging disables ctx.log",
        "worker/lines.py",
        '    logging.getLogger("holdfast.job")',
        "    pass",
        ("tests/crash/test_modules.py",),
    ),
    (
        "a number sign cuts the name of a SQLite file",
        "stores/sqlite/connection.py",
        '        if "#" in url:',
        "        if False:",
        ("tests/test_sqlite_store.py",),
    ),
    (
        "no more files: the file that is not at fault is blamed",
        "stores/sqlite/connection.py",
        "        if error.errno in (errno.EMFILE, errno.ENFILE):",
        "        if False:",
        ("tests/test_sqlite_store.py",),
    ),
    (
        "no more threads: a line for every job",
        "worker/runner.py",
        "        if self._clock.lease() - self._said_short_at >= SAY_EVERY_S:",
        "        if True:",
        ("tests/worker/test_interrupts.py",),
    ),
    (
        "a recorded step is no progress",
        "workflow/ledger.py",
        "        self.attempt.moved_at = self.app.clock.lease()",
        "        pass",
        ("tests/workflow/test_steps.py",),
    ),
    (
        "the time limit of a step is an exception as any other",
        "workflow/threads.py",
        "class StepTimeout(BaseException)",
        "class StepTimeout(Exception)",
        ("tests/workflow/test_steps.py",),
    ),
    (
        "forks: a loop that has ended is told too",
        "worker/executors.py",
        "if is_ours and not self._loop.is_closed():",
        "if is_ours:",
        ("tests/worker/test_forks.py",),
    ),
    (
        "a log that nobody reads stops the worker",
        "cli/logs.py",
        "    return bool(poll.poll(wait_s * 1000))",
        "    return True",
        ("tests/cli/test_logs.py",),
    ),
    (
        "questions: the journal does not say what was answered",
        "core/records.py",
        "if self.answer is not None else {}",
        "if False else {}",
        ("tests/conformance/test_signal.py",),
    ),
    (
        "alerts: nobody reads what a teller that stopped has left",
        "alerts/teller.py",
        "        if note is not None:\n",
        "        if False:\n",
        ALERTS_TELLER,
    ),
    (
        "alerts: a teller that stops keeps its duty",
        "alerts/teller.py",
        'last look failed: %s", error)\n        self.resign()',
        'last look failed: %s", error)',
        ("tests/cli/test_alerts.py",),
    ),
    (
        "alerts: a look that fails loses the note",
        "duties.py",
        "            self._note = duty.note\n        self._duty = duty\n",
        "        self._note = duty.note\n        self._duty = duty\n",
        ALERTS_TELLER,
    ),
    (
        "alerts: the note of another version stops the teller",
        "alerts/teller.py",
        "    except msgspec.MsgspecError:\n        return []",
        "    except KeyError:\n        return []",
        ALERTS_TELLER,
    ),
    (
        "workflows: the steps of one async workflow take the threads of the others",
        "workflow/loop.py",
        "ThreadPoolExecutor(sys.maxsize,",
        "ThreadPoolExecutor(STEPS_MAX,",
        GATHER,
    ),
    (
        "workflows: an async workflow has as many threads as it likes",
        "workflow/loop.py",
        "async with self._places:",
        "async with contextlib.nullcontext():",
        GATHER,
    ),
    (
        "the rows of workers do not follow the name of the server's run",
        "stores/postgres/lifeline.py",
        "            self._unwritten |= dict.fromkeys(self._held, run)",
        "            pass",
        ("tests/stores/test_postgres_liveness.py",),
    ),
    (
        "a job whose claim was answered late is not renewed first",
        "worker/runner.py",
        "answered_late = attempt.window.must_renew(now)",
        "answered_late = False",
        ("tests/worker/test_claiming.py",),
    ),
    (
        "a lock folder may belong to anybody",
        "stores/sqlite/liveness.py",
        "if found.st_uid not in (0, os.geteuid(), owner_above):",
        "if False:",
        ("tests/test_sqlite_store.py",),
    ),
    (
        "a backup takes the place of a file that was made meanwhile",
        "stores/sqlite/backup.py",
        "        _rename(Path(part), target)\n",
        "        os.replace(part, target)\n",
        ("tests/cli/test_backup.py",),
    ),
    (
        "a line of the log that was cut short runs into the next one",
        "cli/logs.py",
        "                self._is_torn = start > 0\n",
        "",
        ("tests/cli/test_logs.py",),
    ),
    (
        "escapes: a module's error writes to the terminal",
        "cli/loading.py",
        "{escaped(line)}",
        "{line}",
        ("tests/cli/test_loading.py",),
    ),
    (
        "reaper: of a page that took too long the second half is skipped",
        "reaper.py",
        "skip += limit - sum(zombie.recovered for zombie in judged)",
        "skip += PAGE - sum(zombie.recovered for zombie in judged)",
        ("tests/stores/test_postgres_locked_rows.py",),
    ),
    (
        "scan: a locked row is said to be settled by somebody else",
        "reaper.py",
        "return sum(zombie.answer is Answer.LOCKED for zombie in self.latest)",
        "return 0",
        ("tests/stores/test_postgres_locked_rows.py",),
    ),
    (
        "enqueue_many: what is stored already is not said",
        "app.py",
        "error.stored_ids = tuple(job.id for job in jobs)",
        "pass",
        ("tests/stores/test_postgres_conflicts.py",),
    ),
    (
        "acts: the error that asked stays after the answer",
        "core/acts.py",
        'return "" if job.state is State.HELD and',
        "return None if job.state is State.HELD and",
        ("tests/conformance/test_move_steps.py",),
    ),
    (
        "times: a bound is rounded down",
        "core/times.py",
        "duration(ceil(round(seconds / unit_s, 6)) * unit_s)",
        "duration(seconds)",
        ("tests/core/test_times.py",),
    ),
    (
        "log: the frames of a library hide those of the author",
        "worker/frames.py",
        "    kept = [*own[-most:],",
        "    kept = [*theirs[-most:],",
        ("tests/worker/test_frames.py",),
    ),
    (
        "two gaps with less than a beat between them are two",
        "core/lease.py",
        "if whole is not None and gap.began - whole.ended < beat_s else gap",
        "if False else gap",
        ("tests/core/test_lease.py",),
    ),
    (
        "the last gap counts, however short",
        "core/lease.py",
        "        if whole.ended - whole.began >= beat_s:\n            found = whole",
        "        found = whole if whole.ended - whole.began >= beat_s else None",
        ("tests/core/test_lease.py",),
    ),
    (
        "a worker in doubt forgets what a lost answer gave it",
        "worker/runner.py",
        "if asked_at is not None:  # what",
        "if False:  # what",
        ("tests/worker/test_continuity.py",),
    ),
    (
        "screen: what a person must read is cut",
        "cli/screen.py",
        "if all(columns(text) <= given for text in texts):",
        "if True:",
        ("tests/cli/test_screen.py",),
    ),
    (
        "silence: nobody minds",
        "worker/supervisor.py",
        "return silence.seconds >= silence.limit_s",
        "return False",
        SUPERVISOR,
    ),
    (
        "silence: a child may take for ever to start",
        "worker/supervisor.py",
        "self.limit_s = START_S",
        'self.limit_s = float("inf")',
        SUPERVISOR,
    ),
    (
        "silence: a worker does not beat while it recovers orphans",
        "worker/runner.py",
        "self._keeper.start(self._broke)  # first: to settle what very many dead workers left takes its time\n"
        "        self._until_it_works(self._sweep)\n",
        "self._until_it_works(self._sweep)\n        self._keeper.start(self._broke)\n",
        ("tests/worker/test_keeper.py",),
    ),
    ("silence: sleep counts", "worker/supervisor.py", "min(seconds, 2 * LOOK_S)", "seconds", SUPERVISOR),
    (
        "silence: the store's outage counts",
        "worker/supervisor.py",
        "        except HoldfastError:\n            silence.seconds = silence.limit_s / 2\n",
        "        except HoldfastError:\n            pass\n",
        SUPERVISOR,
    ),
    (
        "silence: any writer's lock counts",
        "worker/supervisor.py",
        "if error.holder == pid:",
        "if True:",
        SUPERVISOR,
    ),
    (
        "an error's text is read out of reach",
        "worker/frames.py",
        "    except Interrupted:\n        raise\n",
        "",
        MISBEHAVING,
    ),
    (
        "an error forges a line of the log",
        "worker/frames.py",
        "return escaped(text[:LOGGED_MAX])",
        "return text[:LOGGED_MAX]",
        WORKER,
    ),
    (
        "a project's json.py is Python's",
        "worker/cell.py",
        '(sys.executable, "-P", "-m")',
        '(sys.executable, "-m")',
        MODULES,
    ),
    ("SIGCHLD stays ignored", "worker/signals.py", "signal.signal(signal.SIGCHLD, signal.SIG_DFL)", "pass", MODULES),
    ("dictConfig silences the worker", "worker/lines.py", "logger.disabled = False", "pass", MODULES),
    (
        "a later dictConfig silences the worker",
        "worker/lines.py",
        "logger.__class__ = _Enabled",
        "pass",
        MODULES,
    ),
    ("green threads are taken for real ones", "worker/vital.py", "    if replaced:", "    if False:", BROKEN),
    (
        "isolation: every kill is for want of memory",
        "worker/endings.py",
        "if killed_for_memory and facts",
        "if facts",
        ISOLATION,
    ),
    (
        "isolation: nobody is terminated",
        "worker/pool.py",
        "cell.plan.append((terminate_at, lambda: self._terminate(cell)))",
        "pass",
        ISOLATION,
    ),
    (
        "isolation: nobody is killed in the end",
        "worker/pool.py",
        "cell.plan.append((terminate_at + allowed.end_s, cell.kill))",
        "pass",
        ISOLATION,
    ),
    (
        "isolation: a cell is for ever",
        "worker/pool.py",
        "cell.jobs >= self._options.recycle_jobs or ",
        "",
        ISOLATION,
    ),
    (
        "isolation: a cell may grow",
        "worker/pool.py",
        " or word.rss_mb >= self._options.recycle_mb",
        "",
        ISOLATION,
    ),
    (
        "isolation: what it left may stay",
        "worker/pool.py",
        "if word.spent or cell.forced:",
        "if cell.forced:",
        ISOLATION,
    ),
    ("isolation: the idle stay", "worker/pool.py", "now - self._idle[0].idle_since >= IDLE_S", "False", ISOLATION),
    (
        "isolation: a lease that is about to end is begun",
        "worker/pool.py",
        "if attempt.window.must_stop(now):",
        "if False:",
        ISOLATION,
    ),
    (
        "isolation: a held lock hides its place",
        "worker/pool.py",
        "cell.stack or cell.read_stack()",
        "cell.stack",
        ISOLATION,
    ),
    (
        "isolation: a crash hides its place",
        "worker/pool.py",
        "crashed = cell.read_stack()",
        "crashed = None",
        ISOLATION,
    ),
    ("isolation: a settled one is kept", "worker/pool.py", "self._hands.settled(attempt)", "pass", ISOLATION),
    (
        "isolation: no limit of memory",
        "worker/inside.py",
        "memory.limit_self(self.memory_max_mb)",
        "pass",
        ISOLATION,
    ),
    (
        "isolation: one that waits is forgotten",
        "worker/pool.py",
        "if attempt in self._waiting:",
        "if False:",
        ISOLATION,
    ),
    (
        "isolation: jobs that need a cell are claimed without one",
        "worker/homes.py",
        "if self.closed and self._patient:",
        "if False:",
        ISOLATION,
    ),
    (
        "isolation: a pool that hangs is believed",
        "worker/attempt.py",
        "return now - self.killed_at < KILL_S",
        "return True",
        ISOLATION,
    ),
    (
        "isolation: asked past the end of the lease",
        "worker/pool.py",
        "if isinstance(why, errors.LeaseLost) and attempt.window",
        "if False and attempt.window",
        ISOLATION,
    ),
    (
        "isolation: an earlier stack stays",
        "worker/cell.py",
        "self._empty_dump()  # an earlier attempt",
        "pass  # an earlier attempt",
        ISOLATION,
    ),
    (
        "isolation: a kill before it began is its own",
        "worker/pool.py",
        "max(cell.kills_before, self._kills), kills",
        "self._kills, kills",
        ISOLATION,
    ),
    (
        "isolation: what a module raises is told whole",
        "worker/pool.py",
        "cell.error = clean(word.error, ERROR_MAX)",
        "cell.error = word.error",
        ISOLATION,
    ),
    ("isolation: any codec will do", "cli/cell.py", "if self._setup.own_codec:", "if False:", ISOLATION),
    ("nobody fences itself", "worker/watch.py", "if attempt.window.must_stop(now):", "if False:", WORKER),
    (
        "the collector runs while frames are listed",
        "worker/attempt.py",
        "        gc.disable()\n",
        "",
        ("tests/worker/test_stack.py",),
    ),
    ("no time limit", "worker/watch.py", "attempt.deadline is not None and now >= attempt.deadline", "False", WORKER),
    (
        "no stall limit",
        "worker/watch.py",
        "attempt.job.stall_s is not None and now - attempt.moved_at >= attempt.job.stall_s",
        "False",
        WORKER,
    ),
    (
        "a cancel that came in between is overlooked",
        "worker/settler.py",
        "elif answer is Answer.AGAIN:",
        "elif False:",
        WORKER,
    ),
    (
        "an outage loses endings",
        "worker/settler.py",
        "                    self._clock.wait(threading.Event(), self._trouble.met(error))\n                    continue\n",
        "                    return\n",
        WORKER,
    ),
    ("a bad ending takes its batch with it", "worker/settler.py", "if len(batch) == 1:", "if True:", WORKER),
    (
        "trust counts from the last try of a claim",
        "worker/runner.py",
        "asked_at = self._clock.lease() if asked_at is None else asked_at",
        "asked_at = self._clock.lease()",
        WORKER,
    ),
    (
        "no sweep before the first claim",
        "worker/runner.py",
        "        self._until_it_works(self._sweep)\n",
        "",
        (*WORKER, *CRASH),
    ),
    (
        "a started job is given back as not begun",
        "worker/executors.py",
        "return Released(started=True, cause=",
        "return Released(started=False, cause=",
        WORKER,
    ),
    (
        "a lease that is about to end is begun",
        "worker/runner.py",
        "if attempt.window.must_stop(now):\n                    too_late",
        "if False:\n                    too_late",
        WORKER,
    ),
    (
        "entrance: a cancelled job is started",
        "worker/entrance.py",
        "if attempt.job.cancel_requested:",
        "if False:",
        ENTRANCE,
    ),
    (
        "entrance: a call that keeps crashing is started",
        "worker/entrance.py",
        "elif self._held_back and (why",
        "elif False and (why",
        ENTRANCE,
    ),
    ("entrance: who was approved is held back again", "worker/entrance.py", " and is_new(job)", "", ENTRANCE),
    (
        "entrance: what cannot be read stops the claims",
        "worker/entrance.py",
        "except HoldfastError",
        "except ZeroDivisionError",
        ENTRANCE,
    ),
    ("entrance: it reads after every claim", "worker/entrance.py", " < REFRESH_S", " < 0", ENTRANCE),
    (
        "entrance: who died of failures counts",
        "worker/entrance.py",
        ' and event.detail.get("decision") in ("bury", "hold")',
        "",
        ENTRANCE,
    ),
    (
        "entrance: who lived counts",
        "worker/entrance.py",
        "                del zombies[event.job_id]",
        "                pass",
        ENTRANCE,
    ),
    ("entrance: who was brought back counts", "worker/entrance.py", '"revived", ', "", ENTRANCE),
    ("entrance: who was done counts", "worker/entrance.py", " and has_fallen(job)", "", ENTRANCE),
    (
        "entrance: one death counts for each of its jobs",
        "core/calls.py",
        "len(set(fallen.values()))",
        "len(fallen)",
        ENTRANCE,
    ),
    (
        "a worker that was declared dead enrols twice",
        "worker/runner.py",
        "self._was_declared_dead(asked_as)",
        "self._was_declared_dead(self.worker_id)",
        ("tests/worker/test_declared_dead.py",),
    ),
    (
        "the supervisor leaves what a dead child held",
        "worker/supervisor.py",
        "enrolled = self._bury(number, child.pid, code, silent)\n",
        "enrolled = True\n",
        CRASH,
    ),
    (
        "the supervisor forgets a child that it has marked gone",
        "worker/supervisor.py",
        "self._store.workers(gone=True)",
        "self._store.workers()",
        WORKER,
    ),
    (
        "a child that dies again and again is started as fast as ever",
        "worker/supervisor.py",
        "young = 0 if self._clock.lease() - born_at > YOUNG_S else young + 1\n",
        "young = 0\n",
        SUPERVISOR,
    ),
    (
        "a child that has lived for long is started as slowly as before",
        "worker/supervisor.py",
        "young = 0 if self._clock.lease() - born_at > YOUNG_S else young + 1\n",
        "young += 1\n",
        SUPERVISOR,
    ),
    ("the pause before a restart has no limit", "worker/supervisor.py", ", RESTART_MAX_S)", ", 1e9)", SUPERVISOR),
    (
        "a handler is said to move at every beat",
        "worker/attempt.py",
        "self.started_at is not None and self.moved_at > self.started_at\n",
        "True\n",
        ("tests/worker/test_keeper.py",),
    ),
    (
        "memory: the next attempt has moved already",
        "core/rows.py",
        "progress=None, note=None, moved_at=None,\n    )  # fmt: skip\n\n\ndef owns",
        "progress=None, note=None,\n    )  # fmt: skip\n\n\ndef owns",
        STORE,
    ),
    ("health: a job that never begins is well", "insight/health.py", "claimed_s < NOT_BEGUN_S", "True", HEALTH),
    ("health: nobody is dead", "insight/health.py", "if left_s < 0:", "if False:", HEALTH),
    (
        "health: a worker that is gone is not dead",
        "insight/health.py",
        "worker.gone_at is not None:\n        cause",
        "False:\n        cause",
        HEALTH,
    ),
    ("health: silence is no sign", "insight/health.py", 'worker_state(worker, now) == "silent"', "False", HEALTH),
    (
        "health: a worker that beats for others is dead",
        "insight/health.py",
        "silent_s is not None and silent_s <= -left_s",
        "False",
        HEALTH,
    ),
    ("health: who waits for a slot hangs", "insight/health.py", "claimed_s < NOT_BEGUN_S", "False", HEALTH),
    (
        "health: who never told of progress hangs",
        "insight/health.py",
        "job.stall_s is None and job.moved_at is not None and still_s > max(STILL_S, job.moved_at - job.claimed_at)",
        "job.stall_s is None and still_s > STILL_S",
        HEALTH,
    ),
    (
        "health: a minute is always too long",
        "insight/health.py",
        "max(STILL_S, job.moved_at - job.claimed_at):",
        "STILL_S:",
        HEALTH,
    ),
    ("health: few jobs say what is usual", "insight/health.py", "len(took) >= _SAMPLE_LEAST", "took", HEALTH),
    ("health: other tasks say what is usual", "insight/health.py", " if job.task == task]", "]", HEALTH),
    (
        "health: short is slow",
        "insight/health.py",
        "max(SLOW_LEAST_S, usual_s * SLOW_TIMES)",
        "usual_s * SLOW_TIMES",
        HEALTH,
    ),
    (
        "health: who came back was dead",
        "insight/health.py",
        '"zombie" if event.fence in late',
        '"zombie" if False',
        HEALTH,
    ),
    (
        "zombies: two deaths of a job are chance",
        "insight/zombies.py",
        "victim.zombies >= REPEATS_LEAST",
        "victim.zombies > 3",
        STORMS,
    ),
    (
        "doctor: all dead jobs are revived at once",
        "insight/diagnosis.py",
        "holdfast dead revive --all --task {task}",
        "holdfast dead revive --all",
        DOCTOR,
    ),
    (
        "worker: a worker without tasks looks healthy",
        "worker/runner.py",
        "if not self._tasks:",
        "if False:",
        PROCESS,
    ),
    (
        "worker: a child imports the app only",
        "cli/child.py",
        "load_app(ref, imports=imports)",
        "load_app(ref)",
        PROCESS,
    ),
    (
        "worker: an isolated process imports the app only",
        "cli/cell.py",
        "load_app(setup.app, imports=setup.imports)",
        "load_app(setup.app)",
        PROCESS,
    ),
    (
        "loading: every module of a package is imported",
        "cli/loading.py",
        'if "tasks" in each.name.split(".") and not',
        "if not",
        LOADING,
    ),
    (
        "serving: a worker runs any task of its queues",
        "core/records.py",
        "(self.tasks is None or task in self.tasks)",
        "True",
        VIEWS,
    ),
    (
        "serving: a silent worker counts as living",
        "core/records.py",
        "self.gone_at is None and now - self.beat_at <= SILENT_BEATS * self.beat_s",
        "self.gone_at is None",
        VIEWS,
    ),
    (
        "doctor: a task that nobody has wants more slots",
        "insight/views.py",
        "store.due([queue], known) if known else None",
        "oldest",
        DOCTOR,
    ),
    (
        "worker: the log names tasks that another worker has",
        "worker/runner.py",
        "if not any(worker.may_run(queue, task) for worker in living for queue in self._queues):",
        "if True:",
        ("tests/worker/test_claiming.py",),
    ),
    (
        "lists: what is due is listed as scheduled",
        "insight/views.py",
        "where = replace(where, later=store.now().wall, tried=tried)",
        "where = replace(where, tried=tried)",
        ("tests/cli/test_views.py",),
    ),
    (
        "lists: what was tried is listed as scheduled",
        "insight/views.py",
        "where = replace(where, later=store.now().wall, tried=tried)",
        "where = replace(where, later=store.now().wall)",
        ("tests/cli/test_views.py",),
    ),
    (
        "alerts: a question is told each time its workflow parks",
        "alerts/teller.py",
        'if event.kind == "asked" and not self._is_first(event):',
        "if False:",
        ALERTS_TELLER,
    ),
    (
        "alerts: a question is over when no job is held",
        "alerts/teller.py",
        "return any(self._store.find(where) for where in waits)",
        "return bool(self._store.find(waits[0]))",
        ALERTS_TELLER,
    ),
    (
        "alerts: a scan tells again what was told before it",
        "alerts/teller.py",
        "incidents.skip([line for line in lines if line.at < since])",
        "incidents.skip([])",
        ALERTS_TELLER,
    ),
    (
        "alerts: a scan takes what was told before for the whole incident",
        "alerts/teller.py",
        "incidents.skip([line for line in lines if line.at < since])",
        "incidents.assume(lines, since)",
        ALERTS_TELLER,
    ),
    (
        "alerts: a scan keeps the duty of those who tell",
        "alerts/teller.py",
        "            self._update(lines, now)\n            self._post.resign()",
        "            self._update(lines, now)",
        ALERTS_TELLER,
    ),
    (
        "alerts: a scan tells beside a resident program",
        "alerts/teller.py",
        "if self._takes_turn():",
        "if True:",
        ALERTS_TELLER,
    ),
    (
        "alerts: every tick leaves a thread behind",
        "alerts/teller.py",
        "self._messages.put_nowait(None)",
        "pass",
        ALERTS_TELLER,
    ),
    (
        "alerts: tick tells nobody",
        "worker/tick.py",
        "tell_once(app.store, app.clock, app.alerts,",
        "tell_once(app.store, app.clock, (),",
        ("tests/worker/test_tick.py",),
    ),
    (
        "alerts: reap tells nobody",
        "app.py",
        "tell_once(store, self.clock, self.alerts,",
        "tell_once(store, self.clock, (),",
        ("tests/api/test_app.py",),
    ),
    (
        "hooks: a scan does not tell those of its app",
        "cli/alerts.py",
        "(found.hooks, (*found.alerts, *alerts))",
        "(None, (*found.alerts, *alerts))",
        ("tests/cli/test_alerts.py",),
    ),
    (
        "hooks: a reaper does not tell those of its app",
        "cli/reaper.py",
        "hooks = hooks or Hooks()",
        "hooks = Hooks()",
        ("tests/cli/test_alerts.py",),
    ),
    ("schedules: an instant is late at once", "core/schedule.py", "instant < now - LATE_S", "instant < now", SCHEDULE),
    (
        "schedules: the second coming is lost when one looks during the first",
        "core/schedule.py",
        "return min(now, tomorrow - timedelta(days=1))",
        "return now",
        SCHEDULE,
    ),
    (
        "schedules: an hour that comes twice counts once",
        "core/schedule.py",
        "if elapsed and second > first:",
        "if False:",
        SCHEDULE,
    ),
    (
        "schedules: second comings wait for ever",
        "core/schedule.py",
        "while repeated and repeated[0] < first:",
        "while False:",
        SCHEDULE,
    ),
    (
        "schedules: hours that do not pass are made up for",
        "core/schedule.py",
        "if elapsed:\n                continue",
        "if False:\n                continue",
        SCHEDULE,
    ),
    ("schedules: a paused one is late", "core/schedule.py", "if schedule.paused:", "if False:", SCHEDULE),
    (
        "alerts: a late schedule is over after a window",
        "alerts/rules.py",
        'if line.kind == "late" and line.at <= now]',
        'if line.kind == "late" and line in recent]',
        ALERTS_RULES,
    ),
    (
        "alerts: nobody looks at schedules",
        "alerts/teller.py",
        "*self._late(now)]",
        "]",
        ALERTS_TELLER,
    ),
    ("storms: any number is one", "insight/storms.py", "if place - first < limits.zombies_max:", "if False:", STORMS),
    ("storms: a day is a window", "insight/storms.py", ">= limits.window_s", ">= 86_400", STORMS),
    ("storms: all of them are one", "insight/storms.py", "if storm and first >= taken:", "if False:", STORMS),
    (
        "one that holds the event loop is left there",
        "worker/abandoned.py",
        " or attempt.is_deaf",
        "",
        MISBEHAVING,
    ),
    (
        "an excuse is not left for whoever comes first",
        "core/epitaph.py",
        "excused = first == EXCUSED\n",
        "excused = False\n",
        (*REAPER, "tests/core/test_epitaph.py"),
    ),
    (
        "a clock that is set ahead kills the living",
        "reaper.py",
        "        if jump_s > SILENCE_S:\n",
        "        if False:\n",
        REAPER,
    ),
    (
        "the server's clock is not asked again before leases are judged",
        "stores/postgres/store.py",
        'self._ahead = self._ahead[0], float("-inf")',
        "pass",
        ("tests/stores/test_postgres_guards.py",),
    ),
    (
        "a claim over a new connection is started before the store is compared",
        "worker/runner.py",
        "        if self._continuity.is_outdated:  # if",
        "        if False:  # if",
        ("tests/worker/test_continuity.py",),
    ),
    (
        "postgres: an autovacuum looks like another run of the server",
        "stores/postgres/migrations/0018_server.sql",
        " AND datid IS NULL",
        "",
        ("tests/stores/test_postgres_schema.py",),
    ),
    (
        "text that no job can have is looked for",
        "app.py",
        "if isinstance(text, str) and not is_storable(text):",
        "if False:",
        ("tests/api/test_app.py",),
    ),
    ("standing by is a gap", "daemon.py", "                reaper.stand_by()\n", "                pass\n", REAPER),
    (
        "an enrolment that failed keeps its lock",
        "stores/sqlite/store.py",
        "                liveness.drop(self._lock_path(worker.id))\n            raise",
        "                pass\n            raise",
        SQLITE,
    ),
    (
        "a claim that is sent again does not wait for the first",
        "stores/postgres/queries.sql",
        "AND NOT %(aside)s::boolean\n    FOR SHARE SKIP LOCKED",
        "AND NOT %(aside)s::boolean",
        OUTAGES,
    ),
    (
        "a claim beside a locked row does not wait for a verdict on its worker",
        "stores/postgres/batch.py",
        '        db.execute(q["claim_aside"], asked, prepare=False)\n',
        "",
        ("tests/stores/test_postgres_guards.py",),
    ),
    (
        "a verdict on a worker does not wait for its claim beside a locked row",
        "stores/postgres/queries.sql",
        "    FROM clock, allowed, alone\n",
        "    FROM clock, allowed\n",
        LOCKED_ROWS,
    ),
    (
        "a worker whose row is locked looks silent",
        "stores/postgres/queries.sql",
        "greatest(beat_at, (SELECT at FROM {schema}.beat_aside WHERE beat_aside.worker = worker.id))",
        "beat_at",
        LOCKED_ROWS,
    ),
    (
        "a claim that is sent again shuts nobody out",
        "stores/postgres/store.py",
        '                db.execute(self._db["claim_again"], values, prepare=False)\n',
        "                pass\n",
        OUTAGES,
    ),
    (
        "a claim that is sent again waits for whoever has locked the worker's row",
        "stores/postgres/store.py",
        "if self._clock.lease() - sent_at <= self._often.limits.statement_s:",
        "if True:",
        OUTAGES,
    ),
    (
        "a claim that is sent again does not wait for its first try",
        "stores/postgres/store.py",
        "if self._clock.lease() - sent_at <= self._often.limits.statement_s:",
        "if False:",
        OUTAGES,
    ),
    (
        "a claim that is sent again has no number of its own",
        "stores/postgres/store.py",
        "                self._claim_try += 1\n",
        "",
        OUTAGES,
    ),
    (
        "alerts: a private address is good enough",
        "alerts/webhook.py",
        "return self._private and not address",
        "return not address",
        ALERTS_WEBHOOK,
    ),
    (
        "alerts: an address hidden in another one is not seen",
        "alerts/webhook.py",
        "if address.sixtofour is not None:",
        "if False:",
        ALERTS_WEBHOOK,
    ),
    (
        "alerts: plain http goes anywhere",
        "alerts/webhook.py",
        "return self._tls is not None  #",
        "return True  #",
        ALERTS_WEBHOOK,
    ),
    (
        "alerts: the name is resolved again to connect",
        "alerts/webhook.py",
        "return _connected(*last)",
        "return _connected(last[0], (self._host, *last[1][1:]))",
        ALERTS_WEBHOOK,
    ),
    (
        "alerts: any certificate will do",
        "alerts/webhook.py",
        "ssl.create_default_context()",
        "ssl._create_unverified_context()",
        ALERTS_WEBHOOK,
    ),
    (
        "alerts: a redirect counts as told",
        "alerts/webhook.py",
        "if 200 <= status < 300:",
        "if 200 <= status < 400:",
        ALERTS_WEBHOOK,
    ),
    (
        "alerts: the signature leaves the timestamp out",
        "alerts/webhook.py",
        'timestamp.encode() + b"." + body',
        "body",
        ALERTS_WEBHOOK,
    ),
    (
        "alerts: each byte of an answer has a time of its own",
        "alerts/webhook.py",
        "        self._sock.settimeout(_left(self._clock, self._give_up_at))\n        read =",
        "        self._sock.settimeout(SEND_S)\n        read =",
        ALERTS_WEBHOOK,
    ),
    ("alerts: an answer may be of any length", "alerts/webhook.py", "if self._room <= 0:", "if False:", ALERTS_WEBHOOK),
    (
        "alerts: path and query are shown",
        "alerts/webhook.py",
        '{parts.scheme}://{self._place}/…"',
        '{url}"',
        ALERTS_WEBHOOK,
    ),
    (
        "alerts: a command's children live on",
        "alerts/channels.py",
        "os.killpg(process.pid, signal.SIGKILL)",
        "process.kill()",
        ALERTS_COMMAND,
    ),
    (
        "alerts: a command has all the time",
        "alerts/channels.py",
        "self._clock.lease() >= give_up_at or",
        "False or",
        ALERTS_COMMAND,
    ),
    (
        "alerts: a command lives on after the program",
        "alerts/channels.py",
        " or self._closing.is_set()",
        "",
        ALERTS_COMMAND,
    ),
    (
        "alerts: a command sees our settings",
        "alerts/channels.py",
        'not name.startswith("HOLDFAST_") and ',
        "",
        ALERTS_COMMAND,
    ),
    (
        "alerts: a command sees a secret under another name",
        "alerts/channels.py",
        " and value not in {*self._secrets, url}",
        "",
        ALERTS_COMMAND,
    ),
    (
        "alerts: all that a command prints is kept",
        "alerts/channels.py",
        "(output + piece)[:OUTPUT_MAX]",
        "output + piece",
        ALERTS_COMMAND,
    ),
    (
        "alerts: passwords in addresses are told",
        "core/text.py",
        '_PASSWORD.sub(r"\\1***@", text)',
        "text",
        ALERTS_RULES,
    ),
    (
        "alerts: secrets behind a name are told",
        "core/text.py",
        'return _NAMED.sub(r"\\1***", _PASSWORD.sub(r"\\1***@", text))',
        'return _PASSWORD.sub(r"\\1***@", text)',
        ALERTS_RULES,
    ),
    ("pruner: a batch carries no term", "pruner.py", "BATCH, under=duty)", "BATCH)", PRUNER),
    (
        "pruner: the duty is not renewed in a long pass",
        "pruner.py",
        "(duty := self._post.duty()) is not None:",
        "(duty := self._post._duty) is not None:",
        PRUNER,
    ),
    ("pruner: it does not rest", "pruner.py", "self._rest(self._clock.lease() - began)", "pass", PRUNER),
    ("pruner: it rests no longer on a slow store", "pruner.py", "max(REST_MIN_S, REST * took_s)", "REST_MIN_S", PRUNER),
    ("pruner: a stop waits for all batches", "pruner.py", "while not self._stopping.is_set() and (", "while (", PRUNER),
    ("pruner: the duty is not given back", "pruner.py", "        self._post.resign()\n", "", PRUNER),
    (
        "pruner: an outage ends it",
        "pruner.py",
        "            except HoldfastError as error:\n                pause_s = trouble.met(error)\n",
        "            except HoldfastError:\n                return\n",
        PRUNER,
    ),
    (
        "pruner: what is refused is not told",
        "pruner.py",
        "            self._post.refused()\n",
        "            pass\n",
        PRUNER,
    ),
    ("retention: any state may be named", "core/retention.py", "if name not in ENDED:", "if False:", RETENTION),
    (
        "retention: any length will do",
        "core/retention.py",
        "if not SHORTEST_S <= age_s",
        "if False and not age_s",
        RETENTION,
    ),
    ("retention: a worker does not prune", "cli/worker.py", "        if found.keep:\n", "        if False:\n", PRUNING),
    ("retention: the daemon keeps what it was given", "cli/reaper.py", "name=who), pruner:", "name=who):", PRUNING),
    ("alerts: a message may be of any size", "alerts/messages.py", "> BODY_MAX and", "> 10**9 and", ALERTS_RULES),
    ("schedules: an old term may fire", "stores/sqlite/schedules.py", "batch.check_duty(db, under)", "pass", FIRE),
    (
        "schedules: an old term may fire in memory",
        "stores/memory/store.py",
        "            self._check_duty(under)\n            return [self._fire(each)",
        "            return [self._fire(each)",
        FIRE,
    ),
    (
        "schedules: PostgreSQL does not say that the term is old",
        "stores/postgres/schedules.py",
        "if not allowed:",
        "if False:",
        FIRE,
    ),
    (
        "schedules: an instant is stored although it was fired",
        "stores/sqlite/schedules.py",
        '"instant": firing.instant}).rowcount == 0',
        '"instant": firing.instant}).rowcount < 0',
        FIRE,
    ),
    (
        "schedules: the mark stays",
        "stores/sqlite/queries.sql",
        "SET mark = :instant, fired_at = :instant",
        "SET fired_at = mark",
        FIRE,
    ),
    (
        "schedules: the mark stays on PostgreSQL",
        "stores/postgres/queries.sql",
        "        mark = there.instant,\n        fired_at = there.instant,\n",
        "        fired_at = schedule.mark,\n",
        FIRE,
    ),
    (
        "schedules: PostgreSQL stores what was fired before",
        "stores/postgres/queries.sql",
        "    FROM clock, fired\n    ORDER BY place",
        "    FROM clock, free\n    ORDER BY place",
        FIRE,
    ),
    (
        "schedules: a new expression takes the mark back",
        "stores/sqlite/queries.sql",
        "there.mark, max(there.mark, excluded.mark))",
        "there.mark, excluded.mark)",
        FIRE,
    ),
    (
        "schedules: a new expression takes the mark back on PostgreSQL",
        "stores/postgres/queries.sql",
        "ELSE greatest(there.mark, excluded.mark) END",
        "ELSE excluded.mark END",
        FIRE,
    ),
    (
        "schedules: a declaration makes missed instants up",
        "stores/sqlite/queries.sql",
        "iif(there.spec = excluded.spec AND there.tz = excluded.tz, there.mark,",
        "iif(true, there.mark,",
        FIRE,
    ),
    (
        "schedules: a pause is made up for",
        "stores/sqlite/queries.sql",
        "iif(paused = 1 AND :paused = 0, max(mark, :wall), mark)",
        "mark",
        FIRE,
    ),
    (
        "schedules: a key that an open transaction holds is waited for",
        "stores/postgres/queries.sql",
        "        set_config('lock_timeout', %(lock_ms)s, true) AS lock_timeout\n),\nduty AS",
        "        %(lock_ms)s::text AS lock_timeout\n),\nduty AS",
        ("tests/stores/test_postgres_schedules.py",),
    ),
    (
        "schedules: a locked schedule is waited for",
        "stores/postgres/queries.sql",
        "    FOR NO KEY UPDATE OF schedule SKIP LOCKED",
        "    FOR NO KEY UPDATE OF schedule",
        ("tests/stores/test_postgres_schedules.py",),
    ),
    (
        "schedules: two jobs of one key in a batch are both said to be stored",
        "stores/postgres/schedules.py",
        "if not names.isdisjoint(own):",
        "if False:",
        FIRE,
    ),
    (
        "schedules: a batch with a locked schedule is left to the next look",
        "scheduler.py",
        "        if len(firings) > 1:\n            return fired + ",
        "        if False:\n            return fired + ",
        ("tests/test_scheduler.py",),
    ),
    (
        "schedules: a locked schedule holds up a batch again",
        "scheduler.py",
        "self._locked.update(each.schedule for each in locked)",
        "pass",
        ("tests/test_scheduler.py",),
    ),
    (
        "schedules: every scheduler fires",
        "scheduler.py",
        "        if duty is None:\n            return 0\n",
        "",
        SCHEDULER,
    ),
    (
        "schedules: a firing has any id",
        "scheduler.py",
        "id=fired_job_id(schedule.key, instant)",
        "id=new_id()",
        SCHEDULER,
    ),
    (
        "schedules: nobody is told that the duty was refused",
        "scheduler.py",
        "                self._post_at(self._app.store).refused()\n",
        "                pass\n",
        SCHEDULER,
    ),
    (
        "schedules: the duty is not given back",
        "scheduler.py",
        "            self._clock.wait(self._stopping, pause_s)\n        self.resign()",
        "            self._clock.wait(self._stopping, pause_s)",
        SCHEDULER,
    ),
    ("schedules: it looks blindly", "scheduler.py", "pause_s = min(pause_s, left_s + SOON_S)", "pass", SCHEDULER),
    (
        "schedules: what nobody declares is fired",
        "scheduler.py",
        "if is_declared(each, now) and not each.paused",
        "if not each.paused",
        SCHEDULER,
    ),
    (
        "schedules: an older program takes its declaration back",
        "scheduler.py",
        "again=self._declared_at is not None",
        "again=False",
        SCHEDULER,
    ),
    (
        "schedules: it forgets to say what it declares",
        "scheduler.py",
        "or now - self._declared_at >= DECLARE_S",
        "",
        SCHEDULER,
    ),
    (
        "schedules: one that cannot be understood stops the others",
        "scheduler.py",
        "            self._complain(schedule.key, error)  # the others must not suffer\n            return None",
        "            raise",
        SCHEDULER,
    ),
    (
        "schedules: two times in a gap are fired twice",
        "core/schedule.py",
        "        if first > last:\n",
        "        if True:\n",
        ("tests/core/test_schedule.py",),
    ),
    (
        "schedules: what was missed is never skipped",
        "core/schedule.py",
        "else max(schedule.mark, now - LATE_S)",
        "else schedule.mark",
        ("tests/core/test_schedule.py",),
    ),
    (
        "schedules: what was fired is fired again when others are skipped",
        "core/schedule.py",
        "else max(schedule.mark, now - LATE_S)",
        "else now - LATE_S",
        ("tests/core/test_schedule.py",),
    ),
    (
        "alerts: every worker tells",
        "alerts/teller.py",
        'f"alerts:{fingerprint(alerts)}"',
        'f"alerts:{new_id()}"',
        ALERTS_TELLER,
    ),
    (
        "alerts: who tells other things takes the duty",
        "alerts/teller.py",
        'f"alerts:{fingerprint(alerts)}"',
        '"alerts"',
        ALERTS_TELLER,
    ),
    (
        "alerts: a successor tells everything again",
        "alerts/teller.py",
        "        elif self._stood_by_at is not None:\n",
        "        elif False:\n",
        ALERTS_TELLER,
    ),
    (
        "alerts: a successor leaves out what nobody told",
        "alerts/teller.py",
        "self._stood_by_at - TTL_S - 2 * self._interval_s",
        "self._stood_by_at",
        ALERTS_TELLER,
    ),
    ("alerts: lines that become visible late are left out", "alerts/teller.py", " - OVERLAP_S)", ")", ALERTS_TELLER),
    (
        "alerts: isolated jobs die with their worker",
        "alerts/teller.py",
        "death=death_of(event)",
        'death=event.worker or ""',
        ALERTS_TELLER,
    ),
    ("alerts: what a person did is told", "alerts/teller.py", " and event.actor is None", "", ALERTS_TELLER),
    (
        "alerts: a channel that hangs holds up the others",
        "alerts/teller.py",
        "self._outboxes[channel].put(message)",
        "channel.send(message, self._store.url)",
        ALERTS_TELLER,
    ),
    (
        "alerts: any number of messages wait",
        "alerts/teller.py",
        "queue.Queue(WAITING_MAX)",
        "queue.Queue()",
        ALERTS_TELLER,
    ),
    (
        "alerts: each failure is logged",
        "alerts/teller.py",
        "if message.about in self._complained:",
        "if False:",
        ALERTS_TELLER,
    ),
    (
        "alerts: what a channel raised is logged",
        "alerts/teller.py",
        "type(error).__name__)  #",
        "str(error))  #",
        ALERTS_TELLER,
    ),
    (
        "alerts: what cannot get better is tried again",
        "alerts/teller.py",
        "not left or not sent.again or",
        "not left or",
        ALERTS_TELLER,
    ),
    (
        "alerts: a failing channel is tried for ever",
        "alerts/teller.py",
        "reversed(range(TRIES))",
        "reversed(range(9 * TRIES))",
        ALERTS_TELLER,
    ),
    (
        "alerts: what the end brought is left out",
        "alerts/teller.py",
        '        try:\n            self.look()\n        except Exception as error:\n            log.warning("alerts: the last look',
        '        try:\n            pass\n        except Exception as error:\n            log.warning("alerts: the last look',
        ALERTS_TELLER,
    ),
    (
        "alerts: more is told at once",
        "alerts/rules.py",
        " or (incident is not None and now - incident.told_at < self._limits.again_s)",
        "",
        ALERTS_RULES,
    ),
    (
        "alerts: what came in between may leave untold",
        "alerts/rules.py",
        "self.again_s <= self.window_s / 2:",
        "self.again_s <= 10**9:",
        ALERTS_RULES,
    ),
    (
        "alerts: an answered question is told again",
        "alerts/rules.py",
        "if line.seq not in told]",
        "if line.seq not in told or key not in self._open]",
        ALERTS_RULES,
    ),
    (
        "alerts: a held job is over after a window",
        "alerts/rules.py",
        "return task not in held",
        "return finding is None",
        ALERTS_RULES,
    ),
    (
        "alerts: the last crash is told twice",
        "alerts/rules.py",
        " if (line.job_id, line.fence) not in ended]",
        "]",
        ALERTS_RULES,
    ),
    (
        "alerts: a rate flutters",
        "alerts/rules.py",
        "limits.zombies_max // 2 if key in known else limits.zombies_max",
        "limits.zombies_max",
        ALERTS_RULES,
    ),
    (
        "alerts: old zombies count",
        "alerts/rules.py",
        "if now - limits.window_s < line.at <= now]",
        "if line.at <= now]",
        ALERTS_RULES,
    ),
    (
        "alerts: a poison job is a problem of the fleet",
        "alerts/rules.py",
        "if len(there) == 1 and (len(deaths) > 1 or _jobs(zombies) == 1):",
        "if False:",
        ALERTS_RULES,
    ),
    (
        "alerts: any late report makes a zombie false",
        "alerts/rules.py",
        "    false = [line for line in zombies if (line.job_id, line.fence) in late]\n",
        "    false = [line for line in zombies if line.job_id in {job for job, _ in late}]\n    late |= {(line.job_id, line.fence): line for line in false}\n",
        ALERTS_RULES,
    ),
    (
        "workflows: an answer counts for the next question",
        "workflow/verbs.py",
        'once = f"{id}:signal:{name}:{row.fence}"',
        "once = new_id()",
        WORKFLOWS_CLI,
    ),
    (
        "workflows: an answer is given once for ever",
        "workflow/verbs.py",
        'once = f"{id}:signal:{name}:{row.fence}"',
        'once = f"{id}:signal:{name}"',
        WORKFLOWS_CLI,
    ),
    (
        "workflows: a fork waits for a child that wakes another",
        "workflow/verbs.py",
        "if child is not None and child.ended_at is None:",
        "if False:",
        WORKFLOWS_CLI,
    ),
    (
        "workflows: a step that returned nothing was not answered for",
        "app.py",
        "result is not ... and (result is not None or row.open_step is not None)",
        "result is not ... and result is not None",
        WORKFLOWS_CLI,
    ),
    (
        "why: somebody is offered to say that a whole workflow happened",
        "insight/why.py",
        '() if job.workflow else (("it happened", happened),)',
        '(("it happened", happened),)',
        WORKFLOWS_CLI,
    ),
    (
        "why: a rollback tells of ways out that it has closed",
        "insight/why.py",
        "told.replace(WAYS_OUT, _OLD_CODE) if job.rolling_back else told",
        "told",
        WORKFLOWS_CLI,
    ),
    (
        "why: what was given up half undone is said to be brought back",
        "insight/why.py",
        'return "go on undoing" if job.rolling_back else "bring it back", command',
        'return "bring it back", command',
        WORKFLOWS_CLI,
    ),
    (
        "steps: all open ones are asked about now",
        "insight/steps.py",
        '"asked about later" if place else "asked about now"',
        '"asked about now"',
        WORKFLOWS_CLI,
    ),
    (
        "steps: a step that is to be run again is not marked",
        "insight/steps.py",
        "for step in again if step.repeatable or is_paused(step)}",
        "for step in again if False}",
        WORKFLOWS_CLI,
    ),
    (
        "deaths: one is shown in a step that another attempt began",
        "insight/deaths.py",
        "if step.fence == event.fence and step.kind not in WAITS and ",
        "if step.kind not in WAITS and ",
        DEATHS,
    ),
    (
        "deaths: one is shown at a step that was set aside before it",
        "insight/deaths.py",
        "if until >= event.fence and all(",
        "if all(",
        DEATHS,
    ),
    (
        "deaths: one is shown at a step that took the place of one that was set aside",
        "insight/deaths.py",
        "step.position < place for fence, place in first.items() if event.fence <= fence < until",
        "True for fence, place in first.items() if event.fence <= fence < until",
        DEATHS,
    ),
    (
        "deaths: one is shown in a step that was recorded before",
        "insight/deaths.py",
        "step.ended_at is not None and step.ended_at <= event.at",
        "False",
        DEATHS,
    ),
    (
        "deaths: what was told before it was recorded counts by its name",
        "insight/deaths.py",
        "if step.name == named != told][:1]",
        "if step.name == named][:1]",
        DEATHS,
    ),
    (
        "deaths: an undo that its own attempt has done is shown as interrupted",
        "insight/deaths.py",
        'step.state == "undone" and step.fence <= event.fence',
        "False",
        DEATHS,
    ),
    (
        "deaths: a step that was told and never recorded is not known",
        "insight/deaths.py",
        "for path, name in sorted(lost.items()):",
        "for path, name in ():",
        DEATHS,
    ),
    (
        "deaths: one is shown behind what it waited for",
        "insight/deaths.py",
        "return _are_branches(path, other) or ",
        "return True or ",
        DEATHS,
    ),
    (
        "deaths: one vanishes from a branch that was begun anew",
        "insight/deaths.py",
        "if is_written and step.fence > event.fence and ",
        "if False and ",
        DEATHS,
    ),
    (
        "deaths: one is shown in a branch whose plain step nobody knew of",
        "insight/deaths.py",
        "if is_written and step.fence > event.fence and ",
        "if step.fence > event.fence and ",
        DEATHS,
    ),
    (
        "deaths: one is shown behind the step of a branch",
        "insight/deaths.py",
        "            places.append(step.path)\n",
        "",
        DEATHS,
    ),
    (
        "deaths: one is shown in a task that began later",
        "insight/deaths.py",
        "_are_beside if step.position < last else _are_branches",
        "_are_beside",
        DEATHS,
    ),
    (
        "deaths: one vanishes from a task beside that was begun anew",
        "insight/deaths.py",
        "_are_beside if step.position < last else _are_branches",
        "_are_branches",
        DEATHS,
    ),
    (
        "deaths: branches in a task beside are not known as such",
        "insight/deaths.py",
        'common += "~" not in one',
        "common += 1",
        DEATHS,
    ),
    (
        "steps: short ones cost a beat",
        "worker/attempt.py",
        "steps != self._told and now - self._seen_at >= SHORT_S",
        "steps != self._told",
        ("tests/worker/test_keeper.py",),
    ),
    (
        "steps: one that was told stays when it is over",
        "worker/keeper.py",
        "if not each.reported or each.has_other_steps(now)}",
        "if not each.reported}",
        ("tests/worker/test_keeper.py",),
    ),
    (
        "steps: what did not get through is not told again",
        "worker/attempt.py",
        "        self._told = None\n",
        "",
        ("tests/worker/test_keeper.py",),
    ),
    (
        "steps: memory: the next attempt is in those of the last",
        "core/rows.py",
        "attempt=job.attempt + 1, in_steps=None,",
        "attempt=job.attempt + 1,",
        (f"{CONFORMANCE}/test_beat.py",),
    ),
    (
        "steps: sqlite: the next attempt is in those of the last",
        "stores/sqlite/queries.sql",
        "    moved_at = NULL,\n    in_steps = NULL\n",
        "    moved_at = NULL\n",
        (f"{CONFORMANCE}/test_beat.py",),
    ),
    (
        "steps: postgres: the next attempt is in those of the last",
        "stores/postgres/queries.sql",
        "        moved_at = NULL,\n        in_steps = NULL\n",
        "        moved_at = NULL\n",
        (f"{CONFORMANCE}/test_beat.py",),
    ),
    (
        "steps: one that is run again took as long as nobody ran it",
        "workflow/ledger.py",
        'if call.kind == "step":  # what it takes',
        "if False:  # what it takes",
        ("tests/workflow/test_undo.py",),
    ),
    (
        "health: a lease that is not renewed is no sign",
        "insight/health.py",
        "if left_s < job.beat_s:",
        "if False:",
        HEALTH,
    ),
    (
        "health: losses of before count for what was taken back",
        "insight/health.py",
        "if fresh_since([event]):",
        "if False:",
        HEALTH,
    ),
    (
        "workflows: a step that raised is told of nobody",
        "workflow/ledger.py",
        "self.attempt.failed[call.path] = failed",
        "pass",
        ("tests/workflow/test_retries.py",),
    ),
    (
        "traces: a mistake of ours is hidden",
        "worker/frames.py",
        "if not answers and frames[-1].name not in _CALLERS:",
        "if False:",
        ("tests/worker/test_frames.py",),
    ),
    (
        "traces: what calls a step is shown",
        "worker/frames.py",
        "not answers and frames[-1].name not in _CALLERS:",
        "not answers:",
        ("tests/worker/test_frames.py",),
    ),
    (
        "workflows: memory: an answer is given back",
        "stores/memory/workflows.py",
        "            if each.name.startswith(APPROVAL):",
        "            if False:",
        (f"{CONFORMANCE}/test_move_steps.py",),
    ),
    (
        "workflows: sqlite: an answer is given back",
        "stores/sqlite/queries.sql",
        "iif(name GLOB 'approve:*', coalesce(taken, :aside_from), NULL)",
        "NULL",
        (f"{CONFORMANCE}/test_move_steps.py",),
    ),
    (
        "workflows: postgres: an answer is given back",
        "stores/postgres/queries.sql",
        "CASE WHEN starts_with(name, 'approve:') THEN coalesce(taken, %(aside_from)s) END",
        "NULL",
        (f"{CONFORMANCE}/test_move_steps.py",),
    ),
    (
        "workflows: memory: a fork undoes what it did not do",
        "stores/memory/workflows.py",
        "attempt=0, has_undo=False)",
        "attempt=0)",
        (f"{CONFORMANCE}/test_fork.py",),
    ),
    (
        "children outlive their supervisor",
        "cli/child.py",
        'if b"now" in words or not words:',
        'if b"now" in words:',
        CRASH,
    ),
    (
        "the log of an attempt stays on the row",
        "stores/sqlite/queries.sql",
        "    ended_at = iif(ending.ended, :wall, NULL),\n    log = NULL\n",
        "    ended_at = iif(ending.ended, :wall, NULL)\n",
        STORE,
    ),
    (
        "the log of an attempt stays on the row after a success",
        "stores/sqlite/queries.sql",
        "    ended_at = :wall,\n    log = NULL\n",
        "    ended_at = :wall\n",
        STORE,
    ),
    (
        "postgres: the log of an attempt stays on the row",
        "stores/postgres/queries.sql",
        "        ended_at = CASE WHEN ending.ended THEN clock.wall END,\n        log = NULL\n",
        "        ended_at = CASE WHEN ending.ended THEN clock.wall END\n",
        POSTGRES,
    ),
    (
        "postgres: the log of an attempt stays on the row after a success",
        "stores/postgres/queries.sql",
        "        ended_at = clock.wall,\n        log = NULL\n",
        "        ended_at = clock.wall\n",
        POSTGRES,
    ),
    (
        "a thread that goes on logs for the attempt before",
        "worker/attempt.py",
        "                    whose.set(None)\n                return",
        "                return",
        LINES,
    ),
    (
        "a record of another attempt of the cell is taken",
        "worker/lines.py",
        "attempt is not None and word.attempt == attempt.key",
        "attempt is not None",
        LINES,
    ),
    (
        "a record that cannot be written breaks the job",
        "worker/lines.py",
        "        except Exception as error:\n            line =",
        "        except ImportError as error:\n            line =",
        LINES,
    ),
    (
        "lines are as long as they like",
        "worker/lines.py",
        "            if room < 0:\n",
        "            if False:\n",
        LINES,
    ),
    (
        "secrets are in the lines",
        "core/text.py",
        '"⏎".join(hide_secrets(text[: 2 * most]).splitlines())',
        '"⏎".join(text[: 2 * most].splitlines())',
        LINES,
    ),
    (
        "half a secret is not recognised",
        "core/text.py",
        "hide_secrets(text[: 2 * most])",
        "hide_secrets(text[:most])",
        LINES,
    ),
    (
        "the first worker to stop makes the others deaf",
        "worker/lines.py",
        "                if not _places[place]:\n",
        "                if True:\n",
        LINES,
    ),
    (
        "nobody sees warnings where logging is not set up",
        "worker/lines.py",
        "record.levelno >= last.level and self._is_alone(record)",
        "False",
        LINES,
    ),
    (
        "the same lines go with every beat",
        "worker/lines.py",
        "        if not self.fresh:\n            return None\n",
        "",
        LINES,
    ),
    (
        "what a beat lost is not told again",
        "worker/attempt.py",
        "            self.lines.fresh = True\n",
        "            pass\n",
        LINES,
    ),
    (
        "a short job that logs costs a beat",
        "worker/attempt.py",
        "or now - self.started_at >= SHORT_S",
        "or True",
        LINES,
    ),
    ("a short job claimed ahead costs a beat", "worker/attempt.py", "and now - self.started_at >= SHORT_S", "", KEEPER),
    (
        "the store does not hear that a job claimed ahead has begun",
        "worker/keeper.py",
        "            due |= {each for each in attempts if each.has_begun_unseen(now)}\n",
        "",
        KEEPER,
    ),
    (
        "a job that was lost before begins before the store knows",
        "worker/attempt.py",
        "return not self.known_started and self.job.zombies > 0",
        "return False",
        KEEPER,
    ),
    (
        "one that was stopped before it began keeps its slot",
        "worker/keeper.py",
        "        self._begin([attempt for attempt in self.all() if attempt.announcing and attempt.interrupt is not None])\n",
        "        return\n",
        KEEPER,
    ),
    (
        "a job begins although the store could not be told",
        "worker/keeper.py",
        "if attempt.announcing and attempt.known_started]",
        "if attempt.announcing]",
        KEEPER,
    ),
    ("the budget of a tick leaves a long job in front", "worker/executors.py", ", budget_spent=spent)", ")", TICK),
    (
        "jobs that had not begun make a storm",
        "reaper.py",
        "for job in self._jobs_of(worker) if job.begun)",
        "for job in self._jobs_of(worker))",
        REAPER,
    ),
    (
        "a storm of leases counts jobs that had not begun",
        "reaper.py",
        "_spread(sum(job.begun for job in ripe))",
        "_spread(len(ripe))",
        REAPER,
    ),
    (
        "a job that had not begun is charged for its worker",
        "reaper.py",
        "            started=job.begun,\n",
        "",
        REAPER,
    ),
    (
        "postgres: a job comes back behind the cursor of others",
        "stores/postgres/frontier.py",
        "            self._ends[lane] = min(place, self._ends.get(lane, place))\n",
        "            pass\n",
        POSTGRES,
    ),
    (
        "postgres: the answer to a claim hides what came back during it",
        "stores/postgres/frontier.py",
        "            self._returned[queue, priority] = min(place, self._returned.get((queue, priority), place))\n",
        "            self._ends[queue, priority] = place\n",
        POSTGRES,
    ),
    (
        "postgres: a session that was cut has missed nothing",
        "stores/postgres/frontier.py",
        "            self._full_again_at = 0.0\n        if not places",
        "            pass\n        if not places",
        POSTGRES,
    ),
    ("a beat carries the lines of everybody", "worker/keeper.py", "[:TALKERS_MAX]", "", LINES),
    (
        "who talks most is heard alone",
        "worker/keeper.py",
        "key=lambda attempt: attempt.window.sent_at",
        "key=lambda attempt: attempt.key",
        LINES,
    ),
    (
        "lines are told as often as the keeper looks",
        "worker/keeper.py",
        "        talkers = _talkers(attempts, now)\n",
        "        talkers = _talkers(attempts, now)\n        due |= talkers\n",
        LINES,
    ),
    ("a refused record goes unnoticed", "workflow/ledger.py", "if answer is Answer.REFUSED:", "if False:", WORKFLOW),
    (
        "undos run forwards",
        "core/flow.py",
        "key=lambda step: -step.position",
        "key=lambda step: step.position",
        WORKFLOW,
    ),
    (
        "a recorded step runs again",
        "workflow/ledger.py",
        'return step is not None and step.state != "started"',
        "return False",
        WORKFLOW,
    ),
    (
        "a step that must not be repeated is not written down before",
        "workflow/run.py",
        "            if base.has_undo or not base.repeatable:\n",
        "            if base.has_undo:\n",
        WORKFLOW,
    ),
    (
        "a long pause between two tries keeps its slot",
        "workflow/run.py",
        "        if left > SHORT_S:\n            yield from self._park(call, Parking(instant))\n",
        "",
        RETRIES,
    ),
    (
        "whoever wakes early does not wait for the rest of a pause",
        "workflow/run.py",
        "                yield from self._next_try(call, base.retry_at)\n",
        "",
        RETRIES,
    ),
    (
        "a failed try is not written down",
        "workflow/run.py",
        "            yield from self._begin(call, base)\n\n    def _next_try",
        "\n    def _next_try",
        RETRIES,
    ),
    (
        "a step has more tries than it says",
        "workflow/run.py",
        "base.tries >= retry.attempts_max",
        "base.tries > retry.attempts_max",
        RETRIES,
    ),
    (
        "a workflow that is run again gives its step no new tries",
        "workflow/run.py",
        "if base.tries > 1 and base.repeatable:",
        "if False:",
        RETRIES,
    ),
    (
        "a step whose result cannot be recorded is done again",
        "workflow/run.py",
        "                retry = None  # it has happened",
        "                # it has happened",
        RETRIES,
    ),
    (
        "the error of a try that failed stands beside a result",
        "workflow/run.py",
        "replace(base, retry_at=None, error=None, error_kind=None, started_at=self._wall())",
        "replace(base, retry_at=None, started_at=self._wall())",
        RETRIES,
    ),
    (
        "a person is asked about a step that pauses",
        "core/flow.py",
        "if not is_answered(step) and not is_paused(step))",
        "if not is_answered(step))",
        CORE,
    ),
    (
        "a step that pauses counts as open",
        "workflow/ledger.py",
        'if step.state == "started" and not is_paused(step):',
        'if step.state == "started":',
        RETRIES,
    ),
    (
        "who died between two tries died in the step",
        "insight/deaths.py",
        "        if not is_paused(step)\n",
        "",
        DEATHS,
    ),
    (
        "an error that leaves the workflow is recorded",
        "workflow/run.py",
        "yield from self._failed(call, base, error, at_once=not base.repeatable)",
        "yield from self._failed(call, base, error, at_once=True)",
        WORKFLOW,
    ),
    (
        "an error of a step that must not be repeated is not recorded",
        "workflow/run.py",
        "yield from self._failed(call, base, error, at_once=not base.repeatable)",
        "yield from self._failed(call, base, error, at_once=False)",
        WORKFLOW,
    ),
    (
        "records that the code did not ask for are not noticed",
        "workflow/threads.py",
        "    driver.run.replay.check_all_met()\n",
        "",
        WORKFLOW,
    ),
    (
        "an undo is started again beside itself",
        "core/verdict.py",
        '        if getattr(outcome, "goes_on", False):\n            reason = f"{_reason(outcome)}; its undo',
        '        if False:\n            reason = f"{_reason(outcome)}; its undo',
        ("tests/workflow/test_undo.py",),
    ),
    (
        "on the event loop a function that goes on is not waited for",
        "workflow/loop.py",
        "            call.stop(Interrupted)\n            await _ended(running)\n",
        "            call.stop(Interrupted)\n",
        ("tests/workflow/test_undo.py",),
    ),
    (
        "on the event loop a function whose time is up goes on",
        "workflow/loop.py",
        "            call.stop(StepTimeout)\n            await _ended(running)\n",
        "            call.stop(StepTimeout)\n",
        ("tests/workflow/test_undo.py",),
    ),
    (
        "every wait reads the inbox",
        "workflow/run.py",
        "SIGNALS_READ + self._taking",
        "1 + self._taking",
        ("tests/workflow/test_waiting.py",),
    ),
    (
        "an undo gets what the code passes today",
        "workflow/run.py",
        "            return signature_of(undo.of, self.app.codec).decode(step.arguments)\n",
        "            return undo.args, undo.kwargs\n",
        UNDO_ARGUMENTS,
    ),
    (
        "what an undo gets by position it gets by name",
        "core/payload.py",
        'return self._text(self._lowered(args, kwargs), {"positional": len(args)})',
        'return self._text(self._lowered(args, kwargs), {"positional": 0})',
        UNDO_ARGUMENTS,
    ),
    (
        "the arguments of a step are recorded after it ran",
        "workflow/run.py",
        "            base = replace(base, arguments=signature_of(fn, self.app.codec).encode(args, kwargs))\n",
        "            pass\n",
        UNDO_ARGUMENTS,
    ),
    (
        "a line that has parked goes on",
        "workflow/threads.py",
        "        if scope.parked is not None:\n",
        "        if False:\n",
        PARKING,
    ),
    (
        "lines that were parked on the event loop go on",
        "workflow/loop.py",
        "        if self.parking is not None:\n            if not is_on_its_way",
        "        if False:\n            if not is_on_its_way",
        PARKING,
    ),
    (
        "what code makes of a park is its end",
        "workflow/run.py",
        "        parked = self.main.parked\n",
        "        parked = None\n",
        PARKING,
    ),
    (
        "a branch makes something else of its wait",
        "workflow/threads.py",
        "        return parked or line.error\n",
        "        return line.error\n",
        PARKING,
    ),
    (
        "a gather that waits does not park the line above it",
        "workflow/threads.py",
        "self._park(scope, parked := merged(waits))",
        "parked = merged(waits)",
        PARKING,
    ),
    (
        "code that has parked and does not leave keeps its slot",
        "worker/watch.py",
        "            elif attempt.parked is not None and now - attempt.parked_at >= LEAVE_S:\n",
        "            elif False:\n",
        PARKING,
    ),
    (
        "code that has parked and does not leave is not told",
        "workflow/run.py",
        "        return self.app.clock.lease() - self.attempt.parked_at >= LINGER_S\n",
        "        return False\n",
        PARKING,
    ),
    (
        "a branch that has parked and does not leave keeps its slot",
        "workflow/threads.py",
        "                    self._park_if_all_wait(scope, lines)\n",
        "                    pass\n",
        PARKING,
    ),
    (
        "cleanup of parked code hangs for ever",
        "workflow/loop.py",
        "        self._schedule(self._cancel_lines)\n",
        "",
        PARKING,
    ),
    (
        "what a handler left behind speaks for the next job of its process",
        "worker/inside.py",
        "        attempt.end()  # first: what it left behind must not speak for the next one\n",
        "",
        ("tests/worker/test_isolation.py",),
    ),
    (
        "what a handler left behind may use its context",
        "worker/context.py",
        "        if self._attempt.ended:",
        "        if False:",
        ("tests/worker/test_runner.py",),
    ),
    (
        "a result that does not fit its annotation comes out in a replay only",
        "workflow/run.py",
        "        if type(value) in _PLAIN and (shape is None or shape.is_kept(value)):",
        "        if type(value) in _PLAIN:",
        ("tests/workflow/test_steps.py",),
    ),
    (
        "a result is of the type that its function returned until a replay",
        "workflow/run.py",
        "        if type(value) in _PLAIN and (shape is None or",
        "        if isinstance(value, _PLAIN) and (shape is None or",
        ("tests/workflow/test_steps.py",),
    ),
    (
        "an exception that a replay cannot rebuild is raised as it is at first",
        "workflow/raised.py",
        "    if whole and type(again) is type(error) and",
        "    if error and",
        RAISED,
    ),
    (
        "an exception comes back without its attributes",
        "workflow/raised.py",
        "    for name, value in attributes.items():\n        if not isinstance",
        "    for name, value in ():\n        if not isinstance",
        RAISED,
    ),
    (
        "an exception comes back with another message",
        "workflow/raised.py",
        "    if _name_of(found) != name or _text_of(error)",
        "    if _name_of(found) != name and _text_of(error)",
        RAISED,
    ),
    (
        "a StopIteration goes into a future that cannot carry it",
        "workflow/loop.py",
        "    except StopIteration as error:\n        raise StepFailed",
        "    except ZeroDivisionError as error:\n        raise StepFailed",
        RAISED,
    ),
    (
        "a step or an undo may use the flow",
        "workflow/run.py",
        "        if isinstance(scope, Do):\n            self.check_goes_on()",
        "        if isinstance(scope, Do):\n            return self.main\n            self.check_goes_on()",
        MISUSE,
    ),
    (
        "a workflow may use the flow of another one",
        "workflow/run.py",
        "        if scope is not None and scope.main is not self.main:",
        "        if False:",
        MISUSE,
    ),
    (
        "an interrupt that a handler raises by itself is a release",
        "worker/executors.py",
        "    asked = attempt.interrupt is not None or isinstance(error, errors.Parking | errors.Diverged)",
        "    asked = True",
        ("tests/worker/test_runner.py",),
    ),
    (
        "a cleanup is taken for code that caught the signal to park",
        "workflow/caught.py",
        "            return True\n        error = error.__context__",
        "            return False\n        error = error.__context__",
        PARKING,
    ),
    (
        "code that caught the signal to park is told every time",
        "workflow/caught.py",
        "        return False\n    log.warning(",
        "        pass\n    log.warning(",
        PARKING,
    ),
    (
        "code that diverged goes on with its cleanup",
        "workflow/run.py",
        "            return self.replay.meet(path, kind, name)\n        except Diverged as error:\n"
        "            raise self.stop(error) from None\n",
        "            return self.replay.meet(path, kind, name)\n        except Diverged as error:\n            raise\n",
        PARKING,
    ),
    (
        "a step that was run too early is not noticed",
        "workflow/run.py",
        "        if call.was_passed and self.in_order:\n",
        "        if False:\n",
        PARKING,
    ),
    (
        "what an ended workflow has left behind goes on",
        "workflow/ledger.py",
        '        self.stop(LeaseLost("the attempt of this workflow has ended"))\n',
        "        pass\n",
        ("tests/workflow/test_leftovers.py",),
    ),
    (
        "branches go on that have lost their others",
        "workflow/threads.py",
        "                line.stop(type(error) if isinstance(error, Interrupted) else Interrupted)\n",
        "                pass\n",
        ("tests/workflow/test_leftovers.py",),
    ),
    (
        "nobody waits for a branch that was interrupted",
        "workflow/threads.py",
        "                while not line.has_ended():  # without a limit",
        "                while False:  # without a limit",
        GATHER,
    ),
    (
        "a call is carried out in an asyncio task of the code",
        "workflow/loop.py",
        "        if line.owner is not _current_task():\n",
        "        if False:\n",
        OWN_TASKS,
    ),
    (
        "code goes on by a call that was refused",
        "workflow/loop.py",
        "        return self.run.stop(Misused(why))\n",
        "        return Misused(why)\n",
        OWN_TASKS,
    ),
    (
        "code that waits for what was refused hangs for ever",
        "workflow/loop.py",
        "        self._loop.call_soon_threadsafe(self._schedule, self._leave)\n",
        "",
        OWN_TASKS,
    ),
    (
        "code goes on by a call that it has cancelled",
        "workflow/loop.py",
        "            elif not self._line().dropped and self.run.attempt.interrupt is None and self.run.stopped is None:\n",
        "            elif False:\n",
        OWN_TASKS,
    ),
    (
        "a call that is not awaited is skipped at the end",
        "workflow/loop.py",
        "                self._check_awaited(self._made.get(self.run.main, ()))\n",
        "                pass\n",
        OWN_TASKS,
    ),
    (
        "a call that is not awaited is skipped by the next one",
        "workflow/loop.py",
        "        self._check_awaited(takewhile(lambda each: each is not made, self._made[made.line]))\n",
        "",
        OWN_TASKS,
    ),
    (
        "a call that is not awaited is skipped in a branch",
        "workflow/loop.py",
        "            self._check_awaited(self._made.get(line, ()))\n",
        "",
        OWN_TASKS,
    ),
    (
        "a call that is not awaited is skipped by a gather",
        "workflow/loop.py",
        "        self._check_awaited(waiting.values())\n",
        "",
        OWN_TASKS,
    ),
    (
        "a group of tasks hides that a rollback has seen all undos",
        "workflow/loop.py",
        "            except* (Rewinding, Exception):",
        "            except (Rewinding, Exception):",
        OWN_TASKS,
    ),
    (
        "the undo of a call that is handed to a gather is not known",
        "workflow/flow.py",
        "            self._run.learn_undo(call, undo, fn, args, kwargs)\n",
        "            pass\n",
        OWN_TASKS,
    ),
    (
        "results come in a replay as fast as they are read",
        "workflow/loop.py",
        "        if not self._replays or (ended_at is not None and not call.is_beside):\n",
        "        if True:\n",
        RACES,
    ),
    (
        "results come in a replay in the order of the calls",
        "workflow/loop.py",
        "[min(self._turns, key=lambda future: self._turns[future])]",
        "[next(iter(self._turns))]",
        RACES,
    ),
    (
        "a branch that was dropped goes on in a replay",
        "workflow/run.py",
        "        if call.path in self.dropped:\n",
        "        if False:\n",
        GATHER,
    ),
    (
        "a gather that failed is not recorded",
        "workflow/run.py",
        "        if waits_at and isinstance(error, Exception) and self.replay.at(path) is None:\n",
        "        if False:\n",
        GATHER,
    ),
    (
        "a gather that failed once may succeed",
        "core/flow.py",
        "        step = self._steps.get(path)\n        if step is not None:\n            raise Diverged(\n",
        "        step = self._steps.get(path)\n        if False:\n            raise Diverged(\n",
        GATHER,
    ),
    (
        "a failed branch on the event loop is not told while another one waits",
        "workflow/loop.py",
        "        if failed:\n            self._drop(",
        "        if False:\n            self._drop(",
        GATHER,
    ),
    (
        "a dropped branch on the event loop goes on",
        "workflow/loop.py",
        "        if scope.dropped:\n",
        "        if False:\n",
        GATHER,
    ),
    (
        "a dropped branch that catches its cancellation hangs for ever",
        "workflow/loop.py",
        "        self._loop.call_later(CLEANUP_S, self._drop, path, lines)\n",
        "",
        GATHER,
    ),
    (
        "what was caught is not recorded before a workflow waits",
        "workflow/run.py",
        "        yield from self.write_caught(caught)\n        yield Wait",
        "        yield Wait",
        GATHER,
    ),
    (
        "what a branch in a thread has caught is not recorded when it ends",
        "workflow/threads.py",
        "            self._driver.drive(self._driver.run.write_caught(self.scope.take_failed()))\n",
        "            pass\n",
        GATHER,
    ),
    (
        "what a branch on the event loop has caught is not recorded when it ends",
        "workflow/loop.py",
        "            await self._driven(self.run.write_caught(line.take_failed()))\n",
        "            pass\n",
        GATHER,
    ),
    (
        "another step at the same place is taken for it",
        "core/flow.py",
        "if (step.kind, step.name) != (kind, name):",
        "if False:",
        WORKFLOW,
    ),
    (
        "an interrupted undo counts as done",
        "core/flow.py",
        'return step.has_undo and step.state != "undone"',
        'return step.has_undo and step.state == "recorded"',
        WORKFLOW,
    ),
    (
        "a step that raised is not undone",
        "core/flow.py",
        'return step.has_undo and step.state != "undone"',
        'return step.has_undo and step.state != "undone" and step.error is None',
        WORKFLOW,
    ),
    (
        "what happened is repeated by a retry from an earlier step, or a fork",
        "core/flow.py",
        'not step.repeatable and step.state != "undone"',
        'not step.repeatable and step.state == "started"',
        CORE,
    ),
    (
        "an undo runs beside the step that it undoes",
        "worker/executors.py",
        "goes_on = bool(given_up)",
        "goes_on = False",
        WORKFLOW,
    ),
    (
        "who asked for a rollback is not heard",
        "worker/attempt.py",
        "error=row.error if row and undo else None",
        "error=None",
        WORKFLOW,
    ),
    (
        "a sleep on the event loop is over once a call beside it is recorded",
        "workflow/run.py",
        "is_over = self.in_order and call.was_passed",
        "is_over = call.was_passed",
        WAITING,
    ),
    (
        "a clock that was set back begins a sleep anew",
        "workflow/run.py",
        "is_over = self.in_order and call.was_passed",
        "is_over = False",
        PARKING,
    ),
    (
        "two branches take the same signal",
        "workflow/run.py",
        "deque(each for each in read if each.id not in self._signals_taken)",
        "deque(read)",
        WORKFLOW,
    ),
    (
        "a wake-up is lost on SQLite",
        "stores/sqlite/queries.sql",
        "state = iif(ending.state = 'waiting' AND job.inbox <> ending.inbox, 'ready', ending.state)",
        "state = ending.state",
        (f"{CONFORMANCE}/test_parking.py",),
    ),
    (
        "a wake-up is lost on PostgreSQL",
        "stores/postgres/queries.sql",
        "state = CASE WHEN ending.state = 'waiting' AND job.inbox <> ending.inbox THEN 'ready' ELSE ending.state END",
        "state = ending.state",
        (f"{CONFORMANCE}/test_parking.py",),
    ),
    (
        "nobody wakes a timer",
        "workflow/alarm.py",
        "        earliest = self._store.rouse()\n",
        "        earliest = None\n",
        WORKFLOW,
    ),
    (
        "a sleep is ended by any signal",
        "workflow/run.py",
        "yield from self._park(call, Parking(wake_at))",
        "yield from self._park(call, Parking(wake_at, inbox=self.attempt.job.inbox))",
        ("tests/workflow/test_waiting.py",),
    ),
    (
        "postgres: a child is locked before its parent",
        "stores/postgres/workflows.py",
        "if verdict.state in ENDED:  # then",
        "if False:  # then",
        LOCKS,
    ),
    (
        "postgres: the end of a child waits for its parent's locked row",
        "stores/postgres/batch.py",
        "waits = [not locked.isdisjoint((each.lease.job_id, each.parent)) for each in settlements]",
        "waits = [False for each in settlements]",
        LOCKS,
    ),
    (
        "postgres: a signal waits for the locked row of its workflow",
        "stores/postgres/workflows.py",
        "if batch.lock_rows(q, db, touched):",
        "if False:",
        LOCKS,
    ),
    (
        "postgres: a child waits for a key that an open transaction holds",
        "stores/postgres/workflows.py",
        "if any(new.key is not None for new in record.jobs):",
        "if False:",
        LOCKS,
    ),
    (
        "postgres: a record overtakes an earlier one whose row was locked",
        "stores/postgres/workflows.py",
        "waits = [record.lease.job_id in locked for record in part]",
        "waits = [False for record in part]",
        LOCKS,
    ),
    (
        "postgres: a step that meets a locked row is refused",
        "stores/postgres/workflows.py",
        "Answer.LOCKED if own and state == State.RUNNING else Answer.REFUSED",
        "Answer.REFUSED",
        LOCKS,
    ),
    (
        "postgres: an ending waits for a locked row",
        "stores/postgres/queries.sql",
        "FOR NO KEY UPDATE OF job SKIP LOCKED\n),\n-- A job for which",
        "FOR NO KEY UPDATE OF job\n),\n-- A job for which",
        LOCKED_ROWS,
    ),
    (
        "postgres: a plain success waits for a locked row",
        "stores/postgres/queries.sql",
        "FOR NO KEY UPDATE OF job SKIP LOCKED\n),\napplied AS",
        "FOR NO KEY UPDATE OF job\n),\napplied AS",
        LOCKS,
    ),
    (
        "postgres: a step waits for a locked row",
        "stores/postgres/queries.sql",
        "FOR NO KEY UPDATE OF job SKIP LOCKED\n),\nwritten AS",
        "FOR NO KEY UPDATE OF job\n),\nwritten AS",
        LOCKS,
    ),
    (
        "postgres: a locked row is taken for a request to cancel",
        "stores/postgres/batch.py",
        "elif own and settlement.lease.job_id not in kept:",
        "elif False:",
        LOCKS,
    ),
    (
        "postgres: a session has no limits",
        "stores/postgres/connection.py",
        "if not self.pooled and connection.limits != limits:",
        "if False:",
        LOCKED_ROWS,
    ),
    (
        "postgres: the limit of a statement comes before that of a lock",
        "stores/postgres/connection.py",
        "return cls(0.8 * wait_s, wait_s)",
        "return cls(wait_s, wait_s)",
        LOCKED_ROWS,
    ),
    (
        "postgres: a purge stops at a job whose history is locked",
        "stores/postgres/purge.py",
        "if not busy:",
        "if True:",
        LOCKED_ROWS,
    ),
    (
        "postgres: a purge stops at a job that a table refers to",
        "stores/postgres/purge.py",
        "if not isinstance(error.__cause__, errors.ForeignKeyViolation):",
        "if True:",
        LOCKED_ROWS,
    ),
    (
        "postgres: jobs that a table refers to hide those behind them",
        "stores/postgres/purge.py",
        "while known < len(self._kept) and deleted < limit:",
        "while known < 0:",
        LOCKED_ROWS,
    ),
    *(
        (
            f"postgres: a purge does not see that a {table} is locked",
            "stores/postgres/queries.sql",
            f"AND ctid NOT IN (SELECT ctid FROM {part})",
            "AND false",
            LOCKED_ROWS,
        )
        for table, part in (("journal line", "lines"), ("step", "steps"), ("signal", "signals"))
    ),
    (
        "postgres: an export has no more time than a call",
        "stores/postgres/store.py",
        "        if bulk:\n",
        "        if False:\n",
        LOCKED_ROWS,
    ),
    (
        "an export ends at a page that takes too long",
        "insight/views.py",
        "        if where.limit < 2:\n            raise\n",
        "        raise\n",
        LOCKED_BY_OTHERS,
    ),
    (
        "postgres: a migration gives up when another one runs",
        "stores/sql.py",
        "except (Waiting, StoreLocked):",
        "except Waiting:",
        ("tests/stores/test_postgres_schema.py",),
    ),
    (
        "postgres: limits do not follow a shorter beat",
        "stores/postgres/store.py",
        "self._often.limits = Limits.hot(shortest)",
        "pass",
        LOCKED_ROWS,
    ),
    (
        "postgres: leases end while the row of their worker is locked",
        "stores/postgres/store.py",
        "except StoreLocked:  # the worker's row",
        "except ZeroDivisionError:  # the worker's row",
        LOCKED_ROWS,
    ),
    (
        "postgres: a lost answer of an enqueue is a plain failure",
        "stores/postgres/connection.py",
        "if lost and isinstance(explained, StoreUnavailable):",
        "if False:",
        LOCKED_ROWS,
    ),
    (
        "postgres: an enqueue that never left is of unknown outcome",
        "stores/postgres/connection.py",
        "if lost and isinstance(explained, StoreUnavailable):",
        "if isinstance(explained, StoreUnavailable):",
        LOCKED_ROWS,
    ),
    (
        "a batch of results that takes too long is sent again as it is",
        "worker/settler.py",
        "return isinstance(error, StoreTimeout) and len(batch) > 1",
        "return False",
        LOCKED_ROWS,
    ),
    (
        "a batch of records that takes too long is sent again as it is",
        "worker/recorder.py",
        "too_much = isinstance(error, StoreTimeout) and len(batch) > 1",
        "too_much = False",
        LOCKED_ROWS,
    ),
    (
        "a beat that takes too long is sent again as it is",
        "worker/keeper.py",
        "if not isinstance(error, StoreTimeout) or len(due) < 2:",
        "if True:",
        LOCKED_ROWS,
    ),
    (
        "one dead worker with a locked row keeps the others from being recovered",
        "reaper.py",
        "except StoreLocked as error:  # the next pass",
        "except ZeroDivisionError as error:  # the next pass",
        LOCKED_BY_OTHERS,
    ),
    (
        "a settler without its thread calls a locked result saved",
        "worker/settler.py",
        "            self._say_locked()\n            return False",
        "            self._say_locked()",
        LOCKED_ROWS,
    ),
    (
        "a settler without its thread calls a result saved that the store did not take",
        "worker/settler.py",
        "return not self._unsaved",
        "return True",
        LOCKED_ROWS,
    ),
    (
        "sqlite: a delete of nothing counts as a removal",
        "stores/sqlite/store.py",
        '            if deleted:\n                db.execute(Q["standing_removed"])\n        return deleted\n\n    # ---',
        '            db.execute(Q["standing_removed"])\n        return deleted\n\n    # ---',
        ("tests/conformance/test_standing.py",),
    ),
    (
        "a result whose row is locked is dropped",
        "worker/settler.py",
        "self._locked.put(attempt.job.id, (attempt, outcome))",
        "pass",
        LOCKED_ROWS,
    ),
    (
        "a record overtakes others of its job that wait for a locked row",
        "worker/recorder.py",
        "if job_id in self._locked:",
        "if False:",
        LOCKED_ROWS,
    ),
    (
        "a single pass does not wait for a worker that beats",
        "reaper.py",
        "while self._doubts and waited_s < within_s:",
        "while False:",
        LOCKED_BY_OTHERS,
    ),
    (
        "a single pass waits for a locked row",
        "reaper.py",
        "if left > 0 and job_id not in locked]",
        "if left > 0]",
        LOCKED_BY_OTHERS,
    ),
    (
        "a tick does not wait for a worker that beats",
        "worker/runner.py",
        "if self._until_idle and was_idle and self._look_at is None:",
        "if self._until_idle and was_idle:",
        LOCKED_BY_OTHERS,
    ),
    (
        "a worker that beats gets its beat where no row can be locked",
        "reaper.py",
        "if self._store.row_locks else {}",
        "",
        REAPER,
    ),
    (
        "a gap is measured by the clock of the reaper",
        "reaper.py",
        "ended = self._store.now().lease",
        "ended = now",
        REAPER,
    ),
    (
        "a reaper judges as soon as a lock is gone",
        "reaper.py",
        "patience_s = job.beat_s",
        "pass",
        LOCKED_BY_OTHERS,
    ),
    (
        "a reaper does not see that a row is still locked",
        "reaper.py",
        "locked = self._store.locked(sorted(kept)) if kept else []",
        "locked: list[str] = []",
        LOCKED_BY_OTHERS,
    ),
    (
        "locked rows that fill a page hide the other jobs of a dead worker",
        "reaper.py",
        "                where = msgspec.structs.replace(where, before=jobs[-1].id)\n            point",
        "                return list(zombies.values())\n            point",
        LOCKED_BY_OTHERS,
    ),
    (
        "postgres: a delete does not see what it waited for",
        "stores/postgres/store.py",
        'db.execute(self._db["delete_lock"], {"id": job_id}, prepare=False)',
        "pass",
        LOCKS,
    ),
    (
        "what a zombie says of a workflow counts when its successor is in the same batch",
        "stores/postgres/workflows.py",
        "leases.get(record.lease.job_id, record.lease) != record.lease",
        "False",
        (f"{CONFORMANCE}/test_record.py",),
    ),
    (
        "two records of one step are written by one statement",
        "stores/postgres/workflows.py",
        "not steps.isdisjoint(own)",
        "False",
        (f"{CONFORMANCE}/test_record.py",),
    ),
    (
        "what starts a child overtakes what was recorded before it",
        "stores/sqlite/workflows.py",
        "            _write(db, plain)  # what came before is written before\n            plain = []\n",
        "",
        (f"{CONFORMANCE}/test_record.py",),
    ),
    (
        "a step that must not be repeated is begun and nobody is told",
        "workflow/run.py",
        "if base.has_undo or not base.repeatable:",
        "if False:",
        ("tests/crash/test_sweep.py",),
    ),
    (
        "undos run in the order of the steps",
        "core/flow.py",
        "key=lambda step: -step.position",
        "key=lambda step: step.position",
        ("tests/crash/test_sweep.py",),
    ),
    (
        "a step that is begun anew keeps the undo of the old code",
        "workflow/ledger.py",
        "replace(call.known, has_undo=has_undo, repeatable=repeatable, **begun)",
        "replace(call.known, **begun)",
        ("tests/workflow/test_undo.py",),
    ),
    (
        "an answer that cannot be read counts",
        "workflow/ledger.py",
        "            yield from self._begin(call, replace(said, result=None, ended_at=None))  # held, because it is open\n",
        "",
        ANSWERS,
    ),
    ("a step runs again that was answered for", "workflow/run.py", "is_answered(call.known):", "False:", ANSWERS),
    (
        "an answered step is asked for again",
        "core/flow.py",
        "if not is_answered(step) and not is_paused(step)",
        "if not is_paused(step)",
        ANSWERS,
    ),
    (
        "an undo does not hear of an answer",
        "workflow/run.py",
        "step.error is None) or is_answered(step)",
        "step.error is None)",
        ANSWERS,
    ),
    (
        "workflows: all dead ones are revived, whatever they had begun",
        "cli/dead.py",
        "ids = [job.id for job in found if job.open_step is None]",
        "ids = [job.id for job in found]",
        WORKFLOWS_CLI,
    ),
    (
        "doctor: whoever has a step open is revived with the others",
        "insight/diagnosis.py",
        "opened += job.open_step is not None",
        "opened += 0",
        ("tests/cli/test_doctor.py",),
    ),
    (
        "a fork forgets the arguments that are not given",
        "workflow/verbs.py",
        "encode_value({**old, **kwargs},",
        "encode_value(kwargs,",
        WORKFLOWS_CLI,
    ),
    (
        "a changed call is not held to the signature",
        "core/payload.py",
        "        self.decode(changed)  # what was there before may not fit any more\n",
        "",
        ("tests/core/test_payload.py",),
    ),
    (
        "what could not be undone is rolled back",
        "worker/attempt.py",
        "if self.job.undoable or self.job.rolling_back:",
        "if False:",
        ANSWERS,
    ),
    (
        "anybody may answer a question by a signal",
        "workflow/values.py",
        "name.strip().lower().startswith(APPROVAL)",
        "name.startswith(APPROVAL)",
        WORKFLOWS_CLI,
    ),
    (
        "a workflow waits for answers to questions",
        "workflow/flow.py",
        'self._call("wait", signal_name(signal))',
        'self._call("wait", checked_name(signal))',
        ("tests/workflow/test_waiting.py",),
    ),
    (
        "a workflow answers the questions of others",
        "workflow/flow.py",
        'self._call("signal", signal_name(name))',
        'self._call("signal", checked_name(name))',
        ("tests/workflow/test_waiting.py",),
    ),
    (
        "branches tell in any order what is open",
        "workflow/ledger.py",
        "            put(record)\n",
        "        put(record)\n",
        OPEN_STEPS,
    ),
    (
        "a person is asked about the branch that was faster",
        "workflow/ledger.py",
        "first = min(self._open.values(), key=lambda step: step.position, default=None)",
        "first = next(iter(self._open.values()), None)",
        OPEN_STEPS,
    ),
    (
        "who runs it from a step again has not seen what was begun since",
        "workflow/verbs.py",
        """
        def judged(row: Row) -> Verdict:
            steps = self.steps(id)  # after the row: if they change meanwhile, its fence does, too
""",
        """        steps = self.steps(id)

        def judged(row: Row) -> Verdict:
""",
        OPEN_STEPS,
    ),
    (
        "a snooze that is on record leaves a thread without its end",
        "worker/executors.py",
        "isinstance(error, errors.Snooze) and error is not attempt.fatal:",
        "isinstance(error, errors.Snooze):",
        ("tests/workflow/test_steps.py",),
    ),
    (
        "a time limit of a step hits whoever comes behind it",
        "workflow/threads.py",
        "                timer.join()  # otherwise it could interrupt the code after this block\n",
        "",
        ("tests/workflow/test_steps.py",),
    ),
    (
        "an ending that is judged again keeps others from being told",
        "worker/settler.py",
        "                again.append((attempt, outcome))\n",
        "                self._catch_up(attempt)\n                again.append((attempt, outcome))\n",
        ("tests/worker/test_settler.py",),
    ),
    (
        "an open step does not hold who comes back later",
        "core/verdict.py",
        "Stalled | Lost | Snoozed | Parked\n    return",
        "Stalled | Lost\n    return",
        CORE,
    ),
    (
        "an answer is taken for the first open step, whichever was asked about",
        "core/flow.py",
        "key=lambda step: step.name != job.open_step)",
        "key=lambda step: step.position)",
        CORE,
    ),
    (
        "a result that the code cannot read is a failure",
        "workflow/ledger.py",
        "        except PayloadError as error:\n            ways",
        "        except ZeroDivisionError as error:\n            ways",
        ANSWERS,
    ),
    (
        "an answer comes too late, and is called accepted",
        "workflow/verbs.py",
        "seen_fence=row.fence,",
        "",
        ANSWERS,
    ),
    (
        "memory: an answer is kept for the next question",
        "stores/memory/workflows.py",
        "signal.seen_fence == job.fence and awaited",
        "awaited",
        (f"{CONFORMANCE}/test_signal.py",),
    ),
    (
        "memory: an answer to nothing is kept",
        "stores/memory/workflows.py",
        "signal.seen_fence == job.fence and awaited",
        "signal.seen_fence == job.fence",
        (f"{CONFORMANCE}/test_signal.py",),
    ),
    (
        "memory: who runs again is forked",
        "stores/memory/workflows.py",
        "old.state in ENDED and old.fence == seen_fence",
        "old.fence == seen_fence",
        (f"{CONFORMANCE}/test_fork.py",),
    ),
    (
        "memory: who ended once more is forked by an old look",
        "stores/memory/workflows.py",
        "old.state in ENDED and old.fence == seen_fence",
        "old.state in ENDED",
        (f"{CONFORMANCE}/test_fork.py",),
    ),
    (
        "a fork is made while the other one is changed",
        "stores/postgres/queries.sql",
        "    OR id = %(id)s\nFOR SHARE;",
        "    OR id = %(id)s;",
        LOCKS,
    ),
    (
        "a workflow whose step is open had not begun when its worker was told to stop",
        "reaper.py",
        "judge(Released(job.begun, cause)",
        "judge(Released(job.started, cause)",
        ("tests/worker/test_reaper.py",),
    ),
    (
        "a workflow whose step is open had not begun when its worker was lost",
        "reaper.py",
        "started=job.begun,",
        "started=job.started,",
        ("tests/worker/test_reaper.py",),
    ),
    (
        "a loss that costs nothing waits for the backoff of the crashes before it",
        "core/verdict.py",
        "isinstance(outcome, Lost) and (not crashes or total_crashes <= 1):",
        "isinstance(outcome, Lost) and total_crashes <= 1:",
        ("tests/core/test_verdict.py",),
    ),
    (
        "an outage inside a transaction runs a job that was to be held again",
        "core/verdict.py",
        "return _judge(Released(True, outcome.error, delay_s=OUTAGE_S), job, now, chance)",
        "return _release(Released(True, outcome.error, delay_s=OUTAGE_S), job, now)",
        ("tests/core/test_verdict.py",),
    ),
    (
        "after many outages a job that was to be held runs again",
        "core/verdict.py",
        "case Failed(finished=False, outage=False):",
        "case Failed(finished=False):",
        ("tests/core/test_verdict.py",),
    ),
    (
        "outages inside a transaction are free for ever",
        "core/verdict.py",
        "outcome.outage and job.releases < OUTAGES_MAX",
        "outcome.outage",
        ("tests/core/test_verdict.py",),
    ),
    (
        "postgres: a statement that needs too much memory is an outage",
        "stores/postgres/connection.py",
        ' and state not in ("53200", "53400")',
        "",
        ("tests/stores/test_postgres_transaction.py",),
    ),
    (
        "a handler that leaves its own transaction open every time is excused for ever",
        "worker/supervisor.py",
        "excused=code == EXIT_FENCED)",
        "excused=code in (EXIT_FENCED, EXIT_LOCKED))",
        ("tests/crash/test_own_lock.py",),
    ),
    (
        "a long pass is a gap",
        "reaper.py",
        "        self._keep_in_touch()\n        return answers",
        "        return answers",
        ("tests/worker/test_reaper.py",),
    ),
    (
        "a silence within a pass is no gap",
        "reaper.py",
        "if self._contact is not None and now - self._contact <= SILENCE_S:",
        "if self._contact is not None:",
        ("tests/worker/test_reaper.py",),
    ),
    (
        "a second look waits for the interval",
        "daemon.py",
        "min(interval_s, reaper.doubt_s or interval_s)",
        "interval_s",
        ("tests/test_daemon.py",),
    ),
    (
        "tick: who would not stop is left to its lease",
        "worker/runner.py",
        "if code == EXIT_STUCK and self._until_idle:",
        "if False:",
        ("tests/worker/test_tick.py",),
    ),
    (
        "tick: handlers take longer to stop than the budget allows",
        "worker/tick.py",
        "stop_s=leave_s / 2",
        "stop_s=2.0",
        ("tests/worker/test_tick.py",),
    ),
    (
        "tick: half of a short budget is for leaving",
        "worker/tick.py",
        "min(LEAVE_S, budget_s / 4)",
        "min(LEAVE_S, budget_s / 2)",
        ("tests/worker/test_tick.py",),
    ),
]


def hand_mutants() -> Iterator[Mutant]:
    for name, file, old, new, tests in HAND:
        path = f"holdfast/{file}"
        text = (SRC / path).read_text() if (SRC / path).exists() else ""
        if text.count(old) != 1:
            raise SystemExit(f"mutant {name!r}: {old!r} stands {text.count(old)} times in {file}; mend the mutant")
        yield Mutant(f"hand {name}", path, text.replace(old, new), (*NEAREST.get(file, ()), *tests))


def all_mutants() -> list[Mutant]:
    """Make each of them; one that does not fit the tree any more ends the program."""
    mutants = [*sql_mutants(), *judge_mutants(), *hand_mutants()]
    if unknown := set(EQUIVALENT) - {mutant.name for mutant in mutants}:
        raise SystemExit(f"EQUIVALENT names mutants that do not exist: {unknown}")
    places = {test.partition("::")[0] for mutant in mutants for test in mutant.tests}
    if missing := [place for place in places if not (ROOT / place).exists()]:
        raise SystemExit(f"mutants name tests that do not exist: {missing}")
    return mutants


# ----------------------------------------------------------------------------------------------- run


NUMBERS = count(1)


def survives(mutant: Mutant, server: PostgresServer) -> tuple[bool, float]:
    """Run the tests over a copy of the package with the change; whether nothing went red, and the seconds it took."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder, database(server) as address:
        copy = Path(folder) / "src"
        shutil.copytree(SRC, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.file).write_text(mutant.text)
        environment = {
            **os.environ,
            "PYTHONPATH": str(copy),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HOLDFAST_TEST_POSTGRES": address,
        }
        lives = all(is_green(mutant, tests, environment) for tests in nearest_first(mutant.tests))
    return lives, time.monotonic() - begun


def nearest_first(tests: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Files, then folder after folder: given all of them at once, pytest runs a folder and its files in one go."""
    files = tuple(test for test in tests if ".py" in test)
    if files:
        yield files
    yield from ((folder,) for folder in tests if folder not in files)


def is_green(mutant: Mutant, tests: tuple[str, ...], environment: dict[str, str]) -> bool:
    words = "postgres" if mutant.on_postgres else "not postgres"  # what cannot notice is not run
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--timeout=90", *tests]
    ran = subprocess.run(
        [*command, "-k", words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if ran.returncode in (0, 1):
        return ran.returncode == 0
    # A mutant that cannot even be imported is dead as well, but an empty run proves nothing.
    return "no tests ran" in ran.stdout or "deselected" in ran.stdout


def pieces(chosen: list[Mutant]) -> list[Mutant]:
    """The package as it is, once for each place in the tests: what is red anyhow would count every mutant as dead."""
    found = []
    for on_postgres in (True, False):
        group = [mutant for mutant in chosen if mutant.on_postgres is on_postgres]
        places = {Path(test.partition("::")[0]) for mutant in group for test in mutant.tests}
        for place in sorted(place for place in places if places.isdisjoint(place.parents)):
            file = next((mutant.file for mutant in group if "postgres" in mutant.file), group[0].file)
            found.append(Mutant(f"{place}, nothing broken", file, (SRC / file).read_text(), (str(place),)))
    return found


@contextmanager
def database(server: PostgresServer) -> Iterator[str]:
    """A database of its own for one mutant: several are tried at once."""
    name = f"mutant_{next(NUMBERS)}"
    server.execute(f"CREATE DATABASE {name}")
    yield server.url.replace("/postgres", f"/{name}")
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--known-green", action="store_true", help="do not run the tests unbroken first")
    given = parser.parse_args()
    meant = [mutant for mutant in all_mutants() if not given.words or any(word in mutant.name for word in given.words)]
    chosen = [mutant for mutant in meant if mutant.name not in EQUIVALENT]
    if given.list:
        print("\n".join(mutant.name for mutant in chosen))
        return 0
    alive = []
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        pool = ThreadPoolExecutor(given.jobs)
        stack.callback(pool.shutdown, cancel_futures=True)
        look = partial(survives, server=server)
        unbroken = [] if given.known_green else pieces(chosen)
        for number, (piece, (lives, took)) in enumerate(zip(unbroken, pool.map(look, unbroken), strict=True), 1):
            print(
                f"[{number:3}/{len(unbroken)}] {'green' if lives else 'RED  '} {took:5.1f} s  {piece.name}", flush=True
            )
            if not lives:
                raise SystemExit(f"{piece.tests[0]} is red without any mutant; mend it first")
        for number, (mutant, (lives, took)) in enumerate(zip(chosen, pool.map(look, chosen), strict=True), 1):
            if lives:
                alive.append(mutant.name)
            print(
                f"[{number:3}/{len(chosen)}] {'ALIVE' if lives else 'dead '} {took:5.1f} s  {mutant.name}", flush=True
            )
    print(f"{len(chosen) - len(alive)} dead, {len(alive)} alive, {len(meant) - len(chosen)} known to be harmless")
    for name in alive:
        print(f"  alive: {name}")
    return 1 if alive else 0


@contextmanager
def postgres() -> Iterator[PostgresServer]:
    """One server for all mutants. Some of them would never come to an end."""
    server = PostgresServer((*QUICK, "statement_timeout=15s"))
    try:
        yield server
    finally:
        server.close()


if __name__ == "__main__":
    raise SystemExit(main())
