"""Schemas of annotations agree with what the annotations themselves allow."""

import dataclasses
import datetime
import decimal
import enum
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from holdfast.core.json_schema import schema_of, violation, without_classes
from holdfast.core.json_types import JsonType
from holdfast.errors import PayloadError


@dataclasses.dataclass
class Point:
    x: int
    y: float = 0.0
    names: list[str] = dataclasses.field(default_factory=list)


class Pair(NamedTuple):
    a: int
    b: str = "b"


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Tree(msgspec.Struct, tag=True):
    leaf: int
    inner: "Tree | None" = None


class Row(msgspec.Struct, array_like=True):
    a: int
    b: str = ""


class Named(TypedDict):
    a: int
    b: NotRequired[str]


class Model(pydantic.BaseModel):
    class Inner(pydantic.BaseModel):
        n: int

    inner: Inner
    word: str = pydantic.Field(min_length=2, default="ab")


HINTS: list[Any] = [
    *(int, float, str, bool, None, Any, list, dict, list[int], tuple[int, str], tuple[int, ...], set[int]),
    *(dict[str, int], dict[int, str], dict[uuid.UUID, int], dict[str, list[Point]]),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, uuid.UUID, decimal.Decimal),
    *(Point, Pair, Colour, Tree, Row, Named, Point | None, int | str | list[Point], Literal["a", 1]),
    *(Annotated[int, msgspec.Meta(ge=1, lt=5)], Annotated[int, msgspec.Meta(gt=1, le=5, multiple_of=2)]),
    *(Annotated[str, msgspec.Meta(pattern="^a", max_length=3)], Annotated[list[int], msgspec.Meta(min_length=2)]),
    *(Annotated[dict[str, int], msgspec.Meta(max_length=1)], Model),
]
VALUES: list[Any] = [
    *(None, True, 0, 1, 2, 4, 5, 10**30, 1.0, 2.5, "", "a", "abc", "abcd", "red", "Ab"),
    *([], [1], [1, 2], [1, "x"], [1, 2, 3], ["x"], [{"x": 1}], [[1]]),
    *({}, {"x": 1}, {"x": "1"}, {"x": 1, "z": 1}, {"x": 1, "y": 2, "names": ["n"]}, {"x": 1, "names": [1]}),
    *({"a": 1}, {"a": 1, "b": "b"}, {"a": 1, "c": 1}, {"1": "one"}, {"one": "one"}),
    *({"type": "Tree", "leaf": 1}, {"type": "Tree", "leaf": 1, "inner": {"type": "Tree", "leaf": "x"}}),
    *({"type": "Bush", "leaf": 1}, {"k": [{"x": 1}]}, {"k": [{"x": None}]}),
    *("2026-01-02T03:04:05Z", "2026-01-02", "03:04:05", "PT5S", "2026-13-02", "1.5"),
    *("12345678-1234-5678-1234-567812345678", {"12345678-1234-5678-1234-567812345678": 1}),
    *({"inner": {"n": 1}}, {"inner": {"n": "x"}}, {"inner": {"n": 1}, "word": "a"}, {"word": "ab"}),
]


def fits(hint: Any, value: Any) -> bool:
    """Ask the annotation itself, as the worker does; a field that it would drop does not fit."""
    kind = JsonType(hint, "x")
    try:
        read = kind.from_plain(value)
    except PayloadError:
        return False
    if isinstance(value, dict) and hint is not Model and "z" in value:
        return "z" in msgspec.to_builtins(read)
    if hint is Named and isinstance(value, dict):
        return value.keys() <= {"a", "b"}
    return True


@pytest.mark.parametrize("hint", HINTS, ids=str)
def test_a_schema_refuses_what_the_annotation_refuses(hint: Any) -> None:
    defs: dict[str, Any] = {}
    schema = msgspec.json.decode(msgspec.json.encode(schema_of(hint, defs)))
    defs = msgspec.json.decode(msgspec.json.encode(without_classes(defs)))
    for value in VALUES:
        if hint in (float, decimal.Decimal) and type(value) in (int, float):
            continue  # a schema asks for decimals as text, and for floats that keep their digits
        if hint in (Point | None, Point) and isinstance(value, dict) and not value.keys() <= {"x", "y", "names"}:
            assert violation(schema, value, defs) is not None
            continue
        wrong = violation(schema, value, defs)
        assert (wrong is None) == fits(hint, value), (hint, value, wrong)


