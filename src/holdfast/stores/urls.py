"""Addresses of stores: which ones there are, and how one may be shown."""

from __future__ import annotations

import os
import re
from urllib.parse import quote

from holdfast.errors import BadURL

DEFAULT_URL = "sqlite:///holdfast.db"
_ADDRESS = re.compile(r"(?i)(?:(sqlite):///[^?]|(postgresql|postgres|memory|https|http|rediss|redis|unix)://)")
_SCHEMES = ("sqlite", "postgresql", "postgres", "memory", "https", "http", "redis", "rediss", "unix")


def check_url(url: str) -> str:
    """Return how the address begins, if a store can have it. Opens nothing.

    The error leaves out the rest of the address, where there may be a password.
    """
    if re.match(r"(?i)sqlite:/*:memory:", url):
        raise BadURL("the store address names SQLite's :memory:, which is not a file; write memory:// for such a store")
    if found := _ADDRESS.match(url):
        return (found[1] or found[2]).lower()
    scheme, colon, _ = url.partition(":")
    if not colon:
        what = "does not say what kind of store it is"
    elif scheme.lower() in _SCHEMES:
        what = f"begins with {scheme + colon!r}, but is not written like such an address"
    else:
        what = f"begins with {scheme + colon!r}, which no store does"
    raise BadURL(
        f"the store address {what}; write sqlite:///jobs.db, postgresql://user@host/database, "
        "redis://server, https://server or memory://"
    )


def absolute_url(url: str) -> str:
    """Return the address with the path of a SQLite file counted from the root; a later `os.chdir` does not move it.

    Raises `BadURL` as `check_url` does.
    """
    head, slashes, path = url.partition(":///")
    if check_url(url) != "sqlite" or not slashes or path.startswith("/") or not path:
        return url
    try:
        folder = os.getcwdb()
    except OSError:  # it was deleted: there is no path to it
        return url
    return f"{head}:///{quote(folder)}/{path}"


def shown_url(url: str) -> str:
    """Return the address as it may be shown."""
    return _SECRETS.sub(lambda found: f"{found[1] or found[3]}***", url)


def masked_url(url: str) -> str:
    """Return the address with a star for each byte of its password: as long as it was."""
    return _SECRETS.sub(lambda found: (found[1] or found[3]) + "*" * len((found[2] or found[4] or "").encode()), url)


# To the last @: this may hide more than the password.
_SECRETS = re.compile(r"(://[^:/?#@]*:)(.*)(?=@)|((?i:(?:ssl)?password=))([^&]*)")
