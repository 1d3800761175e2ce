"""Mutants of Lua: each write of every script of the Redis store, dropped in turn."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tests.mutants.mutant import PACKAGE, Mutant

SCRIPTS = "stores/redis/scripts"
# A statement that writes, or that puts a write into a list, on a line of its own or after `then`, `do` or a head.
WRITE = re.compile(
    r"(?<![\w.])(?:(?:redis\.)?(?:write|call)|add)\('[A-Z]+'(?:[^()\n]|\((?:[^()\n]|\([^()\n]*\))*\))*\)"
)
READS = ("GET", "HGET", "ZRANGE", "ZSCORE", "ZCARD", "SCARD", "LLEN", "SISMEMBER", "EXISTS", "HLEN", "HEXISTS", "TIME")

CONFORMANCE = "tests/conformance"
TORN, FOREIGN, REDIS = (f"tests/stores/test_redis{each}.py" for each in ("_torn", "_foreign", ""))
TESTS = {
    "claim.lua": (TORN, f"{CONFORMANCE}/test_claim.py", f"{CONFORMANCE}/test_claim_limits.py"),
    "commit.lua": (TORN, REDIS, f"{CONFORMANCE}/test_add.py", f"{CONFORMANCE}/test_standing.py"),
    "lib.lua": (TORN, FOREIGN, f"{CONFORMANCE}/test_claim.py", f"{CONFORMANCE}/test_due.py", CONFORMANCE),
    "migrate.lua": (REDIS, f"{CONFORMANCE}/test_schema.py", f"{CONFORMANCE}/test_standing.py"),
    "writes.lua": (TORN, FOREIGN, f"{CONFORMANCE}/test_errors.py", f"{CONFORMANCE}/test_audit.py", CONFORMANCE),
}


def lua_mutants() -> Iterator[Mutant]:
    for file, tests in TESTS.items():
        source = (PACKAGE / SCRIPTS / file).read_text()
        seen = Counter[str]()
        for match in WRITE.finditer(source):
            statement = match.group()
            if statement.partition("'")[2].partition("'")[0] in READS or not _is_statement(source, match.start()):
                continue
            seen[statement] += 1
            again = f" ({seen[statement]})" if seen[statement] > 1 else ""
            text = source[: match.start()] + source[match.end() :]
            yield Mutant(f"lua {file} without {statement}{again}", f"{SCRIPTS}/{file}", text, tests)


def _is_statement(source: str, at: int) -> bool:
    """Say whether nothing uses what the call returns."""
    before = source[:at].rpartition("\n")[2].rstrip()
    return not before or before.endswith(("then", "do", ")"))
