"""Tags and metadata of a job: text that its author chooses, kept on its row as JSON.

A tag says what kind of job it is. Metadata says where it comes from, such as a request id or a tenant, and travels into
the jobs that it enqueues.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.core.text import check_storable
from holdfast.errors import UsageError

MANY_MAX = 20  # tags, or entries of metadata
NAME_MAX = 100  # characters of a tag, or of a name
VALUE_MAX = 500


def tags_text(tags: object) -> str | None:
    """Return tags as a row has them: each once, in order; None for none. Raises `UsageError`."""
    if isinstance(tags, str) or not isinstance(tags, Sequence | set | frozenset):
        raise UsageError(f"tags={tags!r} must be a list of text, such as ['nightly']")
    for tag in tags:
        _check("tag", tag, NAME_MAX)
    found = sorted(set(tags))
    _check_many("tags", found)
    return _text(found) if found else None


def meta_text(meta: object, before: str | None = None) -> str | None:
    """Return metadata as a row has it, put over what there was before; None for none. Raises `UsageError`."""
    if not isinstance(meta, Mapping):
        raise UsageError(f"meta={meta!r} must be a dict of text, such as {{'tenant': 'acme'}}")
    for name, value in meta.items():
        _check("name in meta", name, NAME_MAX)
        _check(f"meta[{name!r}]", value, VALUE_MAX)
    _check_many("meta", meta)
    return merged(before, _text(dict(meta)))


def merged(before: str | None, after: str | None) -> str | None:
    """Return metadata with other metadata put over it."""
    if before is None or after is None:
        return before if after is None else after if after != "{}" else None
    found = {**meta_of(before), **meta_of(after)}
    _check_many("meta", found)
    return _text(found) if found else None


def inherited(parent: str | None, own: str | None) -> str | None:
    """Return the metadata of a job that Holdfast stores when `parent` ends: its own, and what there is room for."""
    if parent is None or parent == own:
        return own
    found = meta_of(own)
    for name, value in meta_of(parent).items():
        if len(found) < MANY_MAX:
            found.setdefault(name, value)
    return _text(found) if found else None


def tags_of(text: str | None) -> list[str]:
    """Read tags from a row; none if another program has damaged them."""
    found = _read(text)
    return [tag for tag in found if isinstance(tag, str)] if isinstance(found, list) else []


def meta_of(text: str | None) -> dict[str, str]:
    """Read metadata from a row; none if another program has damaged it."""
    found = _read(text)
    return {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def _read(text: str | None) -> Any:
    try:
        return None if text is None else json.loads(text)
    except ValueError:
        return None


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _check(what: str, text: object, most: int) -> None:
    if not isinstance(text, str) or not 1 <= len(text) <= most:
        raise UsageError(f"{what} {text!r} must be text of 1 to {most} characters")
    check_storable(labels=text)


def _check_many(what: str, found: Sequence[str] | Mapping[str, str]) -> None:
    if len(found) > MANY_MAX:
        raise UsageError(f"{what} has {len(found)} entries; at most {MANY_MAX} are possible")
