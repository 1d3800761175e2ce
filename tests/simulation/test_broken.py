"""The nets are tested too: each broken core (broken.py) must be found by the simulation, the model, or both."""

from pathlib import Path

import pytest

from tests.simulation.broken import BROKEN, Broken
from tests.simulation.checker import Violation
from tests.simulation.model_check import explore
from tests.simulation.test_simulation import SEEDS, SQLITE_SEEDS, over_memory, over_sqlite
from tests.simulation.worlds import WORLDS

BY_MODEL = [broken for broken in BROKEN if broken.world is not None]


def named(broken: Broken) -> str:
    return broken.name


@pytest.mark.parametrize("broken", [broken for broken in BROKEN if broken.simulated], ids=named)
def test_the_simulation_finds_it(broken: Broken, tmp_path: Path) -> None:
    with broken.core():
        for seed in range(broken.first_seed, broken.first_seed + (SQLITE_SEEDS if broken.sqlite else SEEDS)):
            try:
                over_sqlite(seed, tmp_path / str(seed)) if broken.sqlite else over_memory(seed)
            except Violation as violation:
                print(f"{broken.name}: seed {seed}: {violation.promise}")
                return
    pytest.fail(f"{SEEDS} seeds do not see it: {broken.name}")


@pytest.mark.parametrize("broken", BY_MODEL, ids=named)
def test_the_model_check_finds_it(broken: Broken) -> None:
    with broken.core(), pytest.raises(Violation) as caught:
        explore(WORLDS[broken.world or ""])
    steps = len(caught.value.steps_taken)
    print(f"{broken.name}: {caught.value.promise} after {steps} steps of the world {broken.world!r}")


def test_what_the_model_check_cannot_find_has_a_reason() -> None:
    assert [broken.name for broken in BROKEN if (broken.world is None) != bool(broken.why)] == []
    assert len(BROKEN) >= 25
    assert len({broken.name for broken in BROKEN}) == len(BROKEN)


def test_the_core_is_whole_again_afterwards() -> None:
    with BROKEN[0].core(), pytest.raises(Violation):
        over_memory(0)
    over_memory(0)


def test_a_broken_core_that_no_longer_fits_the_code_says_so() -> None:
    module, function, _, new = BROKEN[0].edits[0]
    stale = Broken("stale", ((module, function, "this line is gone", new),))
    with pytest.raises(AssertionError, match="mend the broken core"), stale.core():
        pass
