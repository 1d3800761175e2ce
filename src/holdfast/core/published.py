"""Published tasks: workers describe their tasks, so that programs without the code can enqueue them by name.

worker: Task ──publish──▶ PublishedTask ──store──▶ PublishedSignature.encode(args, kwargs) ──▶ payload
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from inspect import Parameter
from typing import Any, Literal

import msgspec

from holdfast.core.json_schema import Schema, schema_of, violation, without_classes
from holdfast.core.json_types import BYTES, check_plain, lower, refusal
from holdfast.core.payload import JSON, LIMITS, Codec, Signature
from holdfast.core.records import NewJob
from holdfast.errors import PayloadError

SCHEMA_MAX = 100_000  # characters; the arguments of a task with a larger schema are not checked

ParameterKind = Literal["positional_only", "positional_or_keyword", "var_positional", "keyword_only", "var_keyword"]


class PublishedParameter(msgspec.Struct, frozen=True, array_like=True):
    """A parameter of a task, as a caller sees it."""

    name: str
    kind: ParameterKind = "positional_or_keyword"
    required: bool = True


class PublishedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the worker that started last has published it.

    `job` is what an enqueue by name stores, under an id and with arguments of its own: queue, priority and policy are
    those of the task. `schema` is the JSON Schema of the arguments, by their names.
    """

    job: NewJob
    parameters: tuple[PublishedParameter, ...] = ()
    schema: Schema = {}
    own_codec: bool = False  # its app has a codec of its own
    key_is_code: bool = False  # a function of the arguments makes its key
    published_at: float = 0.0  # wall time; the store writes it

    @property
    def name(self) -> str:
        """Return the name of the task."""
        return self.job.task

    def is_same(self, other: PublishedTask | None) -> bool:
        """Say whether another publication says the same."""
        return other is not None and msgspec.structs.replace(self, published_at=other.published_at) == other


def parameters_of(signature: Signature) -> tuple[PublishedParameter, ...]:
    """Return the parameters that a caller gives."""
    stars = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return tuple(
        PublishedParameter(p.name, p.kind.name.lower(), p.default is Parameter.empty and p.kind not in stars)  # type: ignore[arg-type]
        for p in signature.parameters
    )


def arguments_schema(signature: Signature) -> Schema:
    """Return the JSON Schema of a call's arguments by name. An annotation that has no schema allows everything."""
    defs: Schema = {}
    properties = {name: _schema_of(hint, defs) for name, hint in signature.hints().items()}
    required = [p.name for p in parameters_of(signature) if p.required]
    named = {"$defs": without_classes(defs)} if defs else {}
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **named}
    try:
        is_fit = len(json.dumps(schema, allow_nan=False)) <= SCHEMA_MAX
    except (TypeError, ValueError):
        is_fit = False
    return schema if is_fit else {}


def _schema_of(hint: Any, defs: Schema) -> Schema:
    made = dict(defs)
    try:
        schema = schema_of(hint, made)
    except Exception:  # a model of the user's that cannot describe itself
        return {}
    defs.update(made)
    return schema


class _Unshown:
    """The default of a parameter, which is not published: it may be a secret."""

    def __repr__(self) -> str:
        return "…"


class PublishedSignature(Signature):
    """The signature of a task by its publication: binds and checks calls as the task itself would."""

    def __init__(self, published: PublishedTask, codec: Codec = JSON) -> None:
        self._task = f"task {published.name}"
        self._codec, self._limits = codec, LIMITS
        self.takes_context, self.injected, self.result = False, {}, None
        default = _Unshown()
        self._take(
            inspect.Signature(
                [
                    Parameter(each.name, getattr(Parameter, each.kind.upper()), default=_default(each, default))
                    for each in published.parameters
                ]
            )
        )
        properties, defs = published.schema.get("properties", {}), published.schema.get("$defs", {})
        where = f"{self._task}: argument"
        self._shapes = {
            each.name: SchemaShape(properties.get(each.name, {}), defs, f"{where} {each.name!r}")
            for each in published.parameters
        }


def _default(parameter: PublishedParameter, default: object) -> object:
    has_one = not parameter.required and not parameter.kind.startswith("var_")
    return default if has_one else Parameter.empty


class SchemaShape:
    """One argument by its schema. `where` begins every message."""

    def __init__(self, schema: Any, defs: Mapping[str, Any], where: str) -> None:
        self.where = where
        self._schema = schema
        self._defs = defs

    def to_plain(self, value: Any) -> Any:
        """Return the value in plain JSON types, or raise `PayloadError` saying where it does not fit."""
        try:
            if self._schema == {}:
                check_plain(value, LIMITS.depth_max)
                return value
            plain = msgspec.to_builtins(value, builtin_types=BYTES, enc_hook=lower, str_keys=True)
        except Exception as error:
            raise refusal(error, self.where, value, LIMITS.depth_max) from error
        return self.from_plain(plain)

    def from_plain(self, plain: Any) -> Any:
        """Return the plain value if it fits, or raise `PayloadError`."""
        try:
            wrong = violation(self._schema, plain, self._defs)
        except RecursionError as error:
            raise refusal(error, self.where, plain, LIMITS.depth_max) from error
        if wrong is not None:
            raise PayloadError(f"{self.where}: {wrong.reason}" + (f" at `{wrong.path}`" if wrong.path else ""))
        return plain
