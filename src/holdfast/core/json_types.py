"""Find out what an annotation can carry, and whether a value would come back unchanged.

A `JsonType` is one annotation, studied once. `to_plain` turns a value into plain JSON types and refuses whatever the
worker would not get back; `from_plain` is what the worker does. Three rules decide:

- A value is checked by reading it the way the worker will: to builtins, then strictly into the annotated type.
- Where nothing is annotated (or `Any` is), only what JSON has may pass, so that nothing changes on the way: no tuple,
  no key that is not text, no datetime.
- Fields that the annotated type does not have are refused, not dropped.
"""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import inspect
import json
import typing
from collections.abc import Iterator, Sequence
from typing import Any, TypeGuard

import msgspec
from msgspec import inspect as mi

from holdfast.errors import PayloadError

BYTES = (bytes, bytearray, memoryview)
_NATIVE = (
    *BYTES,
    datetime.datetime,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
)
_SCALARS: frozenset[type] = frozenset({str, int, float, bool, type(None)})
_EXACT: tuple[tuple[mi.Type, type], ...] = (
    (mi.StrType(), str),
    (mi.IntType(), int),
    (mi.FloatType(), float),
    (mi.BoolType(), bool),
    (mi.NoneType(), type(None)),
)
_NATIVE_INFO = (
    mi.DateTimeType,
    mi.DateType,
    mi.TimeType,
    mi.TimeDeltaType,
    mi.UUIDType,
    mi.DecimalType,
    mi.BytesType,
    mi.ByteArrayType,
    mi.MemoryViewType,
)
_ARRAY_INFO = (mi.ListType, mi.VarTupleType, mi.SetType, mi.FrozenSetType)
_ROW_INFO = (*_ARRAY_INFO, mi.TupleType, mi.NamedTupleType)
_FIELD_INFO = (mi.DataclassType, mi.StructType, mi.TypedDictType)

# Contents of a type that make a check of its values necessary.
FREE = "anything"
FIELDS = "named fields"
FLOATS = "floats"  # integers pass for them, and may have too many digits
NATIVE = "dates, UUIDs, decimals"  # written as text in JSON
TIMES = "times"  # written as text, which does not keep all of them
KEYS = "mappings whose keys are not text"

ADVICE = (
    "use plain types, datetime, UUID, Decimal, Enum, dataclasses, TypedDict, NamedTuple or msgspec.Struct, "
    "or pass an id and load the object inside the task"
)


