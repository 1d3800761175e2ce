"""`make recipes`: check the files of `holdfast generate` with the tools that will read them.

It needs promtool, systemd-analyze and Docker Compose, and no root. A tool that is missing is a failure: on Debian,
`apt-get install prometheus systemd docker-compose`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
EXPOSURE_MAX = 2.5  # of 10, by `systemd-analyze security`
failures: list[str] = []


def run(name: str, *command: str, folder: Path) -> None:
    """Run a tool and show what it says."""
    print(f"== {name}: {' '.join(command)}", flush=True)
    if shutil.which(command[0]) is None:
        print(f"{command[0]} is not installed")
        failures.append(name)
        return
    env = {**os.environ, "JOBS_PASSWORD": "try", "COLUMNS": "100", "SYSTEMD_COLORS": "0"}
    found = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(found.stdout.rstrip()[-6000:])
    if found.returncode:
        failures.append(name)


def generate(folder: Path, kind: str, name: str) -> Path:
    file = folder / name
    command = [sys.executable, "-m", "holdfast", "generate", kind, "-o", str(file)]
    subprocess.run(command, check=True, capture_output=True)
    return file


def unit_for(folder: Path) -> Path:
    """Write the unit so that the paths and the user in it are there: systemd-analyze looks for them."""
    file = generate(folder, "systemd", "holdfast-worker.service")
    text = file.read_text().replace("/srv/app/.venv/bin/holdfast", sys.executable).replace("/srv/app", str(folder))
    file.write_text(text.replace("User=holdfast", "User=daemon").replace("Group=holdfast", "Group=daemon"))
    return file


def compose() -> tuple[str, ...]:
    """Return Docker Compose: the plugin, or the older program."""
    if shutil.which("docker"):
        if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
            return ("docker", "compose")
        if shutil.which("docker-compose") is None:
            return ("docker-compose-plugin",)  # is missing: docker alone reads no Compose file
    return ("docker-compose",)


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        generate(folder, "alerts", "alerts.yaml")
        shutil.copy(HERE / "alerts_test.yaml", folder)
        run("rules", "promtool", "check", "rules", "alerts.yaml", folder=folder)
        run("cases of the rules", "promtool", "test", "rules", "alerts_test.yaml", folder=folder)
        unit = unit_for(folder).name
        run("unit", "systemd-analyze", "verify", "--man=no", f"./{unit}", folder=folder)
        limit = f"--threshold={int(EXPOSURE_MAX * 10)}"
        run("unit's exposure", "systemd-analyze", "security", "--offline=yes", limit, f"./{unit}", folder=folder)
        generate(folder, "compose", "compose.yaml")
        run("compose", *compose(), "-f", "compose.yaml", "config", "--quiet", folder=folder)
    print(f"failed: {', '.join(failures)}" if failures else "all recipes are fine")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
