"""Break one guard at a time; a test must go red. `python -m tests.mutants --help` says how to run it.

Three kinds of mutants:

- *SQL* (`sqlite`, `postgres`): drop each condition of every statement that guards something (`sql.py`).
- *Python*: in each pure module negate every condition, move every comparison by one, drop every operand of `and` and
  `or`, and remove every move of the state machine (`python.py`).
- *Hand*: guards that no program finds, in `areas/*.toml`: a function, an expression in it, what replaces it, and the
  tests that must notice (`hand.py`).

`equivalent.toml` lists the mutants that change nothing, each with its reason.
"""

from tests.mutants.catalogue import all_mutants, harmless
from tests.mutants.mutant import Mutant
from tests.mutants.sql import guards

__all__ = ["Mutant", "all_mutants", "guards", "harmless"]
