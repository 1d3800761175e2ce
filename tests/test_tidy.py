"""The house rules that a machine can hold. Each test is one rule; each finding names its file and line.

A rule is a function of (path, source): the path below src/holdfast, the text of the file. So every rule can
be shown to fail: `BROKEN`, at the end, holds a snippet for each thing that each rule forbids.
"""

import ast
import graphlib
import importlib.metadata
import io
import os
import re
import subprocess
import sys
import tokenize
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.mutants import all_mutants

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "holdfast"

Finding = tuple[int, str]
Rule = Callable[[str, str], Iterator[Finding]]


def test_layers_import_only_downwards() -> None:
    assert_tidy(layers)


def test_no_room_imports_itself_through_others() -> None:
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in modules()}
    assert circle(sources) is None


def test_a_circle_of_imports_is_found() -> None:
    one = {"worker/a.py": "from holdfast.workflow import b", "workflow/b.py": "from holdfast.runtime import hooks"}
    assert circle(one) is None
    through = circle({**one, "runtime/hooks.py": "from holdfast.worker.a import c"})
    assert through is not None
    assert set(through) == {"worker", "workflow", "runtime"}
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from holdfast.worker.a import c"
    assert circle({**one, "runtime/hooks.py": for_types}) is None
    late = circle({**one, "runtime/hooks.py": "def f():\n    with g:\n        from holdfast.worker.a import c"})
    assert late is not None
    assert set(late) == {"worker", "workflow", "runtime"}
    front = circle({"__init__.py": "from holdfast.app import App", "app.py": "def f():\n    from holdfast import x"})
    assert front is not None
    assert set(front) == {"__init__", "app"}


def test_every_late_import_has_a_reason() -> None:
    found = {
        (path.relative_to(PACKAGE).as_posix(), name)
        for path in modules()
        for _, name in late_imports(path.relative_to(PACKAGE).as_posix(), path.read_text("utf-8"))
    }
    assert {(path, name) for path, name in found if not path.startswith("cli/")} == set(LATE)


def test_a_late_import_is_found() -> None:
    source = "import holdfast.jobs\ndef f():\n    import ssl\n    with g:\n        from holdfast.worker.a import c\n"
    assert [name for _, name in late_imports("jobs.py", source)] == ["holdfast.worker.a"]


def test_where_the_architecture_says_something_is_there_it_is() -> None:
    page = (ROOT / "docs" / "ARCHITECTURE.md").read_text("utf-8")
    rows = re.findall(r"^\| (.+\?) \| `(\S+)` \| `(\S+)` \|$", page, re.MULTILINE)
    assert len(rows) >= 6
    missing = [row for row in rows if row[2] not in defined(ast.parse((PACKAGE / row[1]).read_text("utf-8")))]
    assert not missing


def test_only_clock_py_asks_the_time_or_sleeps() -> None:
    assert_tidy(clocks)


def test_only_ids_py_draws_random_values() -> None:
    assert_tidy(randomness)


def test_data_is_never_turned_into_code() -> None:
    assert_tidy(code_from_data)


def test_sql_stands_in_sql_files() -> None:
    assert_tidy(sql_in_python)


def test_executed_sql_is_never_composed_from_strings() -> None:
    assert_tidy(composed_sql)


def test_modules_and_functions_fit_in_the_head() -> None:
    assert_tidy(sizes)


def test_only_the_command_line_prints() -> None:
    assert_tidy(prints)


def test_one_concept_has_one_word() -> None:
    assert_tidy(words)


def test_no_file_names_this_machine_or_a_package_registry() -> None:
    files = [path for path in repository_files() if path.is_file()]
    assert not findings(machine_traces, ROOT, files)


def test_the_source_is_in_plain_english() -> None:
    assert_tidy(plain_source)


def test_the_pages_are_in_plain_english() -> None:
    patterns = ["README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/*.md", "bench/*.md"]
    found = findings(plain_english, ROOT, [page for pattern in patterns for page in sorted(ROOT.glob(pattern))])
    assert not found, "\n" + "\n".join(found)


def test_named_exceptions_to_sizes_are_still_needed() -> None:
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in modules()}
    seen = {name: (lines, most) for path, source in sources.items() for name, _, lines, most in measured(path, source)}
    stale = [name for name in LONG if name not in seen or seen[name][0] <= seen[name][1]]
    assert not stale, f"these fit without an exception now; remove them from LONG: {stale}"


def test_every_mutant_still_fits_the_tree() -> None:
    """`make mutants` takes long and is run by hand. This shows that it can start."""
    assert all_mutants()


def test_the_version_stands_in_one_place() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" not in declared["project"]
    assert (ROOT / declared["tool"]["hatch"]["version"]["path"]).samefile(PACKAGE / "version.py")


