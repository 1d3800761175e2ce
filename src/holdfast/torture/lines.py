"""The effects that tasks mark with `holdfast.testing.effect`, as lines of a file that outlives their processes."""

from __future__ import annotations

from pathlib import Path

import msgspec

FILE = "HOLDFAST_EFFECTS"  # the environment variable that names the file; without it nothing is written


class EffectLine(msgspec.Struct, frozen=True):
    """One effect. `job` is None if it was marked outside of an attempt, as in a thread of the task's own."""

    job: str | None
    fence: int | None
    name: str
    key: str | None


_lines = msgspec.json.Decoder(EffectLine)


def encode(line: EffectLine) -> bytes:
    """Return the line as it is written."""
    return msgspec.json.encode(line) + b"\n"


class EffectFile:
    """Reads what was added since the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = 0
        path.touch(mode=0o600)

    def new(self) -> list[EffectLine]:
        """Return the effects that were marked since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [_lines.decode(line) for line in whole.splitlines()]
