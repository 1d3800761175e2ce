"""Refuse to open the files of a store while this process uses them.

The kernel drops all record locks that a process has on a file as soon as the process closes *any* descriptor of that
file. SQLite guards the database and its `-shm` file with such locks, and a worker proves with one that it is alive. So
a handler that copies the store's folder would open and close these files, and SQLite's locks would be gone: two
processes then write at once and damage the database, and peers take the living worker for dead.

`install` adds an audit hook, for the life of this process, that refuses `open` and `os.open` of these files. Only
`holdfast worker` and the processes that it starts install it. SQLite opens its files in C, where no hook looks, so
`sqlite3.connect` is still allowed: one library knows all its own descriptors and takes care.

A file is compared by device and inode, because a link may have any name. That takes one `stat`, which costs more than
the rest of the hook: without a system call nobody can know that a path is not a link. So the hook remembers harmless
paths, and their next open costs no system call. It never remembers one with the name of a protected file. It forgets
all of them after a second, and at once when this process may give a path another meaning: when it changes its folder,
renames, links or starts a program. Another process that turns a path into a link is noticed a second later at most.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import Counter
from typing import Any

from holdfast.clock import SystemClock
from holdfast.errors import ProtectedFile

REMEMBERED_S = 1.0
_REMEMBERED_MAX = 4096
_GIVE_PATHS_ANOTHER_MEANING = {
    *("os.chdir", "os.link", "os.rename", "os.symlink"),  # this process itself does it,
    *("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"),  # or a program may
}

_paths: Counter[str] = Counter()  # how many users each protected path has
_changing = threading.Lock()
_installed = False

# Rebuilt from `_paths` and replaced as a whole, so that the hook reads them without a lock.
_names: frozenset[str] = frozenset()
_identities: frozenset[tuple[int, int]] = frozenset()
_harmless: set[Any] = set()
_forget_at = 0.0
_now = SystemClock().lease


class OwnPath(str):
    """A path that Holdfast itself opens, past the hook. Only for a file on which nobody has a record lock."""

    __slots__ = ()


def install() -> None:
    """Refuse such calls from now on, in this process. Safe to repeat."""
    global _installed
    if not _installed:
        _installed = True
        refresh()
        sys.addaudithook(_audit)


def protect(*paths: str) -> None:
    """Protect these files, whether or not they exist yet."""
    with _changing:
        _paths.update(paths)
    refresh()


def release(*paths: str) -> None:
    """Give up what one call of `protect` asked for."""
    with _changing:
        _paths.subtract(paths)
        for path in paths:
            if not _paths[path]:
                del _paths[path]
    refresh()


def refresh() -> None:
    """Look up the protected files again: a `-wal` file may be a new one."""
    global _names, _identities
    if not _installed:
        return
    with _changing:
        _names = frozenset(map(os.path.basename, _paths))
        _identities = frozenset(filter(None, map(_identity, _paths)))
        _forget()


def _forget() -> None:
    global _harmless, _forget_at
    _harmless, _forget_at = set(), _now() + REMEMBERED_S


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open":
        if event in _GIVE_PATHS_ANOTHER_MEANING:
            _forget()
        return
    if not _names:
        return
    path = arguments[0]
    if _now() >= _forget_at:
        _forget()
    if path in _harmless or type(path) is int or type(path) is OwnPath:
        return
    if arguments[2] & _MAKES_ANEW != _MAKES_ANEW:
        _check(path)


def _check(path: Any) -> None:
    """Raise if this is a protected file."""
    harmless = _harmless  # if they are replaced while we look, we remember nothing
    try:
        found = _identity(path)
        name = os.path.basename(os.fsdecode(path))
    except (TypeError, ValueError):
        return  # no path at all; `open` says so itself
    if found is None:
        return
    if name not in _names and found not in _identities:
        if len(harmless) >= _REMEMBERED_MAX:
            harmless.clear()
        harmless.add(path)
        return
    if any(_identity(own) == found for own in list(_paths)):
        raise ProtectedFile(
            errno.EACCES,
            "this worker uses the file, and opening it here would break the locks of its store; "
            "copy the store with `holdfast db backup`, or read it with sqlite3.connect",
            os.fsdecode(path),
        )


def _identity(path: Any) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _after_fork() -> None:
    global _changing
    _changing = threading.Lock()


_MAKES_ANEW = os.O_CREAT | os.O_EXCL  # such a call never opens a file that exists
os.register_at_fork(after_in_child=_after_fork)
