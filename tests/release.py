"""`make dist`: build what would be uploaded, check it, and try it in empty environments.

    python -m tests.release [FOLDER]

For each extra an environment is made with exactly what the wheel asks for, in the versions of the lock file. There the
program must start, and import what the extra is for.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
# extra -> a statement that needs it
TRIES = {
    "": "import holdfast, holdfast.testing; holdfast.App('memory://').counts()",
    "postgres": "import holdfast.stores.postgres.store",
    "redis": "import holdfast.stores.redis.store",
    "server": "import holdfast.server.serve",
    "otel": "import holdfast.integrations.opentelemetry, opentelemetry.trace",
    "all": "import holdfast.server.serve, holdfast.stores.postgres.store, holdfast.stores.redis.store",
}


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from the sdist, as a packager would; return wheel and sdist."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder), at=ROOT)
    [sdist] = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as unpacked:
        with tarfile.open(sdist) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
            archive.extractall(unpacked)
        [source] = Path(unpacked).iterdir()
        _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder), at=source)
    [wheel] = folder.glob("*.whl")
    return wheel, sdist


def check(wheel: Path, sdist: Path) -> None:
    """Check that the sdist has everything to build, test and read, and the wheel everything to run."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {
        "pyproject.toml",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "SECURITY.md",
        "Makefile",
        "requirements-dev.lock",
    }
    wanted |= {"tests/conftest.py", "docs/README.md", "src/holdfast/py.typed"}
    if missing := wanted - names:
        raise SystemExit(f"the sdist lacks {sorted(missing)}")
    with zipfile.ZipFile(wheel) as carried:
        wanted = {name.removeprefix("src/") for name in names if name.startswith("src/") and "." in name}
        if missing := {name for name in wanted if not name.endswith(".pyc")} - set(carried.namelist()):
            raise SystemExit(f"the wheel lacks {sorted(missing)}")


def check_upload(*files: Path) -> None:
    """Check the metadata as an index does, by twine in an environment of its own."""
    with tempfile.TemporaryDirectory() as folder:
        _run(sys.executable, "-m", "venv", folder)
        python = str(Path(folder) / "bin" / "python")
        _run(python, "-m", "pip", "install", "-q", "twine>=6")
        _run(python, "-m", "twine", "check", "--strict", *map(str, files))


def metadata_of(wheel: Path) -> dict[str, list[str]]:
    """Return the headers of a wheel's metadata."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
        head = archive.read(name).decode().partition("\n\n")[0]
    found: dict[str, list[str]] = {}
    for line in head.splitlines():
        key, _, value = line.partition(": ")
        found.setdefault(key, []).append(value)
    return found


def install(wheel: Path, extra: str, folder: Path) -> None:
    """Make an empty environment, install the wheel with an extra, and try it."""
    _run(sys.executable, "-m", "venv", str(folder))
    python = str(folder / "bin" / "python")
    pins = folder / "pins"
    lock = (ROOT / "requirements-dev.lock").read_text("utf-8")
    pins.write_text("\n".join(re.findall(r"^[a-z0-9._-]+==[^\s\\]+", lock, re.MULTILINE)))
    wanted = f"{wheel}[{extra}]" if extra else str(wheel)
    _run(python, "-m", "pip", "install", "-q", "-c", str(pins), wanted, at=folder)
    _run(python, "-m", "pip", "check", at=folder)
    _run(python, "-W", "error", "-c", TRIES[extra], at=folder)
    _run(str(folder / "bin" / "holdfast"), "db", "init", "--db", f"sqlite:///{folder}/jobs.db", at=folder)


def main() -> None:
    """Build into dist/, or the folder that is named; check and try everything."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("holdfast-*.whl"), *folder.glob("holdfast-*.tar.gz")):
        old.unlink()
    wheel, sdist = build(folder)
    check(wheel, sdist)
    check_upload(wheel, sdist)
    for extra in TRIES:
        with tempfile.TemporaryDirectory() as environment:
            install(wheel, extra, Path(environment))
        _say(f"installed {wheel.name}{f'[{extra}]' if extra else ''}")
    _say(f"{wheel} and {sdist} are ready")


def _run(*command: str, at: Path | None = None) -> None:
    done = subprocess.run(command, cwd=at, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()
