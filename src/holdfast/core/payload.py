"""Arguments and results as text: strict, typed JSON.

    call ──Signature.encode()──▶ {"path": "cat.mov", "width": 480} ──Signature.decode()──▶ (args, kwargs)

Everything that the worker would refuse is refused at the enqueue, with nothing stored. Data never names code: there is
no pickle, no import path and no tag that chooses a class other than those that the signature itself names.
"""

from __future__ import annotations

import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, NoReturn, Protocol

import msgspec

from holdfast.core.json_types import BYTES, JsonType, depth_of, lower, reason_of, refusal, too_deep, unlike
from holdfast.errors import PayloadError, UsageError

CONTEXT_TYPES = frozenset({"Context", "Flow", "AsyncFlow"})
CONTEXT_NAMES = frozenset({"ctx", "flow"})

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class _Injected:
    def __repr__(self) -> str:
        return "injected"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise UsageError(f"only a worker gives a task its resources (this code wants its {name!r}); pass one by name")


# The default of an argument that the worker gives by its type, so that type checkers let an enqueue leave it out.
injected: Any = _Injected()


@dataclass(frozen=True, slots=True)
class SizeLimits:
    """The largest size of a payload or a result, as UTF-8, and the deepest nesting of a value in it."""

    bytes_max: int = 1_048_576
    depth_max: int = 64


LIMITS = SizeLimits()


class Codec(Protocol):
    """Turns plain JSON types into the text that is stored, and back. `App(codec=…)` replaces JSON by another.

    `decode(encode(plain)) == plain` must hold; whatever either raises becomes a `PayloadError`.
    """

    def encode(self, plain: Any) -> str:
        """Return the text, which must be valid Unicode."""
        ...

    def decode(self, text: str) -> Any:
        """Return what `encode` was given. The text comes from the store and is not to be trusted."""
        ...


def _no_doubled_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        doubled = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {doubled!r} occurs twice")
    return found


def _refuse(value: object) -> NoReturn:
    raise PayloadError(unlike(value))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"the number {text[:20]} is too large")
    return number


class JsonCodec:
    """Compact JSON by the standard library: integers of any size are exact; NaN and doubled keys are refused."""

    def __init__(self) -> None:
        self._encoder = json.JSONEncoder(
            ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), default=_refuse
        )
        self._decoder = json.JSONDecoder(
            object_pairs_hook=_no_doubled_keys, parse_constant=_no_constant, parse_float=_finite
        )

    def encode(self, plain: Any) -> str:
        try:
            return self._encoder.encode(plain)
        except ValueError as error:
            if "integer string" in str(error):
                raise PayloadError("an integer has too many digits for Python's JSON; pass it as text") from error
            raise PayloadError("NaN and Infinity have no JSON form; pass None or text instead") from error
        except RecursionError as error:
            raise PayloadError(too_deep(plain, LIMITS.depth_max)) from error

    def decode(self, text: str) -> Any:
        try:
            plain = self._decoder.decode(text)
            if "\\ud" in text or "\\uD" in text:
                self._encoder.encode(plain).encode()  # an escaped half of a surrogate pair is not text
            return plain
        except UnicodeEncodeError as error:
            raise PayloadError("it holds half of a surrogate pair, which is not text") from error
        except RecursionError as error:
            raise PayloadError("it is nested too deeply") from error
        except (ValueError, TypeError) as error:
            if "integer string" in str(error):
                raise PayloadError("it holds an integer with too many digits") from error
            raise PayloadError(f"it is not valid JSON: {error}") from error


JSON = JsonCodec()


class Shape(Protocol):
    """The values that an argument allows."""

    where: str

    def to_plain(self, value: Any) -> Any:
        """Return the value in plain JSON types, or raise `PayloadError`."""
        ...

    def from_plain(self, plain: Any) -> Any:
        """Return the value as the task gets it, or raise `PayloadError`."""
        ...