@pytest.mark.parametrize(
    ("hint", "value", "path", "reason"),
    [
        (int, "1", "", "Expected `int`, got `str`"),
        (dict[str, list[int]], {"k": [1, "x"]}, "['k'][1]", "Expected `int`, got `str`"),
        (list[Point], [{"x": 1}, {}], "[1]", "Object missing required field `x`"),
        (Point, {"x": 1, "z": 2}, "", "it has no field 'z', so it would be lost; remove it"),
        (Point, {"x": "1"}, ".x", "Expected `int`, got `str`"),
        (int | str, [], "", "Expected `int | str`, got `array`"),
        (Point | None, {"x": None}, ".x", "Expected `int`, got `null`"),
        (Point | None, 5, "", "Expected `object | null`, got `int`"),
        (Colour, "green", "", "Invalid value 'green'; choose one of 'red', 'blue'"),
        (float, 2**63 + 1, "", "the integer would lose digits as a float; pass a float"),
        (float, 10**400, "", "the integer would lose digits as a float; pass a float"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "", "Expected `int` >= 1"),
        (Annotated[int, msgspec.Meta(multiple_of=2)], 3, "", "Expected `int` that is a multiple of 2"),
        (Annotated[str, msgspec.Meta(pattern="^a")], "b", "", "Expected `str` matching regex '^a'"),
        (Annotated[str, msgspec.Meta(max_length=1)], "bb", "", "Expected `str` of length <= 1"),
        (Annotated[list[int], msgspec.Meta(min_length=1)], [], "", "Expected `array` of length >= 1"),
        (tuple[int, str], [1], "", "Expected `array` of length 2, got 1"),
        (datetime.date, "soon", "", "Invalid RFC3339 encoded date"),
        (uuid.UUID, "x", "", "Invalid UUID"),
        (dict[int, str], {"x": "y"}, "", "the key 'x' does not fit"),
        (Model, {"inner": {"n": "x"}}, ".inner.n", "Expected `int`, got `str`"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(hint: Any, value: Any, path: str, reason: str) -> None:
    defs: dict[str, Any] = {}
    schema = schema_of(hint, defs)
    wrong = violation(schema, value, without_classes(defs))
    assert wrong is not None
    assert (wrong.path, wrong.reason) == (path, reason)


@pytest.mark.parametrize(
    ("schema", "value", "ok"),
    [
        (False, 1, False),
        (True, 1, True),
        ("nonsense", 1, True),
        ({"$ref": "#/$defs/round"}, 1, True),
        ({"$ref": "#/$defs/lost"}, 1, True),
        ({"type": "unknown"}, 1, True),
        ({"type": ["integer", "null"]}, None, True),
        ({"type": ["integer", "null"]}, "x", False),
        ({"const": 1}, True, False),
        ({"const": 1}, 1, True),
        ({"enum": [1]}, True, False),
        ({"pattern": "("}, "x", True),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, 2, False),
        ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, 3, True),
        ({"oneOf": [{"const": 1}, {"const": 2}]}, 3, False),
        ({"anyOf": []}, 3, True),
        ({"exclusiveMinimum": 3}, 3, False),
        ({"exclusiveMaximum": 3}, 3, False),
        ({"maximum": 3}, 4, False),
        ({"multipleOf": 0}, 4, True),
        ({"contentEncoding": "base64"}, "%", False),
        ({"items": {"type": "integer"}, "prefixItems": [{"type": "string"}]}, ["a", 1], True),
        ({"items": {"type": "integer"}, "prefixItems": [{"type": "string"}]}, ["a", "b"], False),
    ],
)
def test_schemas_of_others_are_read_as_far_as_they_are_known(schema: Any, value: Any, ok: bool) -> None:
    assert (violation(schema, value, {"round": {"$ref": "#/$defs/round"}}) is None) == ok


def test_two_types_of_one_name_keep_apart() -> None:
    def other() -> Any:
        @dataclasses.dataclass
        class Point:
            z: str

        return Point

    defs: dict[str, Any] = {}
    one, two = schema_of(Point, defs), schema_of(other(), defs)
    assert one != two
    assert violation(one, {"x": 1}, defs) is None
    assert violation(two, {"x": 1}, defs) is not None
    assert violation(two, {"z": "a"}, defs) is None
