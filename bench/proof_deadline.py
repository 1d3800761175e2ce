"""A plugin of pytest for a short `make proof`: cases in a random order, and none begins after the time is up."""

from __future__ import annotations

import os
import random
import time

import pytest

LEFT_OUT = "the time of this proof is up"
_ends: list[float] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mix the modules, and the cases in each; all processes of a run mix alike."""
    draw = random.Random(os.environ["PROOF_SEED"])
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    names = sorted(modules)
    draw.shuffle(names)
    for name in names:
        draw.shuffle(modules[name])
    items[:] = [item for name in names for item in modules[name]]
    _ends.append(time.monotonic() + float(os.environ["PROOF_LIMIT_S"]))  # to find the cases takes its time, too


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Leave a case out when the time is up."""
    if time.monotonic() > _ends[-1]:
        pytest.skip(LEFT_OUT)
