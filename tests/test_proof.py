"""docs/proof.md is made from committed results, and each of its commands names tests that exist."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def proof(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module("proof")


def test_the_page_says_what_the_results_say(proof: ModuleType) -> None:
    results = json.loads(proof.RESULTS.read_text())
    assert proof.PAGE.read_text() == proof.page(results), "run: bench/proof.py --write"
    assert results.keys() <= {each.name for each in proof.PROOFS}


def test_every_proof_names_tests_that_exist(proof: ModuleType) -> None:
    for each in proof.PROOFS:
        for word in each.words.split():
            path = word.replace(".", "/") if each.is_module else word
            assert (ROOT / path).exists(), each.name


def test_a_case_that_failed_is_named_on_the_page(proof: ModuleType) -> None:
    found = {"at": "2026-01-01", "commit": "abc", "load": 1.0, "changed": False, "passed": 3, "failed": 1}
    text = proof.page({"kills": {**found, "skipped": 0, "names": ["test_it_holds"]}})
    assert "- kills: test_it_holds" in text
    assert "| 4 | 3 | 1 |" in text