def test_what_the_lock_file_installs_works_with_the_oldest_python() -> None:
    """Debian 12 has 3.11.2. A package that needs 3.11.5, or another one below 3.11.3, ends `make setup` there alone."""
    version = ".".join(map(str, sys.version_info[:2]))
    oldest = {"python_version": version, "python_full_version": f"{version}.0", "extra": ""}
    all_of_them = {canonicalize_name(each.name): each for each in importlib.metadata.distributions()}
    wrong = [
        name
        for name, each in all_of_them.items()
        if f"{version}.0" not in SpecifierSet(each.metadata.get("Requires-Python") or "")
    ]
    for each in all_of_them.values():
        for needed in map(Requirement, each.requires or []):
            if needed.marker is None or needed.marker.evaluate(oldest):
                wrong += [] if canonicalize_name(needed.name) in all_of_them else [f"{each.name} needs {needed}"]
    assert not wrong


@pytest.mark.parametrize("lock", ["requirements-dev.lock", "requirements-venv.lock"])
def test_a_lock_file_holds_exact_versions_with_hashes_and_nothing_else(lock: str) -> None:
    """pip installs a file only if it is one of those that were there when `make lock` ran."""
    lines = (ROOT / lock).read_text("utf-8").replace(" \\\n", "").splitlines()
    pin = re.compile(
        r"[a-z0-9._-]+(\[[a-z0-9,._-]+\])?==[0-9][a-z0-9.+!]*( ; [^-]+)?(    --hash=sha256:[0-9a-f]{64})+|#.*"
    )
    assert [line for line in lines if not pin.fullmatch(line)] == []


