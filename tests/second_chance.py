"""Run the few tests that failed in the whole run once more, alone: `python -m tests.second_chance`.

Tests of real processes can lose a race against a machine that does too much at once. A failure that comes back on a
quiet machine is a defect of the product; one that does not is a defect of the test, and is named at the end, to be
mended. More than a few failures are never blamed on the machine.
"""

import json
import subprocess
import sys
from pathlib import Path

FEW = 2
FAILED = 1  # pytest's exit code when tests failed; others mean that it could not run them
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(exit_code: int) -> int:
    failed = sorted(json.loads(LAST_FAILED.read_text())) if exit_code == FAILED and LAST_FAILED.exists() else []
    if not 0 < len(failed) <= FEW:
        return exit_code
    print("These failed in the whole run, and run again alone:", *failed, sep="\n  ", flush=True)
    again = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *failed], check=False).returncode
    if again == 0:
        print("UNSTABLE: these failed in the whole run and passed alone. Mend them:", *failed, sep="\n  ", flush=True)
    return again


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
