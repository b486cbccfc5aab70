"""The schema of values: as users write it, as Spark's types, and as the types that values are checked against.

Users write DDL, Spark's own JSON, or a JSON Schema. DDL is read without a JVM, because a source plans in a process of
its own that has none. Of JSON Schema what columns can express is taken, and a keyword that is not known is refused: to
leave a check out without a word would let bad values pass. Schemas of a registry are not known yet.
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import InvalidConfig

# -- JSON Schema -------------------------------------------------------------------------------------------------------

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


# -- DDL ---------------------------------------------------------------------------------------------------------------

_SIMPLE: Final[dict[str, DataType]] = {
    "string": StringType(),
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "byte": ByteType(),
    "smallint": ShortType(),
    "short": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "long": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ltz": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}
_DECIMAL_DIGITS_MAX: Final = 38
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|([A-Za-z_][A-Za-z0-9_]*)|(\d+)|([<>(),:]))")


def parse_ddl(text: str) -> StructType:
    """The columns that a DDL text declares."""
    parser = _Parser(text)
    fields = parser.fields("")
    parser.expect_end()
    return StructType(fields)


class _Parser:
    """One text, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        position = 0
        while text[position:].strip():
            found = _TOKEN.match(text, position)
            if found is None:
                raise self._wrong(text[position:].strip()[:20])
            self._tokens.append(found[0].strip())
            position = found.end()
        self._at = 0

    def _wrong(self, near: str) -> InvalidConfig:
        return InvalidConfig(
            f"`schema` is DDL such as 'id BIGINT, name STRING', or JSON Schema; {self._text!r} is neither, at {near!r}."
        )

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise self._wrong(found)

    def _accept(self, *words: str) -> bool:
        ahead = [token.lower() for token in self._tokens[self._at : self._at + len(words)]]
        if ahead != list(words):
            return False
        self._at += len(words)
        return True

    def expect_end(self) -> None:
        if self._peek():
            raise self._wrong(self._peek())

    def fields(self, end: str) -> list[StructField]:
        found: list[StructField] = []
        while True:
            name = self._name()
            self._accept(":")
            kind = self._type()
            is_nullable = not self._accept("not", "null")
            if self._accept("comment"):
                self._next()
            if name in {field.name for field in found}:
                raise InvalidConfig(f"`schema` declares {name!r} twice.")
            found.append(StructField(name, kind, is_nullable))
            if not self._accept(","):
                break
        if end:
            self._expect(end)
        return found

    def _name(self) -> str:
        token = self._next()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not token or not (token[0].isalpha() or token[0] == "_"):
            raise self._wrong(token)
        return token

    def _type(self) -> DataType:
        word = self._next().lower()
        if word in _SIMPLE:
            return _SIMPLE[word]
        if word in {"decimal", "dec", "numeric"}:
            return self._decimal()
        if word not in {"array", "map", "struct"}:
            raise self._wrong(word)
        self._expect("<")
        if word == "struct":
            return StructType(self.fields(">"))
        first = self._type()
        if word == "array":
            self._expect(">")
            return ArrayType(first)
        self._expect(",")
        second = self._type()
        self._expect(">")
        if not isinstance(first, StringType):
            raise InvalidConfig("In `schema`, the keys of a MAP are STRING: JSON has no others.")
        return MapType(first, second)

    def _decimal(self) -> DataType:
        if not self._accept("("):
            return DecimalType(10, 0)
        precision = self._number()
        scale = self._number() if self._accept(",") else 0
        self._expect(")")
        if not 0 < precision <= _DECIMAL_DIGITS_MAX or scale > precision:
            raise InvalidConfig(f"`schema` has DECIMAL({precision}, {scale}), which Spark cannot hold.")
        return DecimalType(precision, scale)

    def _number(self) -> int:
        token = self._next()
        if not token.isdigit():
            raise self._wrong(token)
        return int(token)


# -- either of them ----------------------------------------------------------------------------------------------------

_REGISTRY: Final = ("avro", "protobuf", "json", "subject", "registry")
_BITS: Final[dict[type[DataType], int]] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_PLAIN: Final[dict[type[DataType], type]] = {
    StringType: str,
    BooleanType: bool,
    FloatType: float,
    DoubleType: float,
    BinaryType: bytes,
    DateType: date,
    DecimalType: Decimal,
}