class Signature:
    """The parameters of a task, read once when the task is declared.

    A leading parameter that is annotated `Context` or `Flow`, or named `ctx` or `flow` without another annotation, is
    given by the worker and is not an argument. Neither are parameters whose annotation is one of `resources`; these
    are in `injected`. `names` helps to resolve annotations that are text.
    Raises `PayloadError` for an annotation that cannot travel.
    """

    _what = "task"
    _gets_context = True

    def __init__(
        self,
        fn: Callable[..., Any],
        task: str,
        *,
        codec: Codec = JSON,
        limits: SizeLimits = LIMITS,
        names: Mapping[str, Any] | None = None,
        resources: Collection[Any] = (),
    ) -> None:
        self._task = f"{self._what} {task}"
        self._codec = codec
        self._limits = limits
        signature = inspect.signature(fn)
        parameters = list(signature.parameters.values())
        hints = _Hints(fn, self._task, names)
        self.takes_context = self._gets_context and bool(parameters) and _is_context(parameters[0], hints)
        if self.takes_context:
            parameters = parameters[1:]
        self.injected = self._find_injected(parameters, hints, resources)
        self._take(signature.replace(parameters=[p for p in parameters if p.name not in self.injected]))
        self._shapes: Mapping[str, Shape] = {p.name: self._shape(p, hints) for p in self.parameters}
        self.result = _result_shape(signature.return_annotation, hints, self._task)

    def _take(self, signature: inspect.Signature) -> None:
        """Sort the parameters of a call by how they are given."""
        self._signature = signature
        parameters = self.parameters

        def named(*kinds: object) -> tuple[str, ...]:
            return tuple(p.name for p in parameters if p.kind in kinds)

        self._positional = named(*_POSITIONAL)
        self._only_positional = named(Parameter.POSITIONAL_ONLY)
        self._named = frozenset(named(Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY))
        self._star = next(iter(named(Parameter.VAR_POSITIONAL)), None)
        self._stars = next(iter(named(Parameter.VAR_KEYWORD)), None)
        self._required = frozenset(
            p.name for p in parameters if p.default is Parameter.empty and p.name not in (self._star, self._stars)
        )

    @property
    def parameters(self) -> list[Parameter]:
        """Return what a caller gives: without the context and without resources."""
        return list(self._signature.parameters.values())

    def hints(self) -> dict[str, Any]:
        """Return the annotations of what a caller gives, resolved; `*args` and `**kwargs` as one argument each."""
        return {name: getattr(shape, "hint", Any) for name, shape in self._shapes.items()}

    def _find_injected(self, parameters: list[Parameter], hints: _Hints, resources: Container[Any]) -> dict[str, type]:
        """Return the parameters that the worker gives by their type."""
        found: dict[str, Any] = {}
        movable: tuple[object, ...] = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
        if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
            movable = movable[1:]
        for p in parameters:
            hint = hints.of(p.name, p.annotation) if resources or p.default is injected else None
            if hint in resources and p.kind in movable:
                found[p.name] = hint
            elif hint in resources:
                raise PayloadError(f"{self._task}: {p.name!r} is a resource; put it after a `*`: it is given by name")
            elif p.default is injected:
                raise PayloadError(
                    f"{self._task}: {p.name!r} is to be injected, but this app has no resource of its type "
                    f"{getattr(hint, '__name__', hint)}; declare it before the task: app.resource(…)"
                )
        return found

    def _shape(self, parameter: Parameter, hints: _Hints) -> JsonType:
        hint = hints.of(parameter.name, parameter.annotation)
        if _is_context_type(hint):
            raise PayloadError(
                f"{self._task}: the worker passes a {hint.__name__} only as the first argument; "
                f"make {parameter.name!r} the first parameter"
            )
        return self._shape_of(parameter, hint)

    def _shape_of(self, parameter: Parameter, hint: Any) -> JsonType:
        where = f"{self._task}: argument {parameter.name!r}"
        return JsonType(_with_stars(parameter, hint), where, depth_max=self._limits.depth_max)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the call as text, defaults left out; or raise `PayloadError` naming the argument and what to do."""
        if not args and not kwargs and self._codec is JSON and not self._required:
            return "{}"
        return self._text(self._lowered(args, kwargs))

    def _lowered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        shapes = self._shapes
        return {name: shapes[name].to_plain(value) for name, value in self._bind(args, kwargs).items()}

    def change(self, text: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the text of another call: as in `text`, but for the arguments that are given. Raises as `encode`."""
        old, shapes = self._plain(text), self._shapes
        bound = self._bind(args, kwargs, frozenset(old))
        new = {name: shapes[name].to_plain(value) for name, value in bound.items()}
        if self._stars in new and isinstance(old.get(self._stars), dict):
            new[self._stars] = {**old[self._stars], **new[self._stars]}
        changed = self._text({**old, **new})
        self.decode(changed)  # what was there before may not fit any more
        return changed

    def _text(self, plain: dict[str, Any], around: Mapping[str, Any] | None = None) -> str:
        """Return the arguments as text; `around`: with the text around them."""
        whole = plain if around is None else {**around, "arguments": plain}
        try:
            text = self._codec.encode(whole)
            _check_text(text, self._limits)
        except Exception as error:
            self._blame(plain, error)
        _check_depth(self._task, text, whole, self._limits, 1 if around is None else 2, self._codec)
        return text

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call that was encoded. Raises `PayloadError`, and nothing else, when the text does not fit."""
        if text == "{}" and self._codec is JSON and not self._required:  # a call without arguments needs no look
            return (), {}
        bound = self._raised(self._plain(text))
        if self._star is None and self._stars is None and not self._only_positional:
            return (), bound
        return self._spread(bound)

    def _raised(self, plain: dict[str, Any]) -> dict[str, Any]:
        shapes = self._shapes
        if not plain.keys() <= shapes.keys() or not self._required <= plain.keys():
            unexpected = _arguments("unexpected ", [name for name in plain if name not in shapes])
            self._refuse(unexpected, self._missing(plain))
        return {name: shapes[name].from_plain(value) for name, value in plain.items()}

    def _plain(self, text: str) -> dict[str, Any]:
        plain = decode_plain(text, f"{self._task}: the payload", self._limits, self._codec, outer=1)
        if not isinstance(plain, dict):
            raise PayloadError(f"{self._task}: the payload must be an object of arguments")
        return plain

    def _bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], old: frozenset[str] = frozenset()
    ) -> dict[str, Any]:
        """Give each argument its name. By hand: `inspect` takes longer than all the rest of an enqueue.

        `old`: names that need not be given.
        """
        bound = dict(zip(self._positional, args, strict=False))
        if len(args) > len(self._positional):
            if self._star is None:
                self._misfit(args, kwargs, old)
            bound[self._star] = args[len(self._positional) :]
        others: dict[str, Any] = {}
        for name, value in kwargs.items():
            if name in self._named and name not in bound:
                bound[name] = value
            elif self._stars is not None and name not in self._named:
                others[name] = value
            else:
                self._misfit(args, kwargs, old)
        if others and self._stars is not None:
            bound[self._stars] = others
        if not self._required <= bound.keys() | old:
            self._misfit(args, kwargs, old)
        return bound

    def _misfit(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], old: Container[str]) -> NoReturn:
        """Name everything that is wrong with a call, so that it can be put right at once."""
        placed, most = self._positional[: len(args)], len(self._positional)
        others = [name for name in kwargs if name not in self._named] if self._stars is None else []
        nameless = [name for name in others if name in self._only_positional]
        too_many = len(args) > most and self._star is None
        self._refuse(
            f"too many positional arguments ({len(args)}, at most {most})" if too_many else "",
            _arguments("unexpected ", [name for name in others if name not in nameless]),
            _arguments("", [name for name in kwargs if name in self._named and name in placed], " given twice"),
            _arguments("", nameless, " given by name, but taken by position only"),
            self._missing({*placed, *nameless, *(self._named & kwargs.keys())}, old),
        )

    def _missing(self, given: Container[str], old: Container[str] = ()) -> str:
        wanted = [name for name in self._shapes if name in self._required and name not in old]
        return _arguments("missing ", [name for name in wanted if name not in given])

    def _refuse(self, *problems: str) -> NoReturn:
        raise PayloadError(f"{self._task}: {'; '.join(filter(None, problems))}; {self._takes()}")

    def _takes(self) -> str:
        bare = [p.replace(annotation=Parameter.empty) for p in self._signature.parameters.values()]
        return f"it takes {inspect.Signature(bare)}"

    def _spread(self, bound: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Undo `_bind` for a signature with stars or positional-only parameters."""
        more = bound.pop(self._star, ()) if self._star is not None else ()
        others = bound.pop(self._stars, {}) if self._stars is not None else {}
        args: list[Any] = []
        leading = self._positional if more else self._only_positional
        for index, name in enumerate(leading):
            if name not in bound:
                if more or any(later in bound for later in leading[index:]):
                    raise PayloadError(f"{self._task}: missing argument {name!r}, which others come after")
                break
            args.append(bound.pop(name))
        doubled = sorted(others.keys() & self._named)
        if doubled:
            raise PayloadError(f"{self._task}: argument {doubled[0]!r} is given twice")
        return (*args, *more), bound | others

    def _blame(self, plain: dict[str, Any], error: Exception) -> NoReturn:
        """Find the argument that cannot be encoded, to name it."""
        for name, value in plain.items():
            try:
                _check_text(self._codec.encode(value), self._limits)
            except Exception as culprit:
                raise PayloadError(f"{self._shapes[name].where}: {reason_of(culprit)}") from error
        raise PayloadError(f"{self._task}: the arguments together: {reason_of(error)}") from error