def test_the_wheel_carries_every_file_of_the_package(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    carried = set(zipfile.ZipFile(wheel).namelist())
    wanted = {p.relative_to(PACKAGE.parent).as_posix() for p in PACKAGE.rglob("*") if p.is_file()}
    missing = {name for name in wanted - carried if "__pycache__" not in name}
    assert not missing
    assert "holdfast/py.typed" in carried


# --- The rules -------------------------------------------------------------------------------------------

# May be used by every layer above; may themselves use only what is named here.
BASE = {
    "core": {"errors"},
    "errors": {"core"},
    "clock": {"core", "errors"},
    "failpoints": {"core", "errors", "clock"},
    "interrupts": {"core", "errors", "clock"},
    "forks": {"core", "errors", "clock"},
    "ids": {"core", "errors", "clock"},
}
STORES_USE = {"core", "errors", "clock", "failpoints", "interrupts", "forks", "ids"}
STORES_SHARE = {"protocol", "row_json", "keyed_jobs", "sql", "caller_connection", "wakeups", "urls", "rounds"}
STORES_SHARE |= {"copying"}
EDGES = {"testing", "integrations", "rescue"}
FRONT = {"cli", "__main__"}
IMPURE = {
    "asyncio", "os", "random", "secrets", "socket", "sqlite3", "subprocess", "threading", "time", "uuid",
}  # fmt: skip


def layers(path: str, source: str) -> Iterator[Finding]:
    """Who may import whom, imports inside functions and for types included. A module that no layer names
    is taken for a driver, which is the strict reading."""
    here = PurePosixPath(path).with_suffix("").parts
    for line, name in imports(path, ast.parse(source)):
        top, *there = name.split(".")
        if top == "holdfast" and not may_import(here, there):
            yield line, f"{'.'.join(here)} imports {name}, which is not below it"
        if here[0] == "core" and top in IMPURE:
            yield line, f"core is pure, but imports {top}"


def defined(tree: ast.Module | ast.ClassDef, before: str = "") -> Iterator[str]:
    """The dotted names of the classes, functions and methods of a module."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{before}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from defined(node, f"{before}{node.name}.")


# Imports inside functions, outside cli/, where each command imports what it uses so that --help stays fast.
# (file, module) -> why it is not imported at once.
LATE = {
    ("alerts/__init__.py", "holdfast.alerts.webhook"): "TLS and HTTP: most apps have no webhook",
    ("aio.py", "holdfast.admin"): "it loads the read side, which few programs need",
    ("app.py", "holdfast.admin"): "it loads the read side, which few programs need",
    ("app.py", "holdfast.aio"): "made from the verbs of App; asyncio code alone needs it",
    ("app.py", "holdfast.alerts"): "an app without alerts starts without them",
    ("app.py", "holdfast.alerts.notifier"): "app.reap() alone needs it here",
    ("app.py", "holdfast.upkeep.embedded_reaper"): "app.reaper() alone needs it here",
    ("app.py", "holdfast.upkeep.reaper"): "app.reap() alone needs it here",
    ("app.py", "holdfast.upkeep.scheduler"): "an app without schedules starts without it",
    ("app.py", "holdfast.worker.embedded"): "app.worker() alone needs it here",
    ("app.py", "holdfast.worker.options"): "app.tick() and app.worker() alone need it here",
    ("app.py", "holdfast.worker.tick"): "a whole worker, which takes as long to load as the rest of Holdfast",
    ("integrations/pytest.py", "holdfast.testing"): "pytest loads the plugin in every project, used or not",
    ("rescue/sweep.py", "holdfast.rescue.alchemy"): "SQLAlchemy may not be installed",
    ("stores/__init__.py", "holdfast.stores.memory"): "a program has one kind of store",
    ("stores/__init__.py", "holdfast.stores.postgres.store"): "its driver may not be installed",
    ("stores/__init__.py", "holdfast.stores.redis.store"): "its driver may not be installed",
    ("stores/__init__.py", "holdfast.stores.remote.store"): "a program has one kind of store",
    ("stores/__init__.py", "holdfast.stores.sqlite.store"): "a program has one kind of store",
}
# `app.aio` and `app.admin` are the ways to classes that stand above App.
FACADES = {("app", "aio"), ("app", "admin"), ("aio", "admin")}


def late_imports(path: str, source: str) -> Iterator[Finding]:
    """The modules of Holdfast that functions import when they are called."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for each in ast.walk(node):
                if isinstance(each, ast.ImportFrom) and (each.module or "").startswith("holdfast"):
                    yield each.lineno, str(each.module)
                elif isinstance(each, ast.Import):
                    yield from ((each.lineno, a.name) for a in each.names if a.name.startswith("holdfast"))


class AtRunTime(ast.NodeTransformer):
    """Removes what is imported for types alone."""

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        return node.orelse if "TYPE_CHECKING" in ast.unparse(node.test) else self.generic_visit(node)


def circle(sources: dict[str, str]) -> list[str] | None:
    """Return rooms that need each other when they run; None if there are none. A room is a folder or a module below
    src/holdfast. What a function imports when it is called counts; what is imported for types alone does not."""
    needs: dict[str, set[str]] = {}
    rooms = {PurePosixPath(path).with_suffix("").parts[0] for path in sources}
    for path, source in sources.items():
        room = PurePosixPath(path).with_suffix("").parts[0]
        used = imports(path, AtRunTime().visit(ast.parse(source)))
        ours = {name.split(".")[1] for _, name in used if name.startswith("holdfast.")}
        found = {each if each in rooms else "__init__" for each in ours}
        needs.setdefault(room, set()).update({other for other in found - {room} if (room, other) not in FACADES})
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return None


def may_import(here: tuple[str, ...], there: list[str]) -> bool:
    room, target = here[0], there[0] if there else ""
    if target in EDGES:  # the pytest plugin is the fixtures of holdfast.testing
        return (
            room == target or (room in FRONT and target != "testing") or (room, target) == ("integrations", "testing")
        )
    if room in BASE:
        return target == room or target in BASE[room]
    if room == "stores" and target == "stores":
        # stores/__init__.py opens stores by URL, so it alone knows them all.
        return here[1] == "__init__" or there[1:2] == [here[1]] or bool(STORES_SHARE & set(there[1:2]))
    if room == "stores":
        return target in STORES_USE
    if room in FRONT | EDGES | {"server"}:
        return True
    if room in {"insight", "acts", "admin"}:
        return target not in {"cli", "server"} and not (room == "insight" and target in {"acts", "admin"})
    return target not in {"insight", "acts", "admin", "cli", "server"} or (room, target) in FACADES


CLOCK_READS = {
    *(f"time.{name}" for name in ("time", "monotonic", "clock_gettime", "perf_counter")),
    *(f"time.{name}_ns" for name in ("time", "monotonic", "clock_gettime", "perf_counter")),
    *(f"datetime.datetime.{name}" for name in ("now", "utcnow", "today")),
    "datetime.date.today",
}


def clocks(path: str, source: str) -> Iterator[Finding]:
    if path == "clock.py":
        return
    for line, name in names(ast.parse(source)):
        if name in CLOCK_READS:
            yield line, f"{name} asks the time; take a clock as an argument"
        if name == "time.sleep":
            yield line, "time.sleep cannot be woken or faked; wait on an event or through the clock"


def randomness(path: str, source: str) -> Iterator[Finding]:
    if path == "ids.py":
        return
    tree = ast.parse(source)
    for line, name in imports(path, tree):
        if name.split(".")[0] in {"random", "secrets", "uuid"}:
            yield line, f"{name} is imported; identities and random values come from identity.py"
    for line, name in names(tree):
        if name in {"os.urandom", "os.getrandom"}:
            yield line, f"{name} is used; identities and random values come from identity.py"


UNSAFE_MODULES = {"cloudpickle", "cPickle", "dill", "jsonpickle", "marshal", "pickle", "shelve"}
UNSAFE_NAMES = {"eval", "exec", "__import__", "builtins.eval", "builtins.exec", "builtins.__import__"}
LOADERS = {"importlib.import_module", "importlib.__import__", "pkgutil.resolve_name"}


def code_from_data(path: str, source: str) -> Iterator[Finding]:
    tree = ast.parse(source)
    for line, name in imports(path, tree):
        if name.split(".")[0] in UNSAFE_MODULES:
            yield line, f"{name.split('.')[0]} runs what it reads"
    for line, name in names(tree):
        if name in UNSAFE_NAMES:
            yield line, f"{name} runs what it is given"
        if name in LOADERS and not path.startswith("cli/"):
            yield line, f"{name} imports by name; only the command line does, to load APP"


STATEMENT = re.compile(
    r"""\s* (--[^\n]*\n\s*)* \(?\s*
    ( SELECT \s+ ( $ | .*\bFROM\b | DISTINCT\b | [\w.]+\s*\( | [*'"\d?:%$] )
    | INSERT \s+ (OR\s+\w+\s+)? INTO\b
    | REPLACE \s+ INTO\b
    | UPDATE \s+ ( $ | (OR\s+\w+\s+)? \S+ \s+ SET\b | \S+ \s+ (AS\s+)? \w+ \s+ SET\b )
    | DELETE \s+ FROM\b
    | (CREATE|DROP|ALTER) \s+ ((OR\s+REPLACE|TEMP|TEMPORARY|UNIQUE|VIRTUAL|UNLOGGED)\s+)*
      (TABLE|INDEX|VIEW|TRIGGER|TYPE|FUNCTION|SCHEMA|SEQUENCE)\b
    | WITH \s+ (RECURSIVE\s+)? \w+ \s* (\([^)]*\)\s*)? AS \s+ ((NOT\s+)?MATERIALIZED\s*)? \(
    )""",
    re.IGNORECASE | re.DOTALL | re.VERBOSE,
)


def sql_in_python(path: str, source: str) -> Iterator[Finding]:
    """PRAGMA and BEGIN, COMMIT, ROLLBACK, SAVEPOINT are the connection's business and may stand in code."""
    for line, text in strings(ast.parse(source)):
        if STATEMENT.match(text):
            yield line, f"SQL belongs in a .sql file: {' '.join(text.split())[:40]!r}"


def composed_sql(path: str, source: str) -> Iterator[Finding]:
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        if not node.func.attr.startswith("execute"):
            continue
        named = [keyword.value for keyword in node.keywords if keyword.arg in {"sql", "query", "statement"}]
        if any(is_composed(statement) for statement in [*node.args[:1], *named]):
            yield node.lineno, f".{node.func.attr}() is given a composed string; bind values as parameters"


def is_composed(node: ast.expr) -> bool:
    """An f-string that sets a PRAGMA is let through: SQLite takes no parameters there."""
    if isinstance(node, ast.JoinedStr):
        first = node.values[0] if node.values else None
        pragma = isinstance(first, ast.Constant) and re.match(r"PRAGMA \w+ ?= ?$", str(first.value))
        return not pragma and any(isinstance(part, ast.FormattedValue) for part in node.values)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Mod | ast.Add)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format"