def struct_of(text: str) -> StructType:
    """The type of the column ``value``: every field may be null, whatever is checked."""
    kind = _nullable(rule_of(text).kind)
    assert isinstance(kind, StructType)
    return kind


def rule_of(text: str) -> Rule:
    """What values have to be."""
    word = text.partition(":")[0].strip().lower()
    if word in _REGISTRY and (":" in text or word == text.lower()):
        raise InvalidConfig(
            f"`schema` names {text!r}, and there is no schema registry yet: give the schema itself, in DDL or as JSON "
            f"Schema. Values in Avro or Protobuf stay bytes; decode them in Spark."
        )
    if not text.lstrip().startswith("{"):
        return _rule_of_type(parse_ddl(text))
    try:
        schema = json.loads(text)
    except ValueError as error:
        raise InvalidConfig(f"`schema` begins like JSON and is none: {error}.") from None
    if schema.get("type") == "struct" and "fields" in schema:
        try:
            return _rule_of_type(StructType.fromJson(schema))
        except (KeyError, ValueError, TypeError) as error:
            raise InvalidConfig(f"`schema` begins like Spark's own JSON and is none: {error!r}.") from None
    return read_json_schema(schema)


def _rule_of_type(kind: DataType) -> Rule:
    if isinstance(kind, StructType):
        return Rule(
            kind,
            fields={field.name: replace(_rule_of_type(field.dataType), is_nullable=field.nullable) for field in kind},
            required=frozenset(field.name for field in kind if not field.nullable),
        )
    if isinstance(kind, ArrayType):
        return Rule(kind, item=_rule_of_type(kind.elementType))
    if isinstance(kind, MapType):
        return Rule(kind, item=_rule_of_type(kind.valueType))
    if type(kind) not in _PLAIN and type(kind) not in _BITS and not isinstance(kind, TimestampType | TimestampNTZType):
        raise InvalidConfig(f"`schema` has the type {kind.simpleString()}, which JSON values cannot be read as.")
    return Rule(kind)


def _nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind])
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(StringType(), _nullable(kind.valueType))
    return kind


# -- types to check against --------------------------------------------------------------------------------------------


def checked_type(rule: Rule) -> Any:
    """The type that msgspec decodes into: it holds exactly what the rule allows."""
    try:
        return _checked(rule)
    except (TypeError, ValueError) as error:
        raise InvalidConfig(f"`schema` has limits that make no sense: {error}.") from None


def _checked(rule: Rule) -> Any:
    kind = rule.kind
    if isinstance(kind, StructType):
        return _struct(rule)
    if rule.choices:
        return Literal[rule.choices]
    inner: Any
    if isinstance(kind, ArrayType | MapType):
        assert rule.item is not None, "a type of many things says of what"
        item = _maybe(rule.item, _checked(rule.item))
        inner = (
            types.GenericAlias(list, (item,)) if isinstance(kind, ArrayType) else types.GenericAlias(dict, (str, item))
        )
    elif isinstance(kind, TimestampType | TimestampNTZType):
        return Annotated[datetime, Meta(tz=isinstance(kind, TimestampType))]
    elif type(kind) in _BITS:
        edge = 1 << (_BITS[type(kind)] - 1)
        return Annotated[int, Meta(**{"ge": -edge, "le": edge - 1} | dict(rule.limits))]
    else:
        inner = _PLAIN[type(kind)]
    return Annotated[inner, Meta(**rule.limits)] if rule.limits else inner


def _maybe(rule: Rule, inner: Any) -> Any:
    return inner | None if rule.is_nullable else inner


def _struct(rule: Rule) -> Any:
    """A struct whose attributes are numbered, because names of columns need not be names of Python."""
    names = {attribute(at): name for at, name in enumerate(rule.fields)}
    fields: list[Any] = []
    for at, (name, each) in enumerate(rule.fields.items()):
        inner = _maybe(each, _checked(each))
        if name in rule.required:
            fields.append((attribute(at), inner))
        elif each.is_nullable:
            fields.append((attribute(at), inner, None))
        else:  # it may be missing, but not null
            fields.append((attribute(at), inner | msgspec.UnsetType, msgspec.UNSET))
    rename: Callable[[str], str] = names.__getitem__
    return msgspec.defstruct(
        "Value", fields, rename=rename, kw_only=True, gc=False, forbid_unknown_fields=rule.is_closed
    )


def attribute(at: int) -> str:
    """How the field at this place is called in a checked struct."""
    return f"f{at}"
