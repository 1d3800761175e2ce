"""The start of the program `holdfast`: its imports take a moment, and Ctrl-C during them shows no traceback.

It is outside the package, whose import is most of what takes the moment.
"""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Import the command line, and run it."""
    be_quiet()
    from holdfast.cli.main import main as command_line  # it handles signals itself

    command_line()


def be_quiet() -> None:
    """End without a traceback on Ctrl-C, until the command line handles signals itself."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not ignored, as under nohup
        signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number: int, _: object) -> None:
    os.write(2, b"holdfast: interrupted\n")
    os._exit(128 + number)
