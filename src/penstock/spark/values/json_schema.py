"""JSON Schema as far as columns can express it: what it allows becomes types, and what it forbids is checked.

A keyword that is not known here is refused: to leave a check out without a word would let bad values pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from penstock.errors import InvalidConfig

_NOTES: Final = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)
_STRUCTURE: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "format", "contentEncoding", "enum", "const"}
)
# Checks by their names here and where they are done.
LIMITS: Final = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "pattern": "pattern",
    "minLength": "min_length",
    "maxLength": "max_length",
    "minItems": "min_length",
    "maxItems": "max_length",
    "minProperties": "min_length",
    "maxProperties": "max_length",
}
_FORMATS: Final[dict[str, DataType]] = {"date-time": TimestampType(), "date": DateType()}
_UNCHECKED_FORMATS: Final = frozenset({"uuid", "email", "uri", "hostname", "ipv4", "ipv6", "time", "duration"})


@dataclass(frozen=True)
class Rule:
    """A type, and what else its values have to be."""

    kind: DataType
    is_nullable: bool = True
    limits: Mapping[str, Any] = field(default_factory=dict)
    choices: tuple[Any, ...] = ()
    fields: Mapping[str, Rule] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    is_closed: bool = False  # whether other fields than these are wrong
    item: Rule | None = None


def read_json_schema(schema: Mapping[str, Any]) -> Rule:
    """The rule for whole values, which have to be objects with named properties."""
    rule = _rule(schema, "$")
    if not isinstance(rule.kind, StructType):
        raise InvalidConfig("As a `schema`, a JSON Schema is of type object and has properties.")
    return rule


def _rule(schema: Any, path: str) -> Rule:
    if not isinstance(schema, dict):
        raise InvalidConfig(f"In `schema`, {path} is {schema!r} and not a JSON Schema.")
    for keyword in schema:
        if keyword not in _NOTES and keyword not in _STRUCTURE and keyword not in LIMITS:
            raise InvalidConfig(f"In `schema`, {path} has {keyword!r}, which cannot be checked here. Leave it out.")
    kind, is_nullable = _type_of(schema, path)
    limits = {LIMITS[keyword]: value for keyword, value in schema.items() if keyword in LIMITS}
    if "const" in schema:
        choices: tuple[Any, ...] = (schema["const"],)
    else:
        choices = tuple(schema.get("enum", ()))
    if choices and not all(isinstance(choice, str | int | None) and not isinstance(choice, bool) for choice in choices):
        raise InvalidConfig(f"In `schema`, the choices of {path} are texts or whole numbers.")
    if kind == "object":
        return _object(schema, path, is_nullable, limits)
    if kind == "array":
        item = _rule(schema.get("items", {"type": "string"}), f"{path}[]")
        return Rule(ArrayType(item.kind), is_nullable, limits, item=item)
    return Rule(
        _simple(kind, schema, path), is_nullable or None in choices, limits, tuple(c for c in choices if c is not None)
    )


def _type_of(schema: Mapping[str, Any], path: str) -> tuple[str, bool]:
    named = schema.get("type")
    names = [named] if isinstance(named, str) else named
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidConfig(f"In `schema`, {path} needs a `type`.")
    kinds = [name for name in names if name != "null"]
    if len(kinds) != 1:
        raise InvalidConfig(f"In `schema`, {path} is of several types, {', '.join(names)}; a column has one.")
    return kinds[0], "null" in names


def _simple(kind: str, schema: Mapping[str, Any], path: str) -> DataType:
    form = schema.get("format")
    if kind == "string":
        if schema.get("contentEncoding") == "base64":
            return BinaryType()
        if form is not None and form not in _FORMATS and form not in _UNCHECKED_FORMATS:
            raise InvalidConfig(f"In `schema`, {path} has format {form!r}, which is not known here. Leave it out.")
        return _FORMATS.get(str(form), StringType())
    types: dict[str, DataType] = {"integer": LongType(), "number": DoubleType(), "boolean": BooleanType()}
    if kind not in types:
        raise InvalidConfig(f"In `schema`, {path} is of type {kind!r}, which JSON Schema does not have.")
    return types[kind]


def _object(schema: Mapping[str, Any], path: str, is_nullable: bool, limits: Mapping[str, Any]) -> Rule:
    properties, others = schema.get("properties"), schema.get("additionalProperties", True)
    if not properties:
        if not isinstance(others, dict):
            raise InvalidConfig(f"In `schema`, {path} needs `properties`, or a schema as `additionalProperties`.")
        item = _rule(others, f"{path}{{}}")
        return Rule(MapType(StringType(), item.kind), is_nullable, limits, item=item)
    if isinstance(others, dict):
        raise InvalidConfig(f"In `schema`, {path} has both properties and others of a type; a column has either.")
    fields = {name: _rule(each, f"{path}.{name}") for name, each in properties.items()}
    required = frozenset(schema.get("required", ()))
    unknown = sorted(required - fields.keys())
    if unknown:
        raise InvalidConfig(f"In `schema`, {path} requires {unknown[0]!r}, which is not among its properties.")
    kind = StructType([StructField(name, each.kind) for name, each in fields.items()])
    return Rule(kind, is_nullable, {}, fields=fields, required=required, is_closed=others is False)