MODULE_LINES_MAX = 800
FUNCTION_LINES_MAX = 70
# "worker/runner.py" or "worker/runner.py: run" -> (the most lines it may have, why). Each of these is one interface
# with a few lines for each verb: cut in two by inheritance, they were harder to read.
LONG: dict[str, tuple[int, str]] = {
    "app.py": (1100, "what users call"),
    "stores/memory/store.py": (1000, "the verbs of a store"),
    "stores/postgres/store.py": (1000, "the verbs of a store"),
    "stores/redis/store.py": (1000, "the verbs of a store"),
    "stores/protocol.py": (1000, "the contract of a store"),
    "stores/sqlite/store.py": (1000, "the verbs of a store"),
}


def sizes(path: str, source: str) -> Iterator[Finding]:
    for name, line, lines, lines_max in measured(path, source):
        limit, _ = LONG.get(name, (lines_max, ""))
        if lines > limit:
            yield line, f"{name} has {lines} lines; at most {limit}"


def measured(path: str, source: str) -> Iterator[tuple[str, int, int, int]]:
    """(name, first line, number of lines, most allowed) of the module and of each function in it."""
    yield path, 1, len(source.splitlines()), MODULE_LINES_MAX
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            yield f"{path}: {node.name}", node.lineno, lines, FUNCTION_LINES_MAX


def prints(path: str, source: str) -> Iterator[Finding]:
    if path.startswith("cli/"):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            yield node.lineno, "print() outside the command line; use the logger"


# Another system's word, as it would stand inside an identifier in snake_case -> ours.
SYNONYMS = {
    "heartbeat_interval": "beat_s",
    "visibility": "lease",
    "lease_seconds": "lease_s",
    "timeout_seconds": "timeout_s",
    "fencing_token": "fence",
    "lock_token": "claim_id",
    "max_attempts": "attempts_max",
    "max_retries": "attempts_max",
    "max_crashes": "crashes_max",
    "dead_letter": "dead",
    "quarantine": "held",
    "resurrect": "revive",
    "compensat": "undo",
    "leader": "duty",
    "watchdog": "reaper",
    "janitor": "reaper",
    "audit_log": "journal",
}


