"""What would be uploaded is complete and well described. `make dist` also installs it with each extra."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import holdfast
from tests import release


def test_wheel_and_sdist_are_complete_and_described(tmp_path: Path) -> None:
    wheel, sdist = release.build(tmp_path)
    release.check(wheel, sdist)
    about = release.metadata_of(wheel)
    assert about["Version"] == [holdfast.__version__]
    extras = tomllib.loads((release.ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(about["Provides-Extra"]) == set(extras)
    assert release.TRIES.keys() - {""} == extras.keys(), "each extra is tried"


def test_the_changelog_begins_with_this_version() -> None:
    text = (release.ROOT / "CHANGELOG.md").read_text("utf-8")
    found = re.search(r"^## \[(.+?)\]", text, re.MULTILINE)
    assert found is not None
    assert found[1] == holdfast.__version__
