"""Whatever is accepted comes back as it went; whatever would not is refused, with the argument's name."""

import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import json
import math
import sys
import typing
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypedDict

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.json_types import depth_of
from holdfast.core.payload import JSON, JsonCodec, Signature, SizeLimits, decode_value, encode_value
from holdfast.errors import PayloadError

UTC = dt.UTC
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Bits(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class Size:
    width: int
    height: int = 1


@dataclasses.dataclass
class DeepSize(Size):
    depth: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    id: uuid.UUID
    at: dt.datetime
    price: decimal.Decimal
    sizes: list[Size] = dataclasses.field(default_factory=list)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Tree:
    name: str
    children: list["Tree"] = dataclasses.field(default_factory=list)


class Options(TypedDict, total=False):
    quality: int
    codec: str


class Point(NamedTuple):
    x: int
    y: int = 0


class Circle(msgspec.Struct, tag=True):
    radius: float


class Moment(msgspec.Struct):
    at: dt.datetime


class Square(msgspec.Struct, tag=True):
    side: float
    label: Any = None


class Text(str):
    pass


class Opaque:
    pass


def taking(hint: Any) -> Signature:
    def fn(x): ...

    fn.__annotations__ = {"x": hint}
    return Signature(fn, "t")


def untyped() -> Signature:
    def fn(x): ...

    return Signature(fn, "t")


def through(signature: Signature, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return signature.decode(signature.encode(args, kwargs))


def trip(hint: Any, value: Any) -> Any:
    args, kwargs = through(taking(hint), value)
    assert args == ()
    return kwargs["x"]


def same(one: Any, other: Any) -> bool:
    """Equal, and of the same types all the way down."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    if isinstance(one, list | tuple):
        return all(map(same, one, other))
    return True


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


# --------------------------------------------------------------------------------------- what comes back

OFFSET = dt.timezone(dt.timedelta(hours=-3, minutes=-30))
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")

TRIPS: list[tuple[Any, Any]] = [
    (int, 0),
    (int, -(10**1000)),
    (int, 2**53 + 1),
    (float, 0.1),
    (float, -0.0),
    (float, sys.float_info.max),
    (float, 5e-324),
    (str, ""),
    (str, 'naïve \x00 \u2028 🎉 " \\ \\ud800'),
    (bool, True),
    (None, None),
    (int | None, None),
    (int | float, 1.0),
    (int | float, 1),
    (bool | int, True),
    (int | str, "5"),
    (list, [1, "a", None, [True]]),
    (list[int], [1, 2]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (set[str], {"a", "b"}),
    (frozenset[int], frozenset({1, 2})),
    (dict, {"a": {"b": 1}}),
    (dict[str, int], {"a": 1, "": 2}),
    (dict[int, str], {1: "a", -(10**30): "b"}),
    (dict[float, int], {1.5: 1}),
    (dict[uuid.UUID, int], {ID: 1}),
    (dict[dt.date, list[dt.time]], {dt.date(2026, 1, 1): [dt.time(1, 2, 3, 4)]}),
    (dict[Colour, int], {Colour.RED: 1}),
    (dict[Level, int], {Level.LOW: 1}),
    (Mapping[str, int], {"a": 1}),
    (Sequence[int], [1]),
    (dt.datetime, dt.datetime(2026, 1, 1, 2, 3, 4, 5)),
    (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=UTC)),
    (dt.datetime, dt.datetime(2026, 1, 1, tzinfo=OFFSET)),
    (dt.datetime, dt.datetime.max),
    (dt.date, dt.date.min),
    (dt.time, dt.time(23, 59, 59, 999999, tzinfo=UTC)),
    (dt.timedelta, dt.timedelta(days=-1, microseconds=1)),
    (dt.timedelta, dt.timedelta.max),
    (uuid.UUID, ID),
    (decimal.Decimal, decimal.Decimal("1.10")),
    (decimal.Decimal, decimal.Decimal("1e500")),
    (decimal.Decimal | None, decimal.Decimal("0")),
    (Colour, Colour.BLUE),
    (Level, Level.HIGH),
    (Bits, Bits.A | Bits.B),
    (Literal["a", 1, None], "a"),
    (Literal["a", 1, None], 1),
    (Annotated[int, msgspec.Meta(ge=0)], 5),
    (Size, Size(3)),
    (Size | None, Size(3, 4)),
    (list[Size], [Size(1), Size(2)]),
    (Order, Order(ID, dt.datetime(2026, 1, 1), decimal.Decimal("9.99"), [Size(1)], {"a": [1]})),
    (Tree, Tree("a", [Tree("b", [Tree("c")]), Tree("d")])),
    (Options, {"quality": 3}),
    (Point, Point(1, 2)),
    (list[Point], [Point(1)]),
    (Circle | Square, Square(2.0, {"a": 1})),
    (Circle | Square | None, Circle(1.5)),
    (dict[str, Any], {"a": [1, {"b": None}]}),
    (list[Any], [[], {}]),
    (Any, [1, 2.5, "a", None, True, {"k": []}]),
    (object, {"a": 1}),
]


@pytest.mark.parametrize(("hint", "value"), TRIPS, ids=map(str, range(len(TRIPS))))
def test_a_value_comes_back_as_it_went(hint: Any, value: Any) -> None:
    back = trip(hint, value)
    assert same(back, value)
    assert math.copysign(1, back) == math.copysign(1, value) if isinstance(value, float) else True


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
times = st.datetimes(timezones=st.sampled_from([None, UTC, OFFSET])).map(
    lambda at: at.replace(fold=at.fold * bool(at.tzinfo))
)
orders = st.builds(
    Order,
    id=st.uuids(),
    at=times,
    price=st.decimals(allow_nan=False),
    sizes=st.lists(st.builds(Size, st.integers(), st.integers()), max_size=3),
    extra=st.dictionaries(st.text(), plain, max_size=3),
)


@given(plain)
def test_plain_values_are_exact_where_nothing_is_annotated(value: Any) -> None:
    back = through(untyped(), value)[1]["x"]
    assert same(back, value)


@given(orders)
def test_typed_values_are_exact(order: Order) -> None:
    assert trip(Order, order) == order


@given(st.dictionaries(st.integers() | st.booleans().map(int), st.timedeltas(), max_size=5))
def test_integer_keys_and_durations_are_exact(value: dict[int, dt.timedelta]) -> None:
    assert trip(dict[int, dt.timedelta], value) == value


@given(st.text() | st.text(st.characters(categories=["Cs", "Ll"])))
def test_text_is_exact_or_refused(value: str) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in value):
        with pytest.raises(PayloadError, match="surrogate"):
            trip(str, value)
    else:
        assert trip(str, value) == value


@given(st.text() | plain.map(json.dumps))
@settings(max_examples=200)
def test_decoding_only_ever_raises_payload_errors(text: str) -> None:
    for signature in (untyped(), taking(Order)):
        with contextlib.suppress(PayloadError):
            signature.decode(text)


def test_a_type_given_in_its_json_form_is_converted() -> None:
    assert trip(dt.date, "2026-01-02") == dt.date(2026, 1, 2)
    assert trip(Size, {"width": 3}) == Size(3, 1)
    assert trip(float, 1) == 1.0
    assert type(trip(float, 1)) is float
    assert trip(list[int], (1, 2)) == [1, 2]
    assert trip(Colour, "red") is Colour.RED


def test_subclasses_of_text_and_numbers_pass_where_they_are_annotated() -> None:
    assert type(trip(str, Text("a"))) is str
    assert trip(int, Level.HIGH) == 2
    assert trip(dict[str, int], collections.defaultdict(int, a=1)) == {"a": 1}


def test_pydantic_models_travel_when_pydantic_is_there() -> None:
    class Model(pydantic.BaseModel):
        at: dt.datetime
        n: int = 1

    value = Model(at=dt.datetime(2026, 1, 1))
    assert trip(Model, value) == value
    assert trip(list[Model], [value]) == [value]
    assert trip(Model | None, None) is None
    with pytest.raises(PayloadError, match="'x'"):
        trip(Model, {"at": "never"})


class Account(pydantic.BaseModel):
    id: int


class PaidAccount(Account):
    cents: int


class Login(pydantic.BaseModel):
    password: pydantic.SecretStr


class Request(pydantic.BaseModel):
    tenant: str = pydantic.Field(default="public", exclude=True)


class Rounded(pydantic.BaseModel):
    amount: float

    @pydantic.field_serializer("amount")
    def round(self, amount: float) -> float:
        return round(amount, 1)


class Open(pydantic.BaseModel, extra="allow"):
    inner: Rounded | None = None


@pytest.mark.parametrize(
    ("hint", "value", "reason"),
    [
        (Account, PaidAccount(id=1, cents=999), "expected Account, got PaidAccount"),
        (Account | None, PaidAccount(id=1, cents=999), "expected Account, got PaidAccount"),
        (Login, Login(password=pydantic.SecretStr("hunter2")), "the field 'password' of Login would not come back"),
        (list[Request], [Request(tenant="acme")], r"\[0\].*'tenant' of Request"),
        (Rounded, Rounded(amount=19.99), "'amount' of Rounded"),
        (Open, Open(inner=Rounded(amount=19.99)), "'inner.amount' of Open"),
        (Open, Open(at=dt.datetime(2026, 1, 1)), "'model_extra' of Open"),  # type: ignore[call-arg]
    ],
)
def test_a_pydantic_model_that_would_come_back_changed_is_refused(hint: Any, value: Any, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        trip(hint, value)


def test_a_pydantic_model_whose_serialization_changes_nothing_travels() -> None:
    assert trip(Rounded, Rounded(amount=1.5)) == Rounded(amount=1.5)
    assert trip(Request, Request()) == Request()
    assert trip(Open, Open(inner=Rounded(amount=1.5), more="x")) == Open(  # type: ignore[call-arg]
        inner=Rounded(amount=1.5),
        more="x",  # type: ignore[call-arg]
    )


@dataclasses.dataclass
class Priced:
    cents: int
    tags: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.cents = self.cents * 119 // 100


class Counted(msgspec.Struct):
    trips: int = 0

    def __post_init__(self) -> None:
        self.trips += 1


@dataclasses.dataclass
class Named:
    name: str
    at: dt.datetime
    price: decimal.Decimal = decimal.Decimal(0)
    labels: set[str] = dataclasses.field(default_factory=set)

    def __post_init__(self) -> None:
        self.name = self.name.strip().lower()


@pytest.mark.parametrize(
    ("hint", "value", "reason"),
    [
        (Priced, Priced(100), "the field 'cents' of Priced would not come back as it is: __post_init__ runs again"),
        (list[Priced], [Priced(100)], r"\[0\].*'cents' of Priced"),
        (Priced | None, Priced(100), "'cents' of Priced"),
        (Counted, Counted(), "'trips' of Counted"),
    ],
)
def test_a_class_that_changes_a_field_at_each_trip_is_refused(hint: Any, value: Any, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        trip(hint, value)


def test_a_class_whose_post_init_changes_nothing_at_the_second_time_travels() -> None:
    at = dt.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)
    value = Named(" Ann ", at, decimal.Decimal("1.50"), {"a", "b"})
    assert trip(Named, value).name == "ann"
    assert trip(Priced, {"cents": 100, "tags": []}).cents == 119, "what was not initialized yet is so once"
    assert trip(Priced, Priced(0)) == Priced(0)
    with pytest.raises(PayloadError, match="at"):
        trip(Named, Named("ann", "never"))  # type: ignore[arg-type]


def hours_of_a_change() -> list[dt.datetime]:
    """Both passes of the hour that Berlin repeats in autumn, and the hour that it leaves out in spring."""
    days = [dt.datetime(2026, 10, 25), dt.datetime(2026, 3, 29)]
    return [day.replace(hour=2, minute=30, fold=fold, tzinfo=BERLIN) for day in days for fold in (0, 1)]


@pytest.mark.parametrize("local", hours_of_a_change(), ids=lambda local: local.isoformat())
def test_a_local_time_of_a_repeated_hour_comes_back_as_the_same_instant_and_offset(local: dt.datetime) -> None:
    class Model(pydantic.BaseModel):
        at: dt.datetime

    order = Order(ID, local, decimal.Decimal(1))
    others = [dt.datetime(2025, 1, day, tzinfo=UTC) for day in range(1, 9)]
    backs = [
        trip(dt.datetime, local),
        trip(list[dt.datetime], [local])[0],
        max(trip(set[dt.datetime], {local, *others})),
        trip(dict[str, dt.datetime], {"at": local})["at"],
        next(iter(trip(dict[dt.datetime, int], {local: 1}))),
        trip(Order, order).at,
        trip(Moment, Moment(local)).at,
        trip(Model, Model(at=local)).at,
    ]
    for back in backs:
        assert back.isoformat() == local.isoformat()
        assert back.astimezone(UTC) == local.astimezone(UTC)
        assert back.utcoffset() == local.utcoffset()


def test_an_integer_that_a_float_holds_exactly_passes_for_one() -> None:
    assert trip(float, 2**53) == 2**53
    assert trip(float | None, 2**60) == 2**60
    assert trip(list[int | float], [2**53 + 1, 1.5]) == [2**53 + 1, 1.5]


# -------------------------------------------------------------------------------------- what is refused

HOLE: list[Any] = []
HOLE.append(HOLE)
LOOP = Tree("a")
LOOP.children.append(LOOP)

REFUSED: dict[str, tuple[Any, Any, str]] = {
    "nan": (float, math.nan, "NaN"),
    "nan in any": (Any, [math.nan], "NaN"),
    "nan in a dataclass": (Circle, Circle(math.nan), "NaN"),
    "infinity": (float, math.inf, "NaN and Infinity"),
    "bytes": (bytes, b"abc", "bytes"),
    "bytes in any": (Any, b"abc", "bytes"),
    "bytes in a list": (list[Any], [b"abc"], "bytes"),
    "bytes for text": (str, b"abc", "bytes"),
    "bytearray": (bytearray, bytearray(b"abc"), "bytearray"),
    "cycle": (Any, HOLE, "circular"),
    "cycle in a list": (list[Any], HOLE, "circular"),
    "cycle in a dataclass": (Tree, LOOP, "circular"),
    "surrogate": (str, "\ud800", "surrogate"),
    "surrogate in a key": (dict[str, int], {"\udfff": 1}, "surrogate"),
    "deep": (Any, nested(65), "more than 64 levels"),
    "deep and typed": (list, nested(65), "more than 64 levels"),
    "very deep": (list, nested(50_000), "more than 64 levels"),
    "large": (str, "é" * 524_289, "1,048,57"),
    "object": (Any, Opaque(), "Opaque"),
    "object in a list": (list[Any], [1, Opaque()], "Opaque"),
    "object for an int": (int, Opaque(), "Opaque"),
    "function": (Any, len, "builtin_function"),
    "generator": (list[int], (n for n in [1]), "generator"),
    "complex": (Any, 1j, "complex"),
    "wrong type": (int, "5", "Expected `int`, got `str`"),
    "bool for int": (int, True, "Expected `int`, got `bool`"),
    "float for int": (int, 1.0, "Expected `int`, got `float`"),
    "none for int": (int, None, "Expected `int`, got `null`"),
    "int too large for float": (float, 10**400, "out of range"),
    "wrong in a list": (list[int], [1, "a"], r"\[1\]"),
    "wrong in a dataclass": (Size, Size("a"), r"\.width"),  # type: ignore[arg-type]
    "datetime for text": (str, dt.datetime(2026, 1, 1), "Expected `str`, got `datetime`"),
    "datetime for date": (dt.date, dt.datetime(2026, 1, 1), "Expected `date`"),
    "decimal for float": (float, decimal.Decimal(1), "annotate it as Decimal"),
    "not in the literal": (Literal["a"], "b", "Invalid enum value"),
    "not in the enum": (Colour, "green", "green"),
    "beyond its bound": (Annotated[int, msgspec.Meta(ge=0)], -1, ">= 0"),
    "tuple in any": (Any, (1, 2), "a tuple would come back as a list"),
    "tuple deep in any": (dict[str, Any], {"a": [(1, 2)]}, r"\['a'\]\[0\]: a tuple"),
    "set in any": (Any, {1}, "a set would come back as a list"),
    "int key in any": (Any, {1: 2}, "the key 1 would come back as text"),
    "int key in a dict": (dict, {1: 2}, "the key 1 would come back as text"),
    "int key for text": (dict[str, int], {1: 2}, "key"),
    "tuple key": (dict[tuple[int, int], int], {(1, 2): 1}, "keys"),
    "bool key": (dict[bool, int], {True: 1}, "keys"),
    "nan key": (dict[float, int], {math.nan: 1}, "come back"),
    "keys that collide as text": (dict[int | str, int], {1: 1, "1": 2}, "come back"),
    "key of two types": (dict[int | str, int], {1: 1}, "come back"),
    "datetime in any": (Any, dt.datetime(2026, 1, 1), "annotate it as datetime"),
    "decimal in a dict": (dict[str, Any], {"a": decimal.Decimal(1)}, "annotate it as Decimal"),
    "enum in any": (Any, Colour.RED, "Colour"),
    "int enum in any": (Any, Level.LOW, "Level"),
    "text subclass in any": (Any, Text("a"), "Text"),
    "dict subclass in any": (Any, collections.OrderedDict(a=1), "OrderedDict"),
    "dataclass in any": (Any, Size(1), "annotate it as Size"),
    "any in a field": (Order, Order(ID, dt.datetime.min, decimal.Decimal(1), extra={"a": ()}), r"\.extra\['a'\]"),
    "any in a union's struct": (Circle | Square, Square(1.0, (1,)), r"\.label: a tuple"),
    "any in a union's struct as json": (Circle | Square, {"type": "Square", "side": 1.0, "label": (1,)}, "a tuple"),
    "unknown field": (Options, {"quality": 1, "speed": 2}, "no field 'speed'"),
    "unknown field of a dataclass": (Size, {"width": 1, "depth": 2}, "no field 'depth'"),
    "subclass with more fields": (Size, DeepSize(1), "no field 'depth'"),
    "unrelated class of the same form": (Size, Circle(1.0), "expected Size, got Circle"),
    "missing field": (Size, {}, "missing required field `width`"),
    "offset of seconds": (
        dt.datetime,
        dt.datetime(1900, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=561))),
        "minutes",
    ),
    "time of a zone": (dt.time, dt.time(2, 30, tzinfo=BERLIN), "without its zone Europe/Berlin"),
    "time of a zone in a list": (list[dt.time], [dt.time(2, 30, tzinfo=BERLIN)], "without its zone"),
    "second pass of a naive hour": (dt.datetime, dt.datetime(2026, 10, 25, 2, 30, fold=1), "fold=1 and no zone"),
    "second pass of a naive hour as a key": (
        dict[dt.datetime, int],
        {dt.datetime(2026, 10, 25, 2, 30, fold=1): 1},
        "fold=1 and no zone",
    ),
    "second pass of a naive time": (dt.time, dt.time(2, 30, fold=1), "fold=1 and no zone"),
    "keys of two zones that are one text": (
        dict[dt.datetime, int],
        {dt.datetime(2026, 10, 25, 2, 30, tzinfo=zone): 1 for zone in (BERLIN, dt.timezone(dt.timedelta(hours=2)))},
        "distinct",
    ),
    "integer beyond a float": (float, 2**60 + 1, "lose digits"),
    "integer beyond a float in a list": (list[float], [1.5, 2**53 + 1], r"\[1\]: the integer would lose digits"),
    "integer beyond a float or nothing": (float | None, 2**53 + 1, "lose digits"),
    "integer beyond a float in a field": (Circle, Circle(2**53 + 1), r"\.radius: .* lose digits"),
    "integer beyond a float as a value": (dict[str, float], {"a": 2**53 + 1}, r"\['a'\]: .* lose digits"),
    "integer beyond a float as a key": (dict[float, int], {2**53 + 1: 1}, "lose digits"),
    "too many digits": (int, 10**5000, "digits"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_not_come_back_is_refused(case: str) -> None:
    hint, value, message = REFUSED[case]
    with pytest.raises(PayloadError, match=message) as caught:
        taking(hint).encode((value,), {})
    assert str(caught.value).startswith("task t: argument 'x'")


def test_the_limits_are_the_last_values_that_pass() -> None:
    assert trip(Any, nested(64)) == nested(64)
    assert trip(list, nested(64)) == nested(64)
    assert trip(str, "[" * 100) == "[" * 100
    room = 1_048_576 - len('{"x":""}')
    assert len(trip(str, "a" * room)) == room
    with pytest.raises(PayloadError, match="bytes"):
        trip(str, "a" * (room + 1))


def test_many_brackets_are_not_depth() -> None:
    wide = [[[]]] * 500
    assert trip(list, wide) == wide


def test_limits_may_be_set() -> None:
    def fn(x: Any) -> None: ...

    signature = Signature(fn, "t", limits=SizeLimits(bytes_max=20, depth_max=2))
    assert through(signature, [[1]])[1] == {"x": [[1]]}
    with pytest.raises(PayloadError, match="more than 2 levels"):
        signature.encode(([[[1]]],), {})
    with pytest.raises(PayloadError, match="at most 20 are allowed"):
        signature.encode(("a" * 20,), {})
    with pytest.raises(PayloadError, match="more than 2 levels"):
        signature.decode('{"x":[[[1]]]}')
    with pytest.raises(PayloadError, match="at most 20 are allowed"):
        signature.decode('{"x":                      1}')


def test_arguments_that_are_too_large_only_together_say_so() -> None:
    def fn(a: str, b: str) -> None: ...

    with pytest.raises(PayloadError, match="arguments together"):
        Signature(fn, "t").encode(("a" * 600_000, "b" * 600_000), {})


def test_shared_values_are_not_circular() -> None:
    one = [1]
    assert trip(Any, [one, one]) == [[1], [1]]
    deep: Any = nested(70)
    with pytest.raises(PayloadError, match="levels"):
        trip(Any, [deep, deep])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("nope", "not valid JSON"),
        ('{"x":1', "not valid JSON"),
        ('{"x":1} {}', "not valid JSON"),
        ("[1]", "must be an object"),
        ("1", "must be an object"),
        ("null", "must be an object"),
        ('{"x":1,"x":2}', "'x' occurs twice"),
        ('{"x":{"integer":1,"integer":2}}', "'integer' occurs twice"),
        ('{"x":NaN}', "NaN is not JSON"),
        ('{"x":-Infinity}', "-Infinity is not JSON"),
        ('{"x":1e999}', "too large"),
        ('{"x":"\\ud800"}', "surrogate"),
        ('{"x":"\ud800"}', "surrogates"),
        ('{"x":"\\uDC00\\ud800"}', "surrogate"),
        ('{"x":"\n"}', "control character"),
        ('{"x":' + "1" * 5000 + "}", "too many digits"),
        ('{"x":' + "[" * 70 + "]" * 70 + "}", "more than 64 levels"),
        ('{"x":' + "[" * 200_000 + "]" * 200_000 + "}", "nested too deeply"),
        ('{"x":"' + "a" * 1_048_576 + '"}', "at most 1,048,576 are allowed"),
        ("{}", "missing argument 'x'; it takes \\(x\\)"),
        ('{"x":1,"y":2}', "unexpected argument 'y'"),
        (None, "not text"),
        (b'{"x":1}', "not text"),
    ],
    ids=lambda one: str(one)[:30],
)
def test_decoding_is_strict(text: Any, message: str) -> None:
    with pytest.raises(PayloadError, match=message):
        untyped().decode(text)


def test_decoding_checks_types() -> None:
    with pytest.raises(PayloadError, match=r"argument 'x': Expected `int`, got `str`"):
        taking(int).decode('{"x":"1"}')
    with pytest.raises(PayloadError, match=r"argument 'x'.*width"):
        taking(Size).decode('{"x":{"width":"1"}}')


def test_a_constructor_that_raises_is_a_payload_error() -> None:
    class Picky(msgspec.Struct):
        n: int

        def __post_init__(self) -> None:
            if self.n == 1:
                raise KeyError("one")

    with pytest.raises(PayloadError, match="KeyError"):
        taking(Picky).decode('{"x":{"n":1}}')


def test_escaped_text_that_only_looks_like_a_surrogate_passes() -> None:
    assert untyped().decode('{"x":"\\ud83c\\udf89"}')[1] == {"x": "🎉"}
    assert untyped().decode('{"x":"\\\\ud800"}')[1] == {"x": "\\ud800"}


# ------------------------------------------------------------------------------------------- signatures


def test_arguments_are_stored_by_name_and_defaults_are_not() -> None:
    def fn(path: str, width: int = 720, *, fast: bool = False) -> None: ...

    signature = Signature(fn, "t")
    assert signature.encode(("cat.mov",), {}) == '{"path":"cat.mov"}'
    assert signature.encode(("cat.mov", 480), {"fast": True}) == '{"path":"cat.mov","width":480,"fast":true}'
    assert signature.decode('{"path":"cat.mov"}') == ((), {"path": "cat.mov"})


def test_every_kind_of_parameter() -> None:
    def fn(a: int, b: int = 2, /, c: int = 3, *rest: int, d: int, e: int = 5, **more: dt.date) -> Any:
        return a, b, c, rest, d, e, more

    signature = Signature(fn, "t")
    day = dt.date(2026, 1, 1)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((1,), {"d": 4}),
        ((1, 2), {"d": 4, "c": 9}),
        ((1, 2, 3, 4, 5), {"d": 4, "e": 6, "a": day, "rest": day, "more": day}),
        ((1,), {"d": 4, "x": day}),
    ]
    for args, kwargs in calls:
        back_args, back_kwargs = through(signature, *args, **kwargs)
        assert fn(*back_args, **back_kwargs) == fn(*args, **kwargs)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"rest":[1],"d":1}', "missing argument 'a'"),
        ('{"a":1,"rest":[1],"d":1}', "missing argument 'b', which others come after"),
        ('{"a":1,"d":1,"more":{"d":1}}', "'d' is given twice"),
        ('{"a":1,"d":1,"rest":["x"]}', r"argument 'rest'.*\[0\]"),
    ],
)
def test_a_payload_written_by_hand_is_held_to_the_signature(text: str, message: str) -> None:
    def fn(a: int, b: int = 2, /, c: int = 3, *rest: int, d: int, e: int = 5, **more: int) -> None: ...

    with pytest.raises(PayloadError, match=message):
        Signature(fn, "t").decode(text)


def test_a_gap_in_positional_only_arguments_is_refused() -> None:
    def fn(a: int = 1, b: int = 2, /) -> None: ...

    with pytest.raises(PayloadError, match="missing argument 'a'"):
        Signature(fn, "t").decode('{"b":1}')


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing arguments 'a', 'c';"),
        ((1,), {}, "missing argument 'c';"),
        ((1, 2, 3), {"c": 1}, r"too many positional arguments \(3, at most 2\);"),
        ((1,), {"c": 1, "z": 1}, "unexpected argument 'z';"),
        ((1,), {"c": 1, "a": 1}, "argument 'a' given twice;"),
        ((1,), {"z": 1, "y": 1}, "unexpected arguments 'z', 'y'; missing argument 'c';"),
        ((1, 2, 3), {"a": 1, "z": 1}, "too many .*; unexpected .* 'z'; .* 'a' given twice; missing argument 'c';"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    def fn(a, b=2, *, c): ...

    with pytest.raises(PayloadError, match=message) as caught:
        Signature(fn, "jobs.add").encode(args, kwargs)
    assert "task jobs.add" in str(caught.value)
    assert "it takes (a, b=2, *, c)" in str(caught.value)


def test_an_argument_that_has_no_name_for_the_caller_is_not_also_called_missing() -> None:
    def fn(a, /, b): ...

    with pytest.raises(PayloadError, match="t: argument 'a' given by name, but taken by position only; it takes"):
        Signature(fn, "t").encode((), {"a": 1, "b": 2})

    def open_ended(a, /, **more): ...

    with pytest.raises(PayloadError, match="t: missing argument 'a'; it takes"):
        Signature(open_ended, "t").encode((), {"a": 1})


def test_all_that_is_wrong_with_a_stored_call_is_named() -> None:
    def fn(a, b, c=3): ...

    with pytest.raises(PayloadError, match="t: unexpected arguments 'y', 'z'; missing arguments 'a', 'b'; it takes"):
        Signature(fn, "t").decode('{"y": 1, "z": 2, "c": 3}')


def test_some_arguments_of_a_call_are_changed() -> None:
    def call(a: int, b: list[int], *more: int, c: str = "x", **others: int) -> None: ...

    signature = Signature(call, "t")
    text = signature.encode((1, [2], 3), {"c": "y", "d": 4, "e": 5})
    assert signature.decode(signature.change(text, (), {})) == signature.decode(text)
    changed = signature.change(text, (9,), {"c": "z", "e": 6, "f": 7})
    assert signature.decode(changed) == ((9, [2], 3), {"c": "z", "d": 4, "e": 6, "f": 7})
    odd = signature.change('{"a":1,"others":[]}', (), {"b": [], "others": 1})
    assert signature.decode(odd) == ((), {"a": 1, "b": [], "others": 1})


@pytest.mark.parametrize(
    ("text", "kwargs", "message"),
    [
        ('{"a":1}', {}, "missing argument 'b'; it takes"),
        ('{"a":1}', {"b": 2, "d": 3}, "unexpected argument 'd'; it takes"),
        ('{"a":1}', {"b": "x"}, "argument 'b'"),
        ('{"a":"x"}', {"b": 2}, "argument 'a'"),
        ('{"a":1,"z":1}', {"b": 2}, "unexpected argument 'z'"),
        ("[1]", {"b": 2}, "must be an object"),
    ],
)
def test_a_changed_call_fits_as_a_whole(text: str, kwargs: dict[str, Any], message: str) -> None:
    def call(a: int, b: int, c: int = 0) -> None: ...

    with pytest.raises(PayloadError, match=message):
        Signature(call, "t").change(text, (), kwargs)


def test_unpacked_keyword_arguments() -> None:
    def fn(**options: typing.Unpack[Options]) -> None: ...

    signature = Signature(fn, "t")
    assert through(signature, quality=3) == ((), {"quality": 3})
    with pytest.raises(PayloadError, match="quality"):
        signature.encode((), {"quality": "high"})


class Context:
    pass


Context.__module__ = "holdfast.worker.context"


class OwnContext(Context):
    pass


def test_the_context_is_no_argument() -> None:
    def by_type(work: Context, x: int) -> None: ...
    def by_subclass(work: OwnContext, x: int) -> None: ...
    def by_text(work: "holdfast.Context", x: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821
    def by_name(ctx, x): ...
    def by_name_and_any(flow: Any, x: int) -> None: ...

    for fn in (by_type, by_subclass, by_text, by_name, by_name_and_any):
        signature = Signature(fn, "t")
        assert signature.takes_context
        assert through(signature, 5) == ((), {"x": 5})


def test_a_context_that_is_not_the_first_parameter_is_refused_with_what_to_do() -> None:
    def second(x: int, work: Context) -> None: ...
    def by_keyword(x: int, *, work: OwnContext) -> None: ...

    for fn in (second, by_keyword):
        with pytest.raises(PayloadError, match=r"task t: the worker passes .*; make 'work' the first parameter"):
            Signature(fn, "t")


def test_other_first_parameters_are_arguments() -> None:
    def another_type(ctx: int) -> None: ...
    def another_name(x, ctx=1): ...
    def by_keyword(*, ctx): ...
    def nothing() -> None: ...

    fns: list[Callable[..., Any]] = [another_type, another_name, by_keyword, nothing]
    assert not any(Signature(fn, "t").takes_context for fn in fns)


@pytest.mark.parametrize(
    "hint",
    [
        Opaque,
        list[Opaque],
        Iterable[int],
        Callable[[], None],
        complex,
        type,
        dict | Size,
        str | dt.date,
        range,
        msgspec.Raw,
    ],
    ids=str,
)
def test_an_annotation_that_cannot_travel_is_refused_at_declaration(hint: Any) -> None:
    with pytest.raises(PayloadError, match=r"task t: argument 'x': the annotation .* cannot travel as JSON.*use plain"):
        taking(hint)


def test_an_annotation_that_cannot_be_resolved_is_refused_at_declaration() -> None:
    def fn(x: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(PayloadError, match="'Missing' of 'x' cannot be resolved"):
        Signature(fn, "t")
    assert through(Signature(fn, "t", names={"Missing": Size}), Size(1)) == ((), {"x": Size(1)})


# ---------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize(("hint", "value"), TRIPS, ids=map(str, range(len(TRIPS))))
def test_an_annotated_result_comes_back_as_it_went(hint: Any, value: Any) -> None:
    def fn(): ...

    fn.__annotations__ = {"return": hint}
    assert decode_value(encode_value(value, "r"), Signature(fn, "t").result, "r") == value


def test_a_result_without_annotation_is_plain() -> None:
    value = {"when": dt.date(2026, 1, 1), 1: (Size(1), {2}), "c": Colour.RED}
    text = encode_value(value, "r")
    assert decode_value(text, None, "r") == {"when": "2026-01-01", "1": [{"width": 1, "height": 1}, [2]], "c": "red"}


UNTELLABLE: dict[str, tuple[Any, str]] = {
    "bytes": (b"abc", "bytes"),
    "nan": ([math.nan], "NaN"),
    "cycle": (HOLE, "circular"),
    "cycle in a dataclass": (LOOP, "circular"),
    "deep": (nested(65), "levels"),
    "surrogate": ("\ud800", "surrogate"),
    "large": ("a" * 1_048_576, "1,048,578 bytes"),
    "object": (Opaque(), "Opaque"),
    "tuple key": ({(1, 2): 3}, "keys"),
    "too many digits": (10**5000, "digits"),
}


@pytest.mark.parametrize("case", UNTELLABLE)
def test_a_result_that_cannot_travel_is_refused(case: str) -> None:
    value, message = UNTELLABLE[case]
    with pytest.raises(PayloadError, match=f"^the result of t: .*{message}"):
        encode_value(value, "the result of t")


def test_a_result_of_another_type_than_annotated_is_stored_and_refused_when_read() -> None:
    def fn() -> int:
        return 1

    text = encode_value("five", "r")
    with pytest.raises(PayloadError, match="the result: Expected `int`, got `str`"):
        decode_value(text, Signature(fn, "t").result, "r")
    assert decode_value(text, None, "r") == "five"


def test_return_annotations_that_say_nothing_are_let_through() -> None:
    def many() -> Iterable[int]: ...  # type: ignore[empty-body]
    def either() -> str | dt.date: ...  # type: ignore[empty-body]
    def never() -> typing.NoReturn: ...  # type: ignore[misc]
    def unknown() -> "Missing": ...  # type: ignore[name-defined]  # noqa: F821
    def nothing() -> None: ...

    fns: list[Callable[..., Any]] = [many, either, never, unknown, nothing]
    assert [Signature(fn, "t").result for fn in fns] == [None] * 5


def test_a_return_annotation_that_never_travels_is_refused_at_declaration() -> None:
    def fn() -> Opaque: ...  # type: ignore[empty-body]

    with pytest.raises(PayloadError, match="the result: the annotation Opaque cannot travel"):
        Signature(fn, "t")


# ----------------------------------------------------------------------------------------------- codecs


class Hexadecimal:
    """A codec whose text shows nothing of what is inside."""

    def encode(self, plain: Any) -> str:
        return JSON.encode(plain).encode().hex()

    def decode(self, text: str) -> Any:
        return JSON.decode(bytes.fromhex(text).decode())


def test_another_codec_replaces_json() -> None:
    def fn(x: Order) -> None: ...

    signature = Signature(fn, "t", codec=Hexadecimal())
    order = Order(ID, dt.datetime(2026, 1, 1), decimal.Decimal(1))
    text = signature.encode((order,), {})
    assert text.startswith("7b")
    assert signature.decode(text) == ((), {"x": order})
    with pytest.raises(PayloadError, match="fromhex"):
        signature.decode('{"x":1}')


class Wrapped:
    """A codec whose text for anything looks like an empty object of JSON."""

    def encode(self, plain: Any) -> str:
        return "{}"

    def decode(self, text: str) -> Any:
        return {"x": 1}


def test_what_looks_like_no_arguments_is_for_the_codec_to_say() -> None:
    def fn(x: int = 0) -> None: ...

    assert Signature(fn, "t").decode("{}") == ((), {})
    assert Signature(fn, "t", codec=Wrapped()).decode("{}") == ((), {"x": 1})


def test_depth_is_limited_under_another_codec_too() -> None:
    def fn(x: list[Any]) -> None: ...

    def walked(x: list) -> None: ...  # type: ignore[type-arg]

    codec = Hexadecimal()
    with pytest.raises(PayloadError, match="64 levels"):
        Signature(fn, "t", codec=codec).encode((nested(65),), {})
    with pytest.raises(PayloadError, match="64 levels"):
        Signature(walked, "t", codec=codec).decode(codec.encode({"x": nested(65)}))
    with pytest.raises(PayloadError, match="64 levels"):
        encode_value(nested(65), "r", codec=codec)


def test_whatever_a_codec_raises_is_a_payload_error() -> None:
    class Broken:
        def encode(self, plain: Any) -> str:
            raise KeyError("out")

        def decode(self, text: str) -> Any:
            raise ZeroDivisionError("in")

    def fn(x: int) -> None: ...

    signature = Signature(fn, "t", codec=Broken())
    with pytest.raises(PayloadError, match="argument 'x': KeyError"):
        signature.encode((1,), {})
    with pytest.raises(PayloadError, match="ZeroDivisionError"):
        signature.decode("{}")


@given(plain)
def test_the_json_codec_agrees_with_the_standard_library(value: Any) -> None:
    text = JsonCodec().encode(value)
    assert same(json.loads(text), value)
    assert same(JsonCodec().decode(json.dumps(value)), value)


@given(plain)
def test_depth_is_counted_in_levels(value: Any) -> None:
    def slow(item: Any) -> int:
        inner = item.values() if isinstance(item, dict) else item if isinstance(item, list) else None
        return 0 if inner is None else 1 + max(map(slow, inner), default=0)

    assert depth_of(value) == slow(value)