class Misfit(Exception):
    """A value that would not come back as it went; `path` leads to it. Never leaves this package."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.path = ""
        super().__init__(reason)

    def at(self, step: str) -> Misfit:
        self.path = step + self.path
        return self


class JsonType:
    """One annotation. `where` begins every message: "task jobs.add: argument 'x'"."""

    def __init__(self, hint: Any, where: str, *, depth_max: int = 64) -> None:
        self.where = where
        self._depth_max = depth_max
        self.hint = Any if hint is inspect.Parameter.empty or hint is object else hint
        try:
            self._info = mi.type_info(self.hint)
            inside = set(_inside(self._info, []))
        except Exception as error:
            raise PayloadError(
                f"{where}: the annotation {_show(hint)} cannot travel as JSON ({error}); {ADVICE}"
            ) from error
        self._is_walked = not inside.isdisjoint((FREE, FIELDS, FLOATS))
        self._changes = not inside.isdisjoint((NATIVE, TIMES, KEYS))
        self._is_compared = not inside.isdisjoint((TIMES, KEYS))
        self._free = isinstance(self._info, mi.AnyType)
        self._exact = _exact_types(self._info)

    def to_plain(self, value: Any) -> Any:
        """Return the value in plain JSON types, or raise `PayloadError` saying where it does not fit."""
        if type(value) in self._exact:
            return value
        try:
            if self._free:
                check_plain(value, self._depth_max)
                return value
            return self._checked(value)
        except Exception as error:
            raise refusal(error, self.where, value, self._depth_max) from error

    def is_kept(self, plain: Any) -> bool:
        """Say whether `from_plain` returns this very value."""
        return self._free or type(plain) in self._exact

    def from_plain(self, plain: Any) -> Any:
        """Return the value as the annotated type, or raise `PayloadError`."""
        if self.is_kept(plain):
            return plain
        try:
            return self._read(plain)
        except Exception as error:
            raise PayloadError(f"{self.where}: {reason_of(error)}") from error

    def _checked(self, value: Any) -> Any:
        if self._is_walked:
            _inspect(self._info, value, self._depth_max)
        # First with dates and the like left alone, so that a datetime for a `str` is a wrong type and not a text.
        plain = msgspec.to_builtins(value, builtin_types=_NATIVE, enc_hook=lower)
        seen = msgspec.convert(plain, self.hint, dec_hook=_lift)
        if not self._changes:
            return plain
        plain = msgspec.to_builtins(value, builtin_types=BYTES, enc_hook=lower, str_keys=True)
        if self._is_compared and not _same(seen, self._read(plain)):
            raise Misfit(
                "it would not come back as it is: JSON keeps keys that stay distinct and of one type as text; "
                "pass it in such a form"
            )
        return plain

    def _read(self, plain: Any) -> Any:
        return msgspec.convert(plain, self.hint, str_keys=True, dec_hook=_lift)


def _inside(info: mi.Type, seen: list[object]) -> Iterator[str]:
    """Yield what a type holds that a value must be checked for; raise `TypeError` for what cannot travel at all.

    `seen`: types with fields that were met before: one may hold itself.
    """
    if _is_free(info):
        yield FREE
    elif isinstance(info, mi.CustomType):
        if not _is_model(info.cls):
            raise TypeError(f"{_show(info.cls)} is not a type that JSON can carry")
        yield FIELDS
    elif isinstance(info, mi.RawType | mi.ExtType):
        raise TypeError(f"{type(info).__name__} has no JSON form")
    elif isinstance(info, _NATIVE_INFO):
        yield TIMES if isinstance(info, mi.DateTimeType | mi.TimeType) else NATIVE
    elif _is_mapping(info):
        if not isinstance(_bare(info.key_type), mi.StrType | mi.AnyType):
            yield KEYS
    elif isinstance(info, _FIELD_INFO):
        yield FIELDS
    elif isinstance(info, mi.FloatType):
        yield FLOATS
    for child in _children(info, seen):
        yield from _inside(child, seen)


def _children(info: mi.Type, seen: list[object]) -> list[mi.Type]:
    if isinstance(info, (*_FIELD_INFO, mi.NamedTupleType)):
        if info.cls in seen:
            return []
        seen.append(info.cls)
    if isinstance(info, (*_FIELD_INFO, *_ROW_INFO)):
        return _items(info, 1)
    if _is_mapping(info):
        return [info.key_type, info.value_type]
    if isinstance(info, mi.UnionType):
        return list(info.types)
    return [info.type] if isinstance(info, mi.Metadata) else []


def check_plain(value: Any, room: int) -> None:
    """Raise `Misfit` unless the value consists of what JSON has, nested at most `room` deep."""
    kind = type(value)
    if kind in _SCALARS:
        return
    if kind is not list and kind is not dict:
        raise Misfit(unlike(value))
    if room <= 0:
        raise RecursionError
    for key, item in enumerate(value) if kind is list else value.items():
        if kind is dict:
            _check_key(key)
        try:
            check_plain(item, room - 1)
        except Misfit as misfit:
            raise misfit.at(f"[{key!r}]") from None


def _check_key(key: object) -> None:
    if type(key) is not str:
        raise Misfit(f"the key {key!r} would come back as text; use text keys, or annotate dict[{_kind(key)}, …]")


def depth_of(plain: Any) -> int:
    """Return how deeply lists and dicts are nested in plain JSON types; 0 for a scalar."""
    depth, level = 0, [plain]
    while rows := [item for item in level if isinstance(item, (dict, list, tuple))]:
        depth += 1
        level = [item for row in rows for item in (row.values() if isinstance(row, dict) else row)]
    return depth


def too_deep(value: Any, depth_max: int) -> str:
    """Say why a value has no bottom."""
    if _holds_itself(value):
        return "it contains itself (a circular reference), and JSON has no references; pass ids instead"
    return f"it is nested more than {depth_max} levels deep; flatten it, or store it elsewhere and pass its name"


def _inspect(info: mi.Type, value: Any, room: int) -> None:
    """Walk value and type together: plain types where anything goes, no field too many, no integer that a float cannot
    hold."""
    info = _bare(info)
    if room < 0:
        raise RecursionError
    if _is_free(info):
        check_plain(value, room)
    elif isinstance(info, mi.UnionType):
        member = _member(info, value)
        if member is not None:
            _inspect(member, value, room)
    elif isinstance(info, mi.FloatType):
        if isinstance(value, int) and _loses_digits(value):
            raise Misfit("the integer would lose digits as a float; pass a float, or annotate it as int")
    elif isinstance(info, _FIELD_INFO):
        _inspect_fields(info, value, room)
    elif isinstance(info, mi.CustomType):
        if _is_model(type(value)):
            _inspect_model(info.cls, value)
    elif _is_mapping(info):
        if isinstance(value, dict):
            _inspect_dict(info, value, room)
    elif isinstance(info, _ROW_INFO) and isinstance(value, list | tuple | set | frozenset):
        if all(type(item) is float for item in value):
            return
        for index, (inner, item) in enumerate(zip(_items(info, len(value)), value, strict=False)):
            try:
                _inspect(inner, item, room - 1)
            except Misfit as misfit:
                raise misfit.at(f"[{index}]") from None


def _inspect_dict(info: mi.DictType, value: dict[Any, Any], room: int) -> None:
    free = isinstance(_bare(info.key_type), mi.AnyType)
    for key, item in value.items():
        if free:
            _check_key(key)
        try:
            _inspect(info.key_type, key, room - 1)
            _inspect(info.value_type, item, room - 1)
        except Misfit as misfit:
            raise misfit.at(f"[{key!r}]") from None


def _inspect_fields(info: mi.DataclassType | mi.StructType | mi.TypedDictType, value: Any, room: int) -> None:
    known = {field.encode_name for field in info.fields}
    if isinstance(value, dict):
        held = value
        tag = info.tag_field if isinstance(info, mi.StructType) else None
        extra = [key for key in held if key not in known and key != tag]
    else:
        names = _field_names(value)
        if names is None:
            return  # convert will say what is wrong with it
        wanted = typing.get_origin(info.cls) or info.cls
        if not isinstance(info, mi.TypedDictType) and not isinstance(value, wanted):
            raise Misfit(f"expected {wanted.__name__}, got {_kind(value)}; pass a {wanted.__name__}")
        if hasattr(value, "__post_init__") or hasattr(value, "__attrs_post_init__"):
            _check_initialized_again(info.cls, value, names)
        extra = [name for name in names if name not in {field.name for field in info.fields}]
        held = {field.encode_name: getattr(value, field.name, None) for field in info.fields}
    if extra:
        raise Misfit(f"{_show(info.cls)} has no field {extra[0]!r}, so it would be lost; remove it or declare it")
    for field in info.fields:
        if field.encode_name in held:
            try:
                _inspect(field.type, held[field.encode_name], room - 1)
            except Misfit as misfit:
                raise misfit.at(f".{field.name}") from None


def _check_initialized_again(wanted: Any, value: Any, names: Sequence[str]) -> None:
    """Raise `Misfit` if a field would change once more where the value is read: `__post_init__` runs there again."""
    plain = msgspec.to_builtins(value, builtin_types=_NATIVE, enc_hook=lower)
    try:
        back = msgspec.convert(plain, wanted, dec_hook=_lift)
    except msgspec.ValidationError:
        return  # the conversion of the whole argument says why
    for name in names:
        mine, theirs = getattr(value, name, None), getattr(back, name, None)
        if mine != theirs and not _same(mine, theirs):
            raise Misfit(
                f"the field {name!r} of {type(value).__name__} would not come back as it is: __post_init__ runs again "
                "where the value is read, and changes it once more; let it change nothing at the second time"
            )


def _inspect_model(wanted: Any, value: Any) -> None:
    """Raise `Misfit` unless the annotated pydantic class reads the model back with the same fields."""
    if type(value) is not wanted:
        raise Misfit(f"expected {wanted.__name__}, got {_kind(value)}; annotate the class that you pass")
    changed = _changed_field(value, wanted.model_validate(value.model_dump(mode="json")))
    if changed is not None:
        raise Misfit(
            f"the field {changed!r} of {wanted.__name__} would not come back as it is: the model's own serialization "
            "hides, excludes or changes it; pass the plain value as an argument of its own"
        )


def _changed_field(one: Any, other: Any) -> str | None:
    """Return the name of a field in which two pydantic models differ."""
    names: list[str] = [*type(one).model_fields, "model_extra"]
    for name in names:
        mine, theirs = getattr(one, name), getattr(other, name)
        if _is_model(type(mine)) and type(mine) is type(theirs):
            if (inner := _changed_field(mine, theirs)) is not None:
                return f"{name}.{inner}"
        elif mine != theirs and _comparable(mine) != _comparable(theirs):
            return name
    return None


def _member(union: mi.UnionType, value: Any) -> mi.Type | None:
    """Return the member of the union that the value will be read as, as far as that matters here."""
    members = [_bare(member) for member in union.types]
    if free := [member for member in members if _is_free(member)]:
        return free[0]
    if isinstance(value, dict):
        for member in members:
            if isinstance(member, mi.StructType) and member.tag_field is not None:
                if value.get(member.tag_field) == member.tag:
                    return member
            elif isinstance(member, _FIELD_INFO) or _is_mapping(member):
                return member
        return None
    if _is_model(type(value)):
        return next((member for member in members if isinstance(member, mi.CustomType)), None)
    if _field_names(value) is not None:
        owners = [member for member in members if isinstance(member, mi.DataclassType | mi.StructType)]
        fitting = [one for one in owners if isinstance(value, typing.get_origin(one.cls) or one.cls)]
        exact = [one for one in fitting if (typing.get_origin(one.cls) or one.cls) is type(value)]
        return next(iter(exact or fitting or owners), None)
    if isinstance(value, int):
        numbers = [member for member in members if isinstance(member, mi.IntType | mi.FloatType)]
        return numbers[0] if len(numbers) == 1 else None  # of the two it is read as an int
    return next((member for member in members if isinstance(member, _ROW_INFO)), None)


def _loses_digits(value: int) -> bool:
    try:
        return float(value) != value
    except OverflowError:  # no float at all, which is said where it is read
        return False


def _items(info: Any, length: int) -> list[mi.Type]:
    """Return the types of what is inside a row of this length, or of the fields."""
    if isinstance(info, _ARRAY_INFO):
        return [info.item_type] * length
    return list(info.item_types) if isinstance(info, mi.TupleType) else [field.type for field in info.fields]


def _exact_types(info: mi.Type) -> frozenset[type]:
    """Return the types whose values pass as they are; empty when the annotation wants more of a look."""
    if isinstance(info, mi.AnyType):
        return _SCALARS
    members = info.types if isinstance(info, mi.UnionType) else (info,)
    return frozenset(kind for member in members for known, kind in _EXACT if member == known)


def lower(value: Any) -> Any:
    """Turn what msgspec does not know into builtins: subclasses of text and numbers, and pydantic models."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if _is_model(type(value)):
        return value.model_dump(mode="json")
    raise Misfit(unlike(value))