class StepSignature(Signature):
    """The parameters of a step's function. A call keeps its form: positional arguments stay positional, since
    the undo gets it too, and may call it by other names.

    An annotation that cannot be resolved or cannot travel says nothing: only what is really passed has to travel.
    """

    _what = "step"
    _gets_context = False

    def __init__(self, fn: Callable[..., Any], name: str, *, codec: Codec = JSON) -> None:
        try:
            inspect.signature(fn)
        except (ValueError, TypeError):  # built in, and does not tell
            fn = _takes_anything
        super().__init__(fn, name, codec=codec)

    def _shape(self, parameter: Parameter, hints: _Hints) -> JsonType:
        try:
            return super()._shape(parameter, hints)
        except PayloadError:
            return self._shape_of(parameter, Any)

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the call as text: `{"positional": 1, "arguments": {"order_id": 42, "express": true}}`."""
        return self._text(self._lowered(args, kwargs), {"positional": len(args)})

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the call as it was made. Raises `PayloadError`, and nothing else, when the text does not fit."""
        whole = decode_plain(text, f"{self._task}: the arguments", self._limits, self._codec, outer=2)
        match whole:
            case {"positional": int(number), "arguments": dict(plain)}:
                bound = self._raised(plain)
            case _:
                raise PayloadError(f"{self._task}: these are not the arguments of a step")
        more = bound.pop(self._star, ()) if self._star is not None else ()
        others = bound.pop(self._stars, {}) if self._stars is not None else {}
        first = self._positional[:number]
        if any(name not in bound for name in first):
            self._refuse(self._missing(bound) or "the arguments that were given by position have other names now")
        return (*(bound.pop(name) for name in first), *more), bound | others


