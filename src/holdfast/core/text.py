"""Text from the user's code, made fit for every store."""

from __future__ import annotations


def clean(text: str, most: int) -> str:
    """Cut to the last `most` characters and replace what no store can hold: NUL and lone surrogates."""
    return text[-most:].replace("\0", "␀").encode("utf-8", "replace").decode("utf-8")
