"""The pictures of README and docs: taken from a seeded store, small, and each of them shown."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.pages.screenshots import FOLDER, SIZE, THEMES, TOTAL_MAX, take


@pytest.mark.slow  # a browser
def test_a_picture_is_taken_in_both_themes(browser: Browser, tmp_path: Path) -> None:
    taken = take(browser, tmp_path, lambda name: name == "job")
    assert [path.name for path in taken] == [f"job-{theme}.png" for theme in THEMES]
    for path in taken:
        content = path.read_bytes()
        assert struct.unpack(">II", content[16:24]) == (SIZE["width"], SIZE["height"])
    light, dark = (path.read_bytes() for path in taken)
    assert light != dark


def test_every_picture_is_shown_and_all_are_small() -> None:
    there = {path.name for path in FOLDER.iterdir()}
    shown = re.findall(r"\]\(pictures/([^)]+)\)", (FOLDER.parent / "pages.md").read_text("utf-8"))
    assert sorted(shown) == sorted(there)
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < TOTAL_MAX
    assert "docs/pictures/overview-light.png" in (FOLDER.parent.parent / "README.md").read_text("utf-8")