def _takes_anything(*args: Any, **kwargs: Any) -> None:
    """Stand for a function that does not tell its signature."""


def result_shape(fn: Callable[..., Any], name: str) -> JsonType | None:
    """Return how results of any function are read; None, that is plain, where its annotation says nothing."""
    try:
        annotation = inspect.signature(fn).return_annotation
    except (ValueError, TypeError):  # built in, and does not tell
        return None
    return _result_shape(annotation, _Hints(fn, f"step {name}", None), f"step {name}")


def encode_value(value: Any, where: str, limits: SizeLimits = LIMITS, codec: Codec = JSON) -> str:
    """Return a result as text, or raise `PayloadError`.

    It is not held against an annotation: the work is done, and a wrong one must not make it be done again. Tuples and
    sets become lists, dates text, and keys text; the annotation undoes that when the result is read.
    """
    if value is None and codec is JSON:
        return "null"  # what most tasks return
    try:
        plain = msgspec.to_builtins(value, builtin_types=BYTES, enc_hook=lower, str_keys=True)
        text = codec.encode(plain)
        _check_text(text, limits)
    except Exception as error:
        raise refusal(error, where, value, limits.depth_max) from error
    _check_depth(where, text, plain, limits, 0, codec)
    return text


def decode_value(
    text: str, shape: JsonType | None, where: str, limits: SizeLimits = LIMITS, codec: Codec = JSON
) -> Any:
    """Return a result as its annotation says, or plain without one. Raises only `PayloadError`."""
    plain = decode_plain(text, where, limits, codec, outer=0)
    return plain if shape is None else shape.from_plain(plain)


