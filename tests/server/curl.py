"""`curl`: that of the machine or, on one without it, as much of it in Python as examples/holdfast.sh and tests use."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import urllib.error
import urllib.request
from pathlib import Path


def path_with_curl(folder: Path) -> str:
    """Return a PATH on which there is a curl. One of ours is written into this folder."""
    path = os.environ.get("PATH", os.defpath)
    if shutil.which("curl", path=path):
        return path
    program = folder / "bin" / "curl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{__file__}" "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{path}"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-s", action="store_true")
    parser.add_argument("-S", action="store_true")
    parser.add_argument("-K", dest="config")
    parser.add_argument("-H", dest="headers", action="append", default=[])
    parser.add_argument("-X", dest="method")
    parser.add_argument("-d", "--data-binary", dest="body")
    parser.add_argument("-o", dest="output")
    parser.add_argument("-w", dest="after", default="")
    parser.add_argument("--max-time", type=float)
    parser.add_argument("url")
    given = parser.parse_args()
    lines = Path(given.config).read_text().splitlines() if given.config else []
    headers = [*given.headers, *(line.partition("=")[2].strip().strip('"') for line in lines)]
    body = sys.stdin.buffer.read() if given.body == "@-" else (given.body or "").encode()
    method = given.method or ("POST" if body else "GET")
    request = urllib.request.Request(
        given.url, body or None, dict(each.split(": ", 1) for each in headers), method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=given.max_time) as answer:
            status, content = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, content = error.code, error.read()
    except OSError:
        sys.stdout.write(given.after.replace("%{http_code}", "000"))
        return 7
    if given.output:
        Path(given.output).write_bytes(content)
    else:
        sys.stdout.write(content.decode())
    sys.stdout.write(given.after.replace("%{http_code}", str(status)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
