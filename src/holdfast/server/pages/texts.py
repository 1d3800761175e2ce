"""All texts of the pages: one file per page and language in `texts/`, so that a translation touches nothing else.

A template calls `t("key", name=value)`. The key is looked up in the page's own file, then in `common.toml`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

PSEUDO = "pseudo"  # English in brackets and with accents: what has none on a page is not in these files
_ACCENTS = str.maketrans("aceinouyACEINOUY", "áçéíñóúýÁÇÉÍÑÓÚÝ")
_FIELD = re.compile(r"(\{[^}]*\})")


class Texts:
    """The texts of a language."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._pages = _loaded(language)

    def of(self, page: str, key: str, **values: Any) -> str:
        """Return a text of a page, or the common one. Raises `KeyError` for a text that does not exist."""
        found = self._pages.get(page, {}).get(key)
        if found is None:
            found = self._pages["common"].get(key)
        if found is None:
            raise KeyError(f"texts/en/{page}.toml has no {key!r}, and neither has common.toml")
        return found.format(**values) if values else found

    def has(self, page: str, key: str) -> bool:
        """Say whether there is such a text."""
        return key in self._pages.get(page, {}) or key in self._pages["common"]


@cache
def _loaded(language: str) -> Mapping[str, Mapping[str, str]]:
    pseudo = language == PSEUDO
    pages: dict[str, dict[str, str]] = {}
    for file in (files("holdfast.server.pages") / "texts" / ("en" if pseudo else language)).iterdir():
        if file.name.endswith(".toml"):
            texts: dict[str, str] = tomllib.loads(file.read_text("utf-8"))
            pages[file.name.removesuffix(".toml")] = {k: _pseudo(v) if pseudo else v for k, v in texts.items()}
    return pages


def _pseudo(text: str) -> str:
    parts = _FIELD.split(text)
    return "⟦" + "".join(part if at % 2 else part.translate(_ACCENTS) for at, part in enumerate(parts)) + "⟧"
