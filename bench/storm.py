"""5,000 jobs, 4 workers, 40 times kill -9 at random.  python bench/storm.py [jobs] [kills] [seed]

Every job must be done, by its newest attempt, once; nobody may be taken for dead who was not killed. Prints what was
seen, and exits non-zero when a promise was broken.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.crash.storm import Plan, storm


def main(jobs: int = 5_000, kills: int = 40, seed: int = 1) -> int:
    print(f"{jobs} jobs of 20 to 200 ms, 2 groups of 2 workers, {kills} kills, seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        figures = storm(Path(folder), Plan(jobs=jobs, kills=kills, seed=seed, slots=8, patience_s=900.0))
    print("\n".join(figures.lines()))
    return 1 if figures.wrong or figures.kills.total() != kills or not figures.zombies else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
