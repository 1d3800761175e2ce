"""How soon does a job run again after kill -9?  python bench/recovery.py [rounds]

Ten rounds of each scene by default, with real processes; exits non-zero when a median misses its bound.
"""

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.crash.recovery import SCENES
from tests.crash.world import World


def main(rounds: int) -> int:
    missed = 0
    print(f"{'from kill -9 until the handler runs again':54} {'min':>8} {'median':>8} {'max':>8} {'bound':>8}")
    for scene, (measure, bound_s) in SCENES.items():
        with tempfile.TemporaryDirectory() as folder:
            world = World(Path(folder))
            try:
                figures = sorted(measure(world, rounds))
            finally:
                world.close()
        median = statistics.median(figures)
        missed += median > bound_s
        cells = [f"{each:.3f} s" for each in (figures[0], median, figures[-1], bound_s)]
        print(f"{scene:54} " + " ".join(f"{cell:>8}" for cell in cells))
    print(f"{rounds} rounds each; " + ("every median is within its bound" if not missed else f"{missed} MISSED"))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
