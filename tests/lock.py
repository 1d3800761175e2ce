"""Add hashes to a lock file, so that pip installs only the files that were there when it was written.

.venv/bin/python -m tests.lock requirements-dev.lock

Each line `NAME==VERSION ; MARKER` gets the SHA-256 of every file of that version that a supported Python may install on
Linux or macOS, as the package index of pip's own settings names them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urljoin

from pip._internal.models.index import PyPI

JSON = "application/vnd.pypi.simple.v1+json"
WANTED = re.compile(r"-(?:py3|py2\.py3|cp3\d+)-(?:none|abi3)-|-cp31[123]-cp31[123]-")
FOREIGN = re.compile(r"win32|win_|ppc64le|s390x|armv7l|i686|riscv64|iphone|android")


def index() -> str:
    """Return the address of the package index that pip uses."""
    pip = [sys.executable, "-m", "pip", "config", "list"]
    settings = subprocess.run(pip, capture_output=True, text=True, check=True).stdout
    found = re.search(r"^[^=]*[.:]index-url='([^'\s]+)", settings, re.MULTILINE)
    return found[1] if found else PyPI.simple_url


def wanted(name: str, version: str, filename: str) -> bool:
    """Say whether a file is of this version and may be installed here."""
    stem = re.sub(r"[-_.]+", "_", name).lower()
    head, _, rest = filename.partition("-")
    if filename.endswith((".tar.gz", ".zip")):
        source = filename.removesuffix(".tar.gz").removesuffix(".zip")
        project, _, number = source.rpartition("-")
        return (re.sub(r"[-_.]+", "_", project).lower(), number) == (stem, version)
    if not filename.endswith(".whl") or re.sub(r"[-_.]+", "_", head).lower() != stem:
        return False
    return rest.partition("-")[0] == version and bool(WANTED.search(filename)) and not FOREIGN.search(filename)


def hashes(address: str, name: str, version: str) -> list[str]:
    """Return the SHA-256 of each file."""
    page = urljoin(address.rstrip("/") + "/", re.sub(r"[-_.]+", "-", name).lower() + "/")
    request = urllib.request.Request(page, headers={"Accept": JSON})
    with urllib.request.urlopen(request, timeout=60) as answer:
        text = answer.read().decode()
    if text.lstrip().startswith("{"):
        files = [(each["filename"], each["hashes"].get("sha256")) for each in json.loads(text)["files"]]
    else:  # an index that only speaks HTML has the hash behind the address of each file
        links = re.findall(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"', text)
        files = [(unquote(filename), digest) for filename, digest in links]
    found = sorted(digest for filename, digest in files if digest and wanted(name, version, filename))
    if not found:
        raise SystemExit(f"the package index names no file of {name} {version} with a SHA-256")
    return found


def locked(text: str, address: str) -> str:
    """Return the text of a lock file with hashes."""
    kept = re.sub(r" \\\n( +--hash=\S+( \\)?\n?)+", "\n", text)
    lines = [line for line in kept.splitlines() if line.strip()]
    pins = [line for line in lines if not line.startswith("#")]

    def with_hashes(line: str) -> str:
        name, _, version = line.partition(" ;")[0].strip().partition("==")
        return " \\\n".join([line, *(f"    --hash=sha256:{each}" for each in hashes(address, name, version))])

    with ThreadPoolExecutor(8) as pool:
        new = list(pool.map(with_hashes, pins))
    return "\n".join([*(line for line in lines if line.startswith("#")), *new]) + "\n"


def main(files: list[str]) -> None:
    """Rewrite the files."""
    address = index()
    for name in files:
        file = Path(name)
        file.write_text(locked(file.read_text(), address))


if __name__ == "__main__":
    main(sys.argv[1:])
