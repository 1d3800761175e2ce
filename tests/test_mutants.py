"""The tool that breaks guards: it changes what it was told to change, and nothing else."""

from __future__ import annotations

import itertools
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tests.mutants import Mutant, hand, in_place, python
from tests.mutants.mutant import PACKAGE
from tests.mutants.run import Result, Results

FUNCTION = re.compile(r"CREATE (?:OR REPLACE )?FUNCTION \{schema\}\.(\w+)")

SOURCE = '''
class Door:
    def open(self, key: int) -> bool:
        """Open it."""
        if (
            key == 7  # the owner
            or key == 8
        ):
            self.count += 5
            return True
        match key:
            case int(real=9):
                return True
        return False

    def close(self, key: int) -> bool:
        return key == 7
'''


def change(function: str, old: str, new: str = "", nth: int = 0) -> str:
    return hand._change_python(SOURCE, function, old, new, nth)


def test_an_expression_is_found_whatever_its_layout() -> None:
    assert "        if (\n            (False)\n        ):\n" in change("Door.open", "key == 7 or key == 8", "False")


def test_only_the_named_function_is_changed() -> None:
    changed = change("Door.close", "key == 7", "True")
    assert changed == SOURCE.replace("        return key == 7", "        return (True)")


def test_statements_are_removed() -> None:
    assert change("Door.open", "self.count += 5") == SOURCE.replace("self.count += 5", "pass")


def test_a_pattern_is_changed() -> None:
    assert change("Door.open", "case int(real=9)", "case int()") == SOURCE.replace("int(real=9)", "int()")


def test_one_of_several_is_chosen_by_its_number() -> None:
    changed = change("Door", "key == 7", "key == 5", nth=2)
    assert changed == SOURCE.replace("return key == 7", "return (key == 5)")


@pytest.mark.parametrize(("old", "nth"), [("key == 7", 0), ("key == 7", 3), ("key == 9", 0)])
def test_what_does_not_fit_is_refused(old: str, nth: int) -> None:
    with pytest.raises(hand.Unfit, match="stands there"):
        change("Door", old, "True", nth)


def test_a_condition_of_a_statement_is_changed_in_that_statement_only() -> None:
    source = "-- name: one\nSELECT 1\nWHERE a = 1\n    AND b = 2;\n-- name: two\nSELECT 2 WHERE b = 2;\n"
    changed = hand._change_sql(source, "one", "WHERE a = 1 AND b = 2", "WHERE b = 2", 0)
    assert changed == "-- name: one\nSELECT 1\nWHERE b = 2;\n-- name: two\nSELECT 2 WHERE b = 2;\n"


def test_every_condition_of_functions_and_methods_is_changed() -> None:
    said = {f"{each.function}: {each.said}" for each in python.changes(SOURCE)}
    assert said == {
        "Door.open: without (key == 7) in (key == 7 or key == 8)",
        "Door.open: without (key == 8) in (key == 7 or key == 8)",
        "Door.open: if not (key == 7 or key == 8)",
        "Door.open: True flipped",
        "Door.open: False flipped",
    }


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    results = Results(tmp_path / "results")
    results.add(Result("one", "d1", alive=True, took_s=1.0))
    results.add(Result("one", "d2", alive=False, took_s=1.0))
    with (tmp_path / "results").open("a") as file:
        file.write('{"name": "two", "dig')  # killed while it wrote
    assert {name: result.digest for name, result in results.load().items()} == {"one": "d2"}


def test_a_result_holds_while_the_change_and_its_tests_are_the_same() -> None:
    tests = ("tests/test_mutants.py",)
    one = Mutant("m", "app.py", "text", tests)
    assert one.digest == Mutant("m", "app.py", "text", tests).digest
    assert one.digest != Mutant("m", "app.py", "other text", tests).digest
    assert one.digest != Mutant("m", "app.py", "text", ("tests/test_tidy.py",)).digest


def test_the_code_of_a_changed_function_is_replaced_in_an_imported_module() -> None:
    source = """
def plain(x: int) -> bool:
    return x > 1

class Door:
    @property
    def number(self) -> int:
        return 7

    @staticmethod
    def locked(keys: list[int]) -> list[int]:
        return [key for key in keys if key > 1]
"""
    module = ModuleType("door")
    exec(compile(source, "door.py", "exec"), vars(module))
    plain, door = module.plain, module.Door()
    changed = "# another line\n" + source.replace("x > 1", "x >= 1").replace("7", "8").replace("key > 1", "not key > 1")
    in_place.replace_code(module, source, changed)
    assert (plain(1), door.number, door.locked([1, 2])) == (True, 8, [1])


def test_no_mutant_changes_a_function_that_a_later_migration_replaces() -> None:
    """It would change nothing."""
    last: dict[str, str] = {}
    for path in sorted((PACKAGE / "stores/postgres/migrations").glob("*.sql")):
        last |= dict.fromkeys(FUNCTION.findall(path.read_text()), f"stores/postgres/migrations/{path.name}")
    for area in hand.AREAS.glob("*.toml"):
        entries = tomllib.loads(area.read_text())
        for file in (name for name in entries if "/migrations/" in name):
            for entry in entries[file]:
                source, changed = (PACKAGE / file).read_text(), hand.mutate(file, entry)
                same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(source, changed, strict=False))
                before = source[: len(list(same))].rpartition("\n$$;")[2]
                functions = FUNCTION.findall(before)
                assert not functions or last[functions[-1]] == file, entry["name"]
