"""All mutants, and those that are known to change nothing."""

from __future__ import annotations

import tomllib
from collections import Counter
from pathlib import Path

from tests.mutants.hand import hand_mutants
from tests.mutants.lua import lua_mutants
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.python import python_mutants
from tests.mutants.sql import sql_mutants

EQUIVALENT = Path(__file__).with_name("equivalent.toml")


def all_mutants() -> list[Mutant]:
    """Make each of them; one that does not fit the tree any more ends the program."""
    mutants = [*sql_mutants(), *python_mutants(), *hand_mutants(), *lua_mutants()]
    names = Counter(mutant.name for mutant in mutants)
    if twice := [name for name, number in names.items() if number > 1]:
        raise SystemExit(f"several mutants have the same name: {twice}")
    if unknown := set(harmless()) - set(names):
        raise SystemExit(f"{EQUIVALENT.name} names mutants that do not exist: {unknown}")
    places = {test.partition("::")[0] for mutant in mutants for test in mutant.tests}
    if missing := [place for place in places if not (ROOT / place).exists()]:
        raise SystemExit(f"mutants name tests that do not exist: {missing}")
    return mutants


def harmless() -> dict[str, str]:
    """Return the names of the mutants that change nothing, each with the reason."""
    groups = tomllib.loads(EQUIVALENT.read_text())["harmless"]
    return {name: group["why"] for group in groups for name in group["mutants"]}
