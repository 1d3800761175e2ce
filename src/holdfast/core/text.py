"""Make text from user code safe to store and to show."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.errors import UsageError

_PASSWORD = re.compile(r"(://[^\s:/?#@]*:)[^\s@/]*@")
_NAMED = re.compile(
    r"(?i)((?:password|passwd|pwd|secret|token|api[_-]?key|access[_-]?key|authorization|cookie)[\w-]{0,40}"
    r"[\"']?\s{0,9}[=:]\s{0,9})(?:(?:bearer|basic)\s{1,9})?(\"[^\"]*\"|'[^']*'|[^\s,;&]+)"
)


def clean(text: str, most: int) -> str:
    """Cut to the last `most` characters, hide secrets, and replace what no store can hold: NUL and lone surrogates."""
    return _storable(hide_secrets(text[-2 * most :])[-most:])  # cut twice: half a secret would not be recognised


def one_line(text: str, most: int) -> str:
    """Do the same, but keep the first characters, and all of them on one line."""
    return _storable("⏎".join(hide_secrets(text[: 2 * most]).splitlines())[:most])


def escaped(text: str) -> str:
    """Write control characters, line breaks and invisible characters as escapes: text that cannot forge a line."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def counted(number: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def listed(words: Sequence[str], most: int = 5) -> str:
    """Write several words in a row; of very many the first few, and how many more."""
    more = len(words) - most
    return ", ".join(words[:most]) + (f" and {more} more" if more > 0 else "")


def check_storable(most: int = 10_000, **texts: str | None) -> None:
    """Raise `UsageError` for a text that some store cannot hold."""
    for name, text in texts.items():
        if text is None:
            continue
        if not isinstance(text, str) or len(text) > most:
            raise UsageError(f"{name}= must be text of at most {most} characters")
        if not is_storable(text):
            raise UsageError(f"{name}={text!r} holds a character that cannot be stored")


def is_storable(text: str) -> bool:
    """Say whether every store can hold the text."""
    return _storable(text) == text


def _storable(text: str) -> str:
    return text.replace("\0", "␀").encode("utf-8", "replace").decode("utf-8")


def hide_secrets(text: str) -> str:
    """Hide passwords in addresses, and what follows a name such as `token=` or `password:`. A net, not a proof."""
    if ":" not in text and "=" not in text:  # both patterns need one of them, and looking for them costs far less
        return text
    return _NAMED.sub(r"\1***", _PASSWORD.sub(r"\1***@", text))
