"""Scripts and styles: read once, named by their content, and kept by browsers for a year."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import PurePath

from holdfast.server.call import Call
from holdfast.server.problems import Problem
from holdfast.server.routes import Answer

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
SCRIPT_MAX = 15_000  # bytes of our own script


@dataclass(frozen=True, slots=True)
class StaticFile:
    """One file. `name` has a digest of the content, so it never changes under a name."""

    name: str
    content: bytes
    packed: bytes
    media_type: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Return the files by the name that they have in the folder."""
    found: dict[str, StaticFile] = {}
    for file in (files("holdfast.server.pages") / "static").iterdir():
        stem, ending = PurePath(file.name).stem, PurePath(file.name).suffix
        if ending in TYPES:
            content = file.read_bytes()
            name = f"{stem}.{hashlib.sha256(content).hexdigest()[:12]}{ending}"
            found[file.name] = StaticFile(name, content, gzip.compress(content, mtime=0), TYPES[ending])
    return found


@cache
def _by_hashed_name() -> dict[str, StaticFile]:
    return {each.name: each for each in static_files().values()}


async def send_static(call: Call) -> Answer:
    """Send a script, a style or a picture."""
    found = _by_hashed_name().get(call.path["name"])
    if found is None:
        raise Problem("not_found", "there is no such file; reload the page")
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    content = found.content
    if "gzip" in call.headers.get("accept-encoding", ""):
        content, headers["content-encoding"] = found.packed, "gzip"
    return Answer(content=content, headers=headers, media_type=found.media_type)