def decode_plain(text: str, where: str, limits: SizeLimits, codec: Codec, *, outer: int) -> Any:
    """Return plain JSON types from text that nobody has checked. `outer` levels are ours and do not count."""
    if not isinstance(text, str):
        raise PayloadError(f"{where} is not text")
    try:
        _check_size(text, limits)
        plain = codec.decode(text)
    except Exception as error:
        raise PayloadError(f"{where}: {reason_of(error)}") from error
    _check_depth(where, text, plain, limits, outer, codec)
    return plain


def _check_text(text: str, limits: SizeLimits) -> None:
    try:
        _check_size(text, limits)
    except UnicodeEncodeError as error:
        raise PayloadError("it holds half of a surrogate pair, which is not text; remove it") from error


def _check_size(text: str, limits: SizeLimits) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > limits.bytes_max:
        raise PayloadError(
            f"it has {size:,} bytes, and at most {limits.bytes_max:,} are allowed; "
            "store the data elsewhere and pass its name"
        )


def _check_depth(where: str, text: str, plain: Any, limits: SizeLimits, outer: int, codec: Codec) -> None:
    deepest = limits.depth_max + outer
    # Fewer brackets than levels allowed: no need to walk.
    if codec is JSON and text.count("[") + text.count("{") <= deepest:
        return
    if depth_of(plain) > deepest:
        raise PayloadError(f"{where}: {too_deep(plain, limits.depth_max)}")


class _Hints:
    """Annotations of one function, resolved one by one, so that a bad one is named."""

    def __init__(self, fn: Callable[..., Any], task: str, names: Mapping[str, Any] | None) -> None:
        self._globals = getattr(inspect.unwrap(fn), "__globals__", {})
        self._task = task
        self._names = dict(names or {})

    def of(self, name: str, annotation: Any) -> Any:
        if annotation is Parameter.empty:
            return Any
        try:
            return self.resolve(annotation)
        except Exception as error:
            raise PayloadError(
                f"{self._task}: the annotation {annotation!r} of {name!r} cannot be resolved ({error}); "
                "import the type at run time, at the top of the module"
            ) from error

    def resolve(self, annotation: Any) -> Any:
        carrier = types.SimpleNamespace(__annotations__={"it": annotation})
        try:
            return typing.get_type_hints(carrier, self._globals, include_extras=True)["it"]
        except NameError:
            return typing.get_type_hints(carrier, self._globals, self._names, include_extras=True)["it"]


def _is_context(first: Parameter, hints: _Hints) -> bool:
    if first.kind not in _POSITIONAL:
        return False
    if first.annotation is Parameter.empty:
        return first.name in CONTEXT_NAMES
    try:
        hint = hints.resolve(first.annotation)
    except Exception:  # imported for type checkers only, perhaps
        return str(first.annotation).rpartition(".")[2] in CONTEXT_TYPES
    if hint is Any:
        return first.name in CONTEXT_NAMES
    return _is_context_type(hint)


def _is_context_type(hint: Any) -> bool:
    return any(
        one.__name__ in CONTEXT_TYPES and one.__module__.partition(".")[0] == "holdfast"
        for one in getattr(hint, "__mro__", ())
    )


def _with_stars(parameter: Parameter, hint: Any) -> Any:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return tuple[hint, ...]
    if parameter.kind is Parameter.VAR_KEYWORD:
        return typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Unpack else dict[str, hint]
    return hint


def _result_shape(annotation: Any, hints: _Hints, task: str) -> JsonType | None:
    """Return how a result is read; None, that is plain, where the annotation says nothing that JSON could use.

    A class that never travels is refused now: found out later, the work would be done, fail and be done again.
    """
    if annotation in (Parameter.empty, None):
        return None
    try:
        hint = hints.resolve(annotation)
    except Exception:  # imported for type checkers only, perhaps
        return None
    try:
        return JsonType(hint, f"{task}: the result")
    except PayloadError:
        if isinstance(hint, type) and not inspect.isabstract(hint) and not typing.is_typeddict(hint):
            raise
        return None


def _arguments(before: str, names: Sequence[str], after: str = "") -> str:
    """Say one thing of several arguments; nothing when there are none."""
    noun = "argument" if len(names) == 1 else "arguments"
    return f"{before}{noun} {', '.join(map(repr, names))}{after}" if names else ""
