"""The JSON Schema of an annotation, and what is wrong with a value by a schema.

A program that does not have a task's code checks arguments against the schema that workers have published. `schema_of`
writes the part of JSON Schema that `violation` reads; keywords that it does not know forbid nothing.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_origin

import msgspec
from msgspec import inspect as mi

Schema = dict[str, Any]

DEFS = "#/$defs/"
_REFS_MAX = 100  # more references than this without a look at the value: the schema goes in circles

_FORMATS: dict[str, type] = {
    "date-time": datetime.datetime,
    "date": datetime.date,
    "time": datetime.time,
    "duration": datetime.timedelta,
    "decimal": decimal.Decimal,
}
_OF_FORMAT: dict[type[mi.Type], str] = {
    mi.DateTimeType: "date-time",
    mi.DateType: "date",
    mi.TimeType: "time",
    mi.TimeDeltaType: "duration",
    mi.UUIDType: "uuid",
    mi.DecimalType: "decimal",
}
_PLAIN: dict[type[mi.Type], str] = {
    mi.NoneType: "null",
    mi.BoolType: "boolean",
    mi.IntType: "integer",
    mi.FloatType: "number",
    mi.StrType: "string",
}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-?)[0-9a-fA-F]{4}(\1[0-9a-fA-F]{4}){2}\1[0-9a-fA-F]{12}")
_SHOWN = {
    "integer": "int",
    "number": "float",
    "string": "str",
    "boolean": "bool",
}  # as Python's annotations are written
_BOUNDS = {  # a keyword, and the attribute of msgspec's that has it
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "pattern": "pattern",
}


# --------------------------------------------------------------------------- annotation → schema


def schema_of(hint: Any, defs: Schema) -> Schema:
    """Return the schema of an annotation. Types with names of their own go into `defs`."""
    return _written(mi.type_info(hint), defs)


def _written(info: mi.Type, defs: Schema) -> Schema:
    kind = type(info)
    if kind in _PLAIN:
        return {"type": _PLAIN[kind], **_bounds(info, "Length")}
    if kind in _OF_FORMAT:
        return {"type": "string", "format": _OF_FORMAT[kind]}
    if isinstance(info, mi.Metadata):
        return _written(info.type, defs)
    if isinstance(info, mi.LiteralType):
        return {"enum": list(info.values)}
    if isinstance(info, mi.EnumType):
        return {"enum": [msgspec.to_builtins(member) for member in info.cls]}
    if isinstance(info, mi.UnionType):
        return {"anyOf": [_written(each, defs) for each in info.types]}
    if isinstance(info, mi.ListType | mi.SetType | mi.FrozenSetType | mi.VarTupleType):
        return {"type": "array", "items": _written(info.item_type, defs), **_bounds(info, "Items")}
    if isinstance(info, mi.TupleType):
        return _row([_written(each, defs) for each in info.item_types], len(info.item_types))
    if isinstance(info, mi.BytesType | mi.ByteArrayType | mi.MemoryViewType):
        return {"type": "string", "contentEncoding": "base64"}
    if isinstance(info, mi.DictType):
        keys = _written(info.key_type, defs)
        named = {} if keys in ({}, {"type": "string"}) else {"propertyNames": keys}
        values = {"additionalProperties": _written(info.value_type, defs)}
        return {"type": "object", **named, **values, **_bounds(info, "Properties")}
    if isinstance(info, mi.CustomType):
        return _of_model(info.cls, defs)
    if hasattr(info, "fields"):
        return _named(info, defs)
    return {}


def _bounds(info: Any, lengths: str) -> Schema:
    """Return the limits of a value. `lengths`: how the schema counts it."""
    found = {keyword: getattr(info, name, None) for keyword, name in _BOUNDS.items()}
    found |= {f"{side}{lengths}": getattr(info, f"{side}_length", None) for side in ("min", "max")}
    return {keyword: bound for keyword, bound in found.items() if bound is not None}


def _row(items: list[Schema], required: int) -> Schema:
    return {"type": "array", "prefixItems": items, "minItems": required, "maxItems": len(items)}


def _named(info: Any, defs: Schema) -> Schema:
    """Write a type with fields once, and refer to it: it may hold itself."""
    title = _title(info.cls)
    name = next(each for each in _names(title) if defs.get(each, {}).get("$id", info.cls) is info.cls)
    if name in defs:
        return {"$ref": DEFS + name}
    defs[name] = {"$id": info.cls}  # until the whole schema is made
    if isinstance(info, mi.NamedTupleType) or getattr(info, "array_like", False):
        required = sum(field.required for field in info.fields)
        schema = _row([_written(field.type, defs) for field in info.fields], required)
    else:
        schema = _fields(info, defs)
    defs[name] |= {"title": title, **schema}
    return {"$ref": DEFS + name}


def _fields(info: Any, defs: Schema) -> Schema:
    properties = {field.encode_name: _written(field.type, defs) for field in info.fields}
    required = [field.encode_name for field in info.fields if field.required]
    if getattr(info, "tag_field", None) is not None:
        properties = {info.tag_field: {"enum": [info.tag]}, **properties}
        required = [info.tag_field, *required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _of_model(model: Any, defs: Schema) -> Schema:
    """Take over what a pydantic model says of itself."""
    title = _title(model)
    name = next(each for each in _names(title) if defs.get(each, {}).get("$id", model) is model)
    if name not in defs:
        defs[name] = {"$id": model}
        schema = model.model_json_schema(ref_template=f"{DEFS}{name}.{{model}}")
        defs.update({f"{name}.{inner}": each for inner, each in schema.pop("$defs", {}).items()})
        defs[name] |= schema
    return {"$ref": DEFS + name}


def without_classes(defs: Schema) -> Schema:
    """Return finished definitions, which name no class any more."""
    return {name: {word: each for word, each in schema.items() if word != "$id"} for name, schema in defs.items()}


def _title(kind: Any) -> str:
    return str(getattr(get_origin(kind) or kind, "__name__", kind))


def _names(title: str) -> Sequence[str]:
    """Return names for types of the same name, one after the other."""
    return [title, *(f"{title}{number}" for number in range(2, 100))]


# ------------------------------------------------------------------------------- a value by its schema


class Violation(NamedTuple):
    """The reason why a value does not fit; `path` leads to it."""

    path: str
    reason: str
    depth: int = 0  # how far into the value the schema fitted


def violation(schema: Any, value: Any, defs: Mapping[str, Any]) -> Violation | None:
    """Return what is wrong with a value of plain JSON types; None if it fits."""
    return _Check(defs).look(schema, value, "", 0)


class _Check:
    def __init__(self, defs: Mapping[str, Any]) -> None:
        self._defs = defs

    def look(self, schema: Any, value: Any, path: str, depth: int) -> Violation | None:
        """Look at a value and at everything in it."""
        for _ in range(_REFS_MAX):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            schema = self._defs.get(str(schema["$ref"]).removeprefix(DEFS), {})
        if schema is False:
            return Violation(path, "nothing is allowed here", depth)
        if not isinstance(schema, dict):
            return None
        for word in ("anyOf", "oneOf"):
            if word in schema and (found := self._none_of(schema[word], value, path, depth)) is not None:
                return found
        for part in schema.get("allOf", ()):
            if (found := self.look(part, value, path, depth)) is not None:
                return found
        reason = _reason(schema, value)
        return Violation(path, reason, depth) if reason is not None else self._inside(schema, value, path, depth + 1)

    def _none_of(self, schemas: Sequence[Any], value: Any, path: str, depth: int) -> Violation | None:
        """Say why none of these fits: the one that came farthest says it best."""
        found = [self.look(each, value, path, depth) for each in schemas]
        if not found or None in found:
            return None
        best = max((each for each in found if each is not None), key=lambda each: each.depth)
        if best.depth > depth or len({each.reason for each in found if each is not None}) == 1:
            return best
        wanted = [name for each in schemas for name in self._expected(each)]
        if wanted:
            return Violation(path, f"Expected `{' | '.join(dict.fromkeys(wanted))}`, got `{kind_of(value)}`", depth)
        return best

    def _expected(self, schema: Any) -> list[str]:
        if isinstance(schema, dict) and "$ref" in schema:
            schema = self._defs.get(str(schema["$ref"]).removeprefix(DEFS), {})
        kinds = schema.get("type", []) if isinstance(schema, dict) else []
        return [_SHOWN.get(each, each) for each in ([kinds] if isinstance(kinds, str) else kinds)]

    def _inside(self, schema: Schema, value: Any, path: str, depth: int) -> Violation | None:
        if isinstance(value, list | tuple):
            first = schema.get("prefixItems", ())
            for index, item in enumerate(value):
                inner = first[index] if index < len(first) else schema.get("items")
                if (found := self.look(inner, item, f"{path}[{index}]", depth)) is not None:
                    return found
        elif isinstance(value, dict):
            return self._fields(schema, value, path, depth)
        return None

    def _fields(self, schema: Schema, value: dict[str, Any], path: str, depth: int) -> Violation | None:
        known = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for name in schema.get("required", ()):
            if name not in value:
                return Violation(path, f"Object missing required field `{name}`", depth)
        for name, item in value.items():
            if name not in known and others is False:
                return Violation(path, f"it has no field {name!r}, so it would be lost; remove it", depth)
            if "propertyNames" in schema and not self._is_key(schema["propertyNames"], name):
                return Violation(path, f"the key {name!r} does not fit", depth)
            inner = f"{path}.{name}" if name in known else f"{path}[{name!r}]"
            if (found := self.look(known.get(name, others), item, inner, depth)) is not None:
                return found
        return None

    def _is_key(self, schema: Any, name: str) -> bool:
        """Say whether a key fits. Keys are text in JSON, also where they are numbers for Python."""
        candidates: list[Any] = [name]
        for read in (int, float):
            try:
                candidates.append(read(name))
            except ValueError:
                continue
        return any(self.look(schema, each, "", 0) is None for each in candidates)


def kind_of(value: Any) -> str:
    """Return the type of a plain value, as the errors of local tasks call it."""
    if value is None:
        return "null"
    if isinstance(value, list | tuple | dict):
        return "object" if isinstance(value, dict) else "array"
    return type(value).__name__


def _reason(schema: Schema, value: Any) -> str | None:
    """Say what is wrong with the value itself."""
    if "enum" in schema and not any(_equal(value, each) for each in schema["enum"]):
        return f"Invalid value {value!r}; choose one of {', '.join(map(repr, schema['enum']))}"
    if "const" in schema and not _equal(value, schema["const"]):
        return f"Invalid value {value!r}; it must be {schema['const']!r}"
    kinds = schema.get("type")
    if kinds is not None:
        wanted = [kinds] if isinstance(kinds, str) else kinds
        if not any(_has_type(each, value) for each in wanted):
            return f"Expected `{' | '.join(_SHOWN.get(each, each) for each in wanted)}`, got `{kind_of(value)}`"
        if "integer" not in wanted and type(value) is int and _loses_digits(value):
            return "the integer would lose digits as a float; pass a float"
    for check in (_number, _text, _length):
        if (reason := check(schema, value)) is not None:
            return reason
    return None


def _equal(value: Any, other: Any) -> bool:
    return type(value) is type(other) and value == other


_TYPES: dict[str, Callable[[Any], bool]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int,
    "number": lambda value: type(value) in (int, float),
    "string": lambda value: isinstance(value, str),
    "array": lambda value: isinstance(value, list | tuple),
    "object": lambda value: isinstance(value, dict),
}


def _has_type(wanted: Any, value: Any) -> bool:
    test = _TYPES.get(wanted)
    return test is None or test(value)


def _loses_digits(value: int) -> bool:
    try:
        return float(value) != value
    except OverflowError:
        return True


def _number(schema: Schema, value: Any) -> str | None:
    if type(value) not in (int, float):
        return None
    outside: dict[str, Callable[[Any], bool]] = {
        "minimum": lambda bound: value < bound,
        "maximum": lambda bound: value > bound,
        "exclusiveMinimum": lambda bound: value <= bound,
        "exclusiveMaximum": lambda bound: value >= bound,
        "multipleOf": lambda bound: bool(bound) and value % bound != 0,
    }
    signs = {"minimum": ">=", "maximum": "<=", "exclusiveMinimum": ">", "exclusiveMaximum": "<"}
    for word, is_outside in outside.items():
        if isinstance(bound := schema.get(word), int | float) and is_outside(bound):
            sign = signs.get(word)
            return f"Expected `{kind_of(value)}` {f'{sign} {bound}' if sign else f'that is a multiple of {bound}'}"
    return None


def _text(schema: Schema, value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    pattern, form = schema.get("pattern"), schema.get("format")
    if isinstance(pattern, str) and not _matches(pattern, value):
        return f"Expected `str` matching regex {pattern!r}"
    if form == "uuid":
        return None if _UUID.fullmatch(value) else "Invalid UUID"
    if schema.get("contentEncoding") == "base64":
        return _unread(value, bytes)
    return _unread(value, _FORMATS[form]) if form in _FORMATS else None


def _matches(pattern: str, value: str) -> bool:
    try:
        return re.search(pattern, value) is not None
    except re.error:
        return True


def _unread(value: str, kind: type) -> str | None:
    """Say why text cannot be read as what it stands for."""
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _length(schema: Schema, value: Any) -> str | None:
    words = {"str": "Length", "array": "Items", "object": "Properties"}
    word = words.get(kind_of(value))
    if word is None:
        return None
    least, most, size = schema.get(f"min{word}"), schema.get(f"max{word}"), len(value)
    kind = kind_of(value)
    if least is not None and least == most and size != least:
        return f"Expected `{kind}` of length {least}, got {size}"
    if least is not None and size < least:
        return f"Expected `{kind}` of length >= {least}"
    return f"Expected `{kind}` of length <= {most}" if most is not None and size > most else None
