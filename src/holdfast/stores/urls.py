"""Addresses of stores: which ones there are, and how one may be shown."""

from __future__ import annotations

import re

from holdfast.errors import BadURL

SCHEMES = ("sqlite", "postgresql", "postgres", "memory")


def check_url(url: str) -> str:
    """Return how the address begins, if a store can have it. Opens nothing.

    What is wrong is said without the rest of the address, where there may be a password.
    """
    scheme, colon, _ = url.partition(":")
    if colon and scheme.lower() in SCHEMES:
        return scheme.lower()
    what = f"begins with {scheme + colon!r}, which no store does" if colon else "does not say what kind of store it is"
    raise BadURL(f"the store address {what}; write sqlite:///jobs.db, postgresql://user@host/database or memory://")


def shown_url(url: str) -> str:
    """Return the address as it may be shown."""
    shown = re.sub(r"(://[^:/?#@]*:).*@", r"\1***@", url)  # to the last @: what is no password may be hidden too
    return re.sub(r"(?i)((?:ssl)?password=)[^&]*", r"\1***", shown)
