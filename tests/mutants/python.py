"""Mutants of pure modules: every condition, boundary, operand and flag in turn."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from itertools import count

from tests.mutants.mutant import PACKAGE, Mutant

CONFORMANCE = "tests/conformance"
# The modules that decide, and the tests that know each of them best: files first, in one go, then each folder.
MODULES: dict[str, tuple[str, ...]] = {
    "core/verdict.py": ("tests/core/test_verdict.py", "tests/core", CONFORMANCE),
    "core/acts.py": ("tests/core/test_acts.py", "tests/core/test_acts_of_workflows.py", "tests/core", CONFORMANCE),
    "core/lease.py": ("tests/core/test_lease.py", "tests/core", CONFORMANCE),
    "core/recovery.py": ("tests/core/test_recovery.py",),
    "core/continuity.py": ("tests/core/test_continuity.py", "tests/core", CONFORMANCE),
    "core/transitions.py": ("tests/core/test_rows.py", CONFORMANCE),
    "core/settlement.py": (
        "tests/core/test_settlement.py",
        "tests/conformance/test_settle.py",
        "tests/conformance/test_record.py",
        CONFORMANCE,
    ),
    "core/rollups.py": ("tests/core/test_rollups.py", "tests/conformance/test_rollups.py"),
    "core/replay.py": ("tests/core/test_replay.py", "tests/core", "tests/workflow"),
    "core/row_text.py": ("tests/core/test_row_text.py", "tests/core", CONFORMANCE),
    "core/schedule.py": ("tests/core/test_schedule.py",),
    "core/crash_fingerprint.py": ("tests/core/test_crash_fingerprint.py", "tests/worker/test_admission.py"),
    "core/isolation.py": ("tests/core/test_isolation.py",),
    "core/child_exit.py": ("tests/core/test_child_exit.py",),
    "worker/admission.py": ("tests/worker/test_admission.py",),
    "core/keys.py": ("tests/conformance/test_keys.py", "tests/api/test_keys.py"),
    "stores/keyed_jobs.py": ("tests/conformance/test_keys.py", "tests/api/test_keys.py"),
    "core/dependencies.py": ("tests/conformance/test_dependents.py", "tests/api/test_dependencies.py"),
    "core/labels.py": ("tests/api/test_labels.py", "tests/conformance/test_labels.py"),
    "core/batches.py": ("tests/conformance/test_batches.py", "tests/api/test_batches.py", "tests/cli/test_batches.py"),
    "insight/health.py": ("tests/insight/test_health.py",),
    "insight/deaths.py": ("tests/insight/test_deaths.py",),
    "alerts/rules.py": ("tests/alerts/test_rules.py", "tests/alerts/test_notifier.py"),
}
# The file that is most likely to kill the mutants of one function, where the module has many.
NEAREST = {
    f"core/transitions.py {function}": f"tests/conformance/test_{verb}.py"
    for function, verb in {
        "first_row": "add",
        "fair": "claim",
        "leased": "claim",
        "owns": "beat",
        "beaten": "beat",
        "renewed": "beat",
        "judged": "settle",
        "reached": "signal",
        "woken": "wake_due",
        "recorded": "record",
        "matches": "find",
        "declared": "fire",
    }.items()
}
STATE_MACHINE = "core/machine.py"


def python_mutants() -> Iterator[Mutant]:
    """Change every pure module in every way that `Change` knows, one at a time."""
    for file, tests in MODULES.items():
        source = (PACKAGE / file).read_text()
        names = Counter[str]()
        for change in changes(source):
            name = f"python {file} {change.function}: {change.said}"
            names[name] += 1
            name += f" ({names[name]})" if names[name] > 1 else ""
            nearest = NEAREST.get(f"{file} {change.function}")
            near = (nearest, *tests) if nearest else tests
            yield Mutant(name, file, change.text, near, is_in_a_function=True)
    yield from _machine_mutants()


def _machine_mutants() -> Iterator[Mutant]:
    """Take each move out of the table of states in turn."""
    source = (PACKAGE / STATE_MACHINE).read_text()
    state = ""
    for match in re.finditer(r"^    (State\.\w+): \{|(Move\.\w+): State\.\w+,?\s*", source, re.MULTILINE):
        state = match[1] or state
        if match[2]:
            name = f"python {STATE_MACHINE} {state} without {match[2]}"
            yield Mutant(name, STATE_MACHINE, source[: match.start()] + source[match.end() :], ("tests/core",))


def changes(source: str) -> Iterator[Change]:
    """Return the module once for every possible change of a function or method."""
    lines = source.splitlines(keepends=True)
    for name, function in _functions(ast.parse(source).body):
        first = min(node.lineno for node in (function, *function.decorator_list))
        for nth in count():
            change, changed = Change(name, nth), deepcopy(function)
            changed.body = [change.visit(statement) for statement in changed.body]
            if not change.said:
                break
            text = textwrap.indent(ast.unparse(ast.fix_missing_locations(changed)), " " * function.col_offset)
            change.text = "".join([*lines[: first - 1], f"{text}\n", *lines[function.end_lineno :]])
            yield change


def _functions(body: list[ast.stmt]) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{name}", function) for name, function in _functions(node.body))


class Change(ast.NodeTransformer):
    """Apply the nth possible change of a function; remember what it was."""

    def __init__(self, function: str, nth: int) -> None:
        self.function = function
        self._left = nth
        self.said = ""
        self.text = ""

    def _is_it(self) -> bool:
        self._left -= 1
        return self._left == -1

    def _negate(self, test: ast.expr, keyword: str) -> ast.expr:
        if self._is_it():
            self.said = f"{keyword} not ({ast.unparse(test)})"
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

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        node.ifs = [self._negate(test, "for if") for test in node.ifs]
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        node.test = self._negate(node.test, "while")
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
            self.said = f"boundary of {ast.unparse(node)}"
            node.ops[0] = moved[type(node.ops[0])]()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        for value in list(node.values):
            if len(node.values) > 1 and self._is_it():
                self.said = f"without ({ast.unparse(value)}) in ({ast.unparse(node)})"
                node.values = [other for other in node.values if other is not value]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if type(node.value) in (bool, int) and node.value in (0, 1) and self._is_it():
            self.said = f"{node.value} flipped"
            return ast.copy_location(ast.Constant(type(node.value)(not node.value)), node)
        return node
