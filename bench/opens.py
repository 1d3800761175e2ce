"""What does the protection of a SQLite store's files cost each `open` in a worker?

    python bench/opens.py

Prints the microseconds that it adds to the first open of a path, and to every later one within a second: the best of
several rounds.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from holdfast.stores.sqlite import protected
from holdfast.stores.sqlite.store import SqliteStore

FILES, PART, ROUNDS = 4000, 400, 10


def best_us(paths: Sequence[str]) -> float:
    """Return what one open and close takes, in the best part of all of these."""
    return min(_us(paths[begin : begin + PART]) for begin in range(0, len(paths), PART))


def _us(paths: Iterable[str]) -> float:
    begun = time.perf_counter()
    for path in paths:
        os.close(os.open(path, os.O_RDONLY))
    return (time.perf_counter() - begun) / PART * 1e6


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteStore(f"sqlite:///{folder}/jobs.db")
        store.migrate()
        paths = [f"{folder}/{number}" for number in range(FILES)]
        for path in paths:
            Path(path).touch()
        plain = min(best_us(paths) for _ in range(ROUNDS))
        protected.install()
        first = []
        for _ in range(ROUNDS):
            protected.refresh()  # forgets all paths
            first.append(best_us(paths))
        later = min(best_us(paths) for _ in range(ROUNDS))
        print(f"an open without it: {plain:.2f} µs; the first of a path: +{min(first) - plain:.2f} µs", end="; ")
        print(f"every later one: +{later - plain:.2f} µs")
        store.close()


if __name__ == "__main__":
    main()