def _lift(kind: Any, plain: Any) -> Any:
    return kind.model_validate(plain) if _is_model(kind) else plain


def _is_model(kind: Any) -> bool:
    """Say whether it is a pydantic model, without importing pydantic."""
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def _is_mapping(info: mi.Type) -> TypeGuard[mi.DictType]:
    """Say whether it is a dict or, in newer releases of msgspec, a frozendict."""
    return hasattr(info, "key_type")


def _is_free(info: mi.Type) -> bool:
    """Say whether it may hold anything: `Any` or `object`."""
    return isinstance(info, mi.AnyType) or (isinstance(info, mi.CustomType) and info.cls is object)


def _bare(info: mi.Type) -> mi.Type:
    while isinstance(info, mi.Metadata):
        info = info.type
    return info


def _same(one: Any, other: Any) -> bool:
    plain = [msgspec.to_builtins(value, builtin_types=_NATIVE, enc_hook=lower) for value in (one, other)]
    return bool(_comparable(plain[0]) == _comparable(plain[1]))


def _comparable(value: Any) -> Any:
    """Return the value with each time as its wall clock and offset: an aware time of an hour that a zone repeats or
    leaves out equals no time of another zone, not even the same instant. Raise `Misfit` for a time that JSON cannot
    keep. Rows are sorted, as the sets among them have no order; keys stay pairs, of which none gets lost."""
    if isinstance(value, datetime.datetime | datetime.time):
        _check_time(value)
        return (value.replace(tzinfo=None, fold=0), value.utcoffset())
    if isinstance(value, dict):
        return [(_comparable(key), _comparable(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return sorted(map(_comparable, value), key=repr)
    return value


def _check_time(value: datetime.datetime | datetime.time) -> None:
    offset = value.utcoffset()
    if value.tzinfo is None and value.fold:
        raise Misfit(
            f"{value} has fold=1 and no zone, and would come back as the hour before it; pass an aware datetime, "
            "such as datetime.now(UTC)"
        )
    if value.tzinfo is not None and offset is None:
        raise Misfit(f"{value} would come back without its zone {value.tzinfo}; pass a datetime, or the zone's name")
    if offset is not None and offset % datetime.timedelta(minutes=1):
        raise Misfit(f"{value} would not come back as it is: JSON keeps offsets of whole minutes; pass it in UTC")


def _field_names(value: Any) -> list[str] | None:
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    attrs = getattr(kind, "__attrs_attrs__", None)
    return None if attrs is None else [field.name for field in attrs]


def _holds_itself(value: Any) -> bool:
    try:
        json.dumps(value, default=_field_values, skipkeys=True)
    except ValueError as error:
        return "Circular" in str(error)
    except RecursionError:
        return False
    return False


def _field_values(value: Any) -> list[Any]:
    return [getattr(value, name, None) for name in _field_names(value) or ()]


def unlike(value: Any) -> str:
    """Say why a value is not plain JSON, and what to do about it."""
    kind = _kind(value)
    if isinstance(value, BYTES):
        return f"{kind} cannot travel as JSON; pass base64 text, or store them elsewhere and pass their name"
    if isinstance(value, tuple | set | frozenset):
        return f"a {kind} would come back as a list; pass a list, or annotate it as {kind}"
    if isinstance(value, (*_SCALARS, dict, list)):
        return f"a {kind} would come back as something plainer; convert it first, or annotate it"
    if isinstance(value, _NATIVE) or dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        return f"a {kind} would come back as something else; annotate it as {kind}"
    return f"an object of type {kind} cannot travel as JSON; {ADVICE}"


def refusal(error: Exception, where: str, value: Any, depth_max: int) -> PayloadError:
    """Return the error that says why a value cannot travel, from what converting it has raised."""
    if isinstance(error, Misfit):
        return PayloadError(f"{where}{error.path}: {error.reason}")
    why = too_deep(value, depth_max) if isinstance(error, RecursionError) else reason_of(error)
    return PayloadError(f"{where}: {why}")


def reason_of(error: Exception) -> str:
    """Return what an exception says of a value."""
    text = str(error) or type(error).__name__
    if isinstance(error, msgspec.ValidationError):
        return text.replace(" - at `$", " at `").replace("at `key` in `$`", "in a key")
    return text if isinstance(error, PayloadError) else f"{type(error).__name__}: {text}"


def _kind(value: Any) -> str:
    return type(value).__name__


def _show(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
