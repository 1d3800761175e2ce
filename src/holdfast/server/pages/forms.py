"""Reads the query of a page and the fields of its forms. A field without a value counts as not given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from holdfast.server.call import invalid
from holdfast.server.problems import Problem

FIELDS_MAX = 600  # a form may name each job of a page
FORM = "application/x-www-form-urlencoded"


def fields_of(kind: Any, text: bytes) -> Any:
    """Convert fields into the type that a page asks for; fields that it does not know are ignored. Raises `Problem`."""
    try:
        pairs = parse_qsl(text.decode("ascii"), max_num_fields=FIELDS_MAX, errors="strict")
    except (ValueError, UnicodeDecodeError) as error:
        raise Problem("invalid", f"the address or the form cannot be read: {error}") from None
    kinds = {each.encode_name: str(each.type) for each in msgspec.structs.fields(kind)}
    given: dict[str, Any] = {}
    for name, value in pairs:
        value = value.replace("\r\n", "\n").strip()
        if name not in kinds or not value:
            continue
        if "tuple" in kinds[name]:
            given.setdefault(name, []).append(value)
        else:
            given[name] = value
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(str(error), "?") from None


def form_of(kind: Any, body: bytes, headers: Mapping[str, str]) -> Any:
    """Convert the body of a form. Raises `Problem`."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
        raise Problem("unsupported_media", f"send a form, with the header content-type: {FORM}")
    return fields_of(kind, body)
