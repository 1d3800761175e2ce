"""One mutant: a file of the package, changed in one place, and the tests that must notice."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SRC = ROOT / "src"
PACKAGE = SRC / "holdfast"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One file of the package, changed in one place."""

    name: str
    file: str  # below the package
    text: str
    tests: tuple[str, ...]
    is_in_a_function: bool = False  # and its tests call that function in their own process

    @property
    def server(self) -> str:
        """Return the kind of server without which no test can notice it, if there is one."""
        for kind in ("postgres", "redis"):
            if kind in self.file or all(kind in test for test in self.tests):
                return kind
        return ""

    @property
    def noticed_by(self) -> str:
        """Return the words by which pytest chooses tests: what cannot notice is not run.

        The memory store is made of the pure modules, and its tests are the fastest.
        """
        if self.server:
            return self.server
        no_server = "not postgres and not redis"
        return f"{no_server} and not sqlite" if self.name.startswith("python ") else no_server

    @property
    def digest(self) -> str:
        """Return a fingerprint of the change and of the tests: a result found under the same one still holds."""
        parts = [self.text, *(content for test in self.tests for content in _contents(test))]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _contents(test: str) -> list[str]:
    path = ROOT / test.partition("::")[0]
    return [file.read_text() for file in ([path] if path.is_file() else sorted(path.rglob("*.py")))]