def words(path: str, source: str) -> Iterator[Finding]:
    """`integrations` and `rescue` talk to other systems and use those systems' words."""
    if path.startswith(("integrations/", "rescue/")):
        return
    for line, name in identifiers(ast.parse(source)):
        snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
        for theirs, ours in SYNONYMS.items():
            if theirs in snake:
                yield line, f"{name}: our word for {theirs} is {ours}"


PHRASES = {
    r"anew\b": "again",
    r"in vain\b": "without success",
    r"(comes?|came)\s+to\s+(its|an|their)\s+end\b": "ends",
    r"beside\s+(it|them)\b": "next to it, with it, compared with it",
    r"so\s+many\b": "this many, N",
    r"(?<!there )(is|was)\s+no\s+(?!longer\b|more\b)": "is not a",
    r"whoever\b": "the program that, the person who",
    r"all the same\b": "still",
    r"goes?\s+on\s+behind\b": "continues after",
    r"told\b": "notified, reported, asked",
    r"cells?\b": "isolated process",
    r"(epitaph|lifeline|patrol|warden)s?\b": "the ordinary word of GLOSSARY.md",
}
# A sentence, at the start of a paragraph, a list item or after another sentence, that names nobody who does anything.
NO_SUBJECT = re.compile(r"(?:\A(?:- )?|\n\s*\n|\n\s*- |[.!?]\s+)((?:Who|What|Of an?)\s[^.?!:]*\.)")


def plain_english(path: str, source: str) -> Iterator[Finding]:
    """Pages say who does what, in ordinary words. Code and quoted output may say anything."""
    prose = re.sub(
        r"^```.*?^```$|`(?:[^`\n]|\n(?!\n))+`", lambda code: re.sub(r"[^\n]", "_", code[0]), source, flags=re.S | re.M
    )
    for phrase, better in PHRASES.items():
        for match in re.finditer(rf"\b{phrase}", prose, re.IGNORECASE):
            yield prose.count("\n", 0, match.start()) + 1, f"{match[0]!r}: write {better}"
    for match in NO_SUBJECT.finditer(prose):
        yield prose.count("\n", 0, match.start(1)) + 1, f"{match[1][:30]!r}: name the subject"


PHRASES_OF_SOURCE = re.compile(
    r"\b(anew|in vain|(?:comes?|came)\s+to\s+(?:its|an|their)\s+end|beside\s+(?:it|them)|so\s+(?:many|much|often)"
    r"|whoever|somebody|stumble[sd]?|epitaphs?|lifelines?|wardens?|all\s+the\s+same|go(?:es)?\s+on\s+behind"
    r"|(?<!there )(?:is|was|it's)\s+no\s+(?!longer\b|more\b))\b",
    re.IGNORECASE,
)
# A docstring, a comment or a sentence in one that begins like a question and is none.
NOT_A_SENTENCE = re.compile(
    r"(?:\A[rbfRBF]*[\"']{1,3}|\A# |\n\s*\n\s*|\n\s*- |[.!]\s+)(?:Who|Whoever|Whose|What|Of)\s[^?]*?(?:[.:;]|\Z)"
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
INDIRECT = re.compile(r"(What(ever)?|Who(ever|se)?|Of|How|Where|Which|When|Until|As)\b")


def plain_source(path: str, source: str) -> Iterator[Finding]:
    """Messages, docstrings and comments use the words of the pages. Names in the code may be anything."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if tokenize.tok_name[token.type] in ("STRING", "COMMENT", "FSTRING_MIDDLE"):
            for match in PHRASES_OF_SOURCE.finditer(token.string):
                yield (
                    token.start[0] + token.string.count("\n", 0, match.start()),
                    f"{match[0]!r}: name the actor, plainly",
                )
            for match in NOT_A_SENTENCE.finditer(token.string):
                yield token.start[0] + token.string.count("\n", 0, match.end()), f"{match[0][:30]!r}: name the subject"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and INDIRECT.match(ast.get_docstring(node) or ""):
            yield getattr(node, "lineno", 1), "begin the docstring with what the thing is or does"


# A character class in each keeps this file from being its own finding.
MACHINE = re.compile(
    r"""/roo[t]/ | /home/[a-z] | /Users/[A-Za-z] | /opt/pyp[i] | (?<![\w.])/wor[k]/(main|shared)\b
    | --(extra-)?index-ur[l] | files\.pythonhosted\.or[g] | pypi\.org/simpl[e]
    | https?://[\w.-]*(artifactor[y]|nexu[s]\.|devp[i]|pypi[.-]?mirro[r]|pypi-prox[y])""",
    re.VERBOSE,
)


def machine_traces(path: str, source: str) -> Iterator[Finding]:
    for line, text in enumerate(source.splitlines(), 1):
        if match := MACHINE.search(text):
            yield line, f"{match[0]!r} is a fact about one machine or registry"


# --- What the rules read ---------------------------------------------------------------------------------


def imports(path: str, tree: ast.AST) -> Iterator[Finding]:
    """The absolute name of everything imported, wherever in the module the import stands."""
    package = ["holdfast", *PurePosixPath(path).parts[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = [*base, *([node.module] if node.module else [])]
            yield from ((node.lineno, ".".join([*stem, alias.name])) for alias in node.names)


def names(tree: ast.AST) -> Iterator[Finding]:
    """Every dotted name that is imported or used, with `import … as …` seen through."""
    meaning: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                short = alias.name.split(".")[0]
                meaning[alias.asname or short] = alias.name if alias.asname else short
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                meaning[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and (dotted := spelled(node)):
            first, *rest = dotted
            yield node.lineno, ".".join([meaning.get(first, first), *rest])


def spelled(node: ast.expr) -> list[str]:
    """["time", "time"] for `time.time`; [] for what is not a plain dotted name, such as `f().time`."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Attribute) and (before := spelled(node.value)):
        return [*before, node.attr]
    return []


def strings(tree: ast.AST) -> Iterator[Finding]:
    """String literals other than docstrings; an f-string is one string with ? for each value."""
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            parts.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts.update(id(part) for part in node.values)
            text = "".join(str(p.value) if isinstance(p, ast.Constant) else "?" for p in node.values)
            yield node.lineno, text
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.lineno, node.value


def identifiers(tree: ast.AST) -> Iterator[Finding]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield node.lineno, name
            case ast.keyword(arg=str(name)):
                yield node.lineno, name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((node.lineno, alias.asname or alias.name) for alias in aliases)


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def repository_files() -> list[Path]:
    """What git tracks; in a copy without git, every file that is not in a folder made by the tools."""
    git = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    try:
        listed = subprocess.run(git, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        files: list[Path] = []
        for folder, subfolders, here in os.walk(ROOT):
            subfolders[:] = [d for d in subfolders if d == ".ci" or not d.startswith((".", "__pycache__"))]
            files += [Path(folder, name) for name in here]
        return sorted(files)
    return [ROOT / name for name in listed.split("\0") if name]


def findings(rule: Rule, base: Path, files: list[Path]) -> list[str]:
    found = []
    for path in files:
        try:
            source = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # an image
        for line, message in sorted(rule(path.relative_to(base).as_posix(), source)):
            found.append(f"{path.relative_to(ROOT).as_posix()}:{line}: {message}")
    return found


def assert_tidy(rule: Rule) -> None:
    found = findings(rule, PACKAGE, modules())
    assert not found, "\n" + "\n".join(found)


# --- The rules can fail ----------------------------------------------------------------------------------

LONG_MODULE = "x = 1\n" * (MODULE_LINES_MAX + 1)
LONG_FUNCTION = "def f():\n" + "    x = 1\n" * FUNCTION_LINES_MAX
HOME = "/ho" + "me/ann/src"

BROKEN: list[tuple[Rule, str, str]] = [
    (layers, "core/verdict.py", "from holdfast.stores import protocol"),
    (layers, "core/verdict.py", "from holdfast import App"),
    (layers, "core/verdict.py", "import holdfast"),
    (layers, "core/verdict.py", "from .. import clock"),
    (layers, "core/verdict.py", "from ..clock import Clock"),
    (layers, "core/verdict.py", "def f():\n    import holdfast.app"),
    (layers, "core/verdict.py", "import os.path"),
    (layers, "core/verdict.py", "from uuid import UUID"),
    (layers, "core/verdict.py", "def f():\n    import threading"),
    (layers, "errors.py", "from holdfast.jobs import Job"),
    (layers, "failpoints.py", "from holdfast import app"),
    (layers, "stores/sqlite/store.py", "from holdfast.stores.memory import MemoryStore"),
    (layers, "stores/sqlite/store.py", "from holdfast.stores import memory"),
    (layers, "stores/sqlite/store.py", "from ..memory import MemoryStore"),
    (layers, "stores/sqlite/store.py", "from ... import reaper"),
    (layers, "stores/memory.py", "from .sqlite.store import SqliteStore"),
    (layers, "stores/protocol.py", "from . import memory"),
    (layers, "stores/sqlite/store.py", "from holdfast import identity"),
    (layers, "stores/__init__.py", "from holdfast import app"),
    (layers, "worker/runner.py", "from holdfast.cli import main"),
    (layers, "upkeep/reaper.py", "from holdfast import insight"),
    (layers, "app.py", "def serve():\n    from holdfast import server"),
    (layers, "app.py", "from holdfast.rescue import scan"),
    (layers, "worker/runner.py", "from holdfast.admin import Admin"),
    (layers, "insight/views.py", "from holdfast.admin import Admin"),
    (layers, "admin.py", "from holdfast.cli import main"),
    (layers, "not_yet_known.py", "from holdfast import cli"),
    (layers, "insight.py", "from holdfast import server"),
    (layers, "insight.py", "from holdfast.integrations import celery"),
    (layers, "server/api.py", "from holdfast.testing import FakeClock"),
    (layers, "server/api.py", "from holdfast.integrations import celery"),
    (layers, "cli/main.py", "from holdfast.testing import FakeClock"),
    (layers, "rescue/scan.py", "from holdfast.testing import FakeClock"),
    (clocks, "app.py", "import time\nnow = time.time()"),
    (clocks, "app.py", "import time as t\nnow = t.monotonic()"),
    (clocks, "app.py", "from time import time_ns as now"),
    (clocks, "app.py", "import time\ntime.clock_gettime(time.CLOCK_BOOTTIME)"),
    (clocks, "app.py", "import datetime\ndatetime.datetime.now()"),
    (clocks, "app.py", "from datetime import datetime as dt\ndt.utcnow()"),
    (clocks, "app.py", "import time\nfield(default_factory=time.time)"),
    (clocks, "worker/heartbeat.py", "import time\ntime.sleep(1)"),
    (clocks, "cli/demo.py", "from time import sleep"),
    (randomness, "app.py", "import random"),
    (randomness, "app.py", "def f():\n    from uuid import uuid4"),
    (randomness, "server/auth.py", "import secrets"),
    (randomness, "app.py", "import os\nos.urandom(8)"),
    (code_from_data, "stores/row_json.py", "import pickle"),
    (code_from_data, "stores/row_json.py", "from marshal import loads"),
    (code_from_data, "app.py", "eval('1')"),
    (code_from_data, "app.py", "import builtins\nbuiltins.exec('1')"),
    (code_from_data, "cli/main.py", "__import__('os')"),
    (code_from_data, "worker/runner.py", "import importlib\nimportlib.import_module('x')"),
    (code_from_data, "worker/runner.py", "from importlib import import_module"),
    (sql_in_python, "app.py", "q = 'SELECT * FROM jobs'"),
    (sql_in_python, "app.py", "q = '''\n  select id, fence\n  from jobs'''"),
    (sql_in_python, "app.py", "q = 'SELECT pg_advisory_lock(%s)'"),
    (sql_in_python, "app.py", "q = 'SELECT ' + columns"),
    (sql_in_python, "app.py", "q = f'SELECT {columns} FROM jobs'"),
    (sql_in_python, "app.py", "q = f'update {table} set state = 1'"),
    (sql_in_python, "app.py", "q = 'INSERT OR IGNORE INTO jobs VALUES (?)'"),
    (sql_in_python, "app.py", "q = 'DELETE FROM jobs'"),
    (sql_in_python, "app.py", "q = 'CREATE UNIQUE INDEX i ON jobs (id)'"),
    (sql_in_python, "app.py", "q = 'WITH due AS (SELECT 1) SELECT 2'"),
    (sql_in_python, "app.py", "q = '-- name: claim\\nUPDATE jobs SET state = 1'"),
    (composed_sql, "app.py", "conn.execute(f'{query} LIMIT 1')"),
    (composed_sql, "app.py", "conn.execute(f'PRAGMA {name}')"),
    (composed_sql, "app.py", "conn.execute('PRAGMA %s' % name)"),
    (composed_sql, "app.py", "conn.executemany(query + tail, rows)"),
    (composed_sql, "app.py", "conn.executescript('PRAGMA {}'.format(name))"),
    (composed_sql, "app.py", "conn.execute(query=f'{q} LIMIT 1')"),
    (sizes, "jobs.py", LONG_MODULE),
    (sizes, "app.py", LONG_FUNCTION),
    (sizes, "app.py", "class A:\n    async " + LONG_FUNCTION.replace("\n", "\n    ")),
    (prints, "app.py", "print('x')"),
    (words, "app.py", "visibility_timeout = 3"),
    (words, "app.py", "class DeadLetterQueue: ..."),
    (words, "app.py", "def f(max_attempts): ..."),
    (words, "app.py", "f(heartbeat_interval=3)"),
    (words, "app.py", "self.isLeader = True"),
    (plain_english, "docs/a.md", "It starts anew."),
    (plain_english, "docs/a.md", "It waits in vain."),
    (plain_english, "docs/a.md", "A worker runs beside it."),
    (plain_english, "docs/a.md", "It commits all the same."),
    (plain_english, "docs/a.md", "It goes on behind the last step."),
    (plain_english, "docs/a.md", "The epitaph says why."),
    (plain_english, "docs/a.md", "The job comes to\nits end."),
    (plain_english, "docs/a.md", "Replace it after so many jobs."),
    (plain_english, "docs/a.md", "A late reaper is no zombie."),
    (plain_english, "docs/a.md", "The others are told."),
    (plain_english, "docs/a.md", "A cell is a process."),
    (plain_english, "docs/a.md", "Whoever has it keeps it."),
    (plain_english, "docs/a.md", "# Title\n\nWhat it holds is renewed."),
    (plain_english, "docs/a.md", "- Who ends there well gets it back."),
    (plain_english, "docs/a.md", "It ends. Of a held one this says\nmore."),
    (plain_source, "app.py", "x = 1  # somebody waits"),
    (plain_source, "app.py", "log.error(f'{name} stumbled')"),
    (plain_source, "app.py", 'def f():\n    """Start\n    anew."""'),
    (plain_source, "app.py", "x = 1  # a late reaper is no zombie"),
    (plain_source, "app.py", "x = 1  # it stops. Who comes second waits."),
    (plain_source, "app.py", '"""Where the rows are."""'),
    (plain_source, "app.py", 'class A:\n    """What is known."""'),
    (plain_source, "app.py", 'def f():\n    """Return it.\n\n    What is left is kept.\n    """'),
    (machine_traces, "README.md", f"cd {HOME}"),
    (machine_traces, "requirements-dev.lock", "--index-" + "url https://example.org/simple"),
    (machine_traces, "requirements-dev.lock", "x @ https://pypi-" + "mirror.example.org/x.whl"),
]

FINE: list[tuple[Rule, str, str]] = [
    (layers, "core/verdict.py", "import datetime\nfrom . import records\nfrom .. import errors"),
    (layers, "core/verdict.py", "from holdfast.core.records import Job\nfrom holdfast.errors import Refused"),
    (layers, "stores/sqlite/store.py", "from holdfast.stores import row_json, protocol\nfrom . import schema"),
    (layers, "stores/sqlite/store.py", "import sqlite3\nfrom ..sql import load\nfrom ... import clock"),
    (layers, "stores/__init__.py", "def connect(url):\n    from holdfast.stores.sqlite.store import Store"),
    (layers, "app.py", "from holdfast import stores, worker\nfrom holdfast.stores.protocol import Store"),
    (layers, "cli/rescue.py", "from holdfast import insight, rescue, server, integrations"),
    (layers, "__main__.py", "from holdfast.cli.main import main"),
    (layers, "testing/fake.py", "from holdfast.testing import clock\nfrom holdfast import app"),
    (clocks, "clock.py", "import time\ntime.time()\ntime.sleep(1)"),
    (clocks, "app.py", "from datetime import datetime\ndatetime.fromtimestamp(3)\nself.clock.time()"),
    (randomness, "ids.py", "import random, uuid, secrets"),
    (randomness, "app.py", "from holdfast.ids import new_id"),
    (code_from_data, "cli/load.py", "import importlib\nimportlib.import_module('x')"),
    (code_from_data, "stores/redis/store.py", "client.eval(script)\nimport importlib.resources"),
    (sql_in_python, "app.py", "def f():\n    '''Select jobs from a queue.'''\n    run('BEGIN IMMEDIATE')"),
    (sql_in_python, "app.py", "h = ['PRAGMA user_version', 'Update the schema', 'With care', 'select']"),
    (composed_sql, "app.py", "conn.execute(query, (f'%{name}%', a + b))\nconn.execute('COMMIT')"),
    (composed_sql, "app.py", "conn.execute(f'PRAGMA busy_timeout={ms}')"),
    (sizes, "app.py", "x = 1\n" * MODULE_LINES_MAX),
    (sizes, "app.py", LONG_FUNCTION.removesuffix("    x = 1\n")),
    (prints, "cli/main.py", "print('x')"),
    (words, "worker/context.py", "def heartbeat(self): ..."),
    (words, "integrations/celery.py", "visibility_timeout = 3"),
    (plain_english, "docs/a.md", "## What is promised\n\nIt is no longer `told: anew`. There is no store."),
    (plain_english, "docs/a.md", "What happens next? The worker runs it.\n\n```text\nWho is told.\n```"),
    (plain_source, "app.py", "somebody = 1  # another process"),
    (plain_source, "app.py", "ask('What happened?')  # there is no store"),
    (machine_traces, "README.md", "make demo; see https://pypi.org/project/holdfast/ and $HOME"),
]


@pytest.mark.parametrize(("rule", "path", "source"), BROKEN)
def test_each_rule_reports_what_it_forbids(rule: Rule, path: str, source: str) -> None:
    assert list(rule(path, source))


@pytest.mark.parametrize(("rule", "path", "source"), FINE)
def test_no_rule_reports_what_is_allowed(rule: Rule, path: str, source: str) -> None:
    assert list(rule(path, source)) == []


def test_a_finding_names_file_and_line() -> None:
    def example(path: str, source: str) -> Iterator[Finding]:
        yield 3, f"found in {path}"

    assert findings(example, ROOT / "tests", [Path(__file__).resolve()]) == [
        "tests/test_tidy.py:3: found in test_tidy.py"
    ]
