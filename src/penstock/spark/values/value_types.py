"""What a user calls the schema of values, as Spark's types and as the types that values are checked against.

DDL, Spark's own JSON, or a JSON Schema. Schemas of a registry are not known yet.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import replace
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
from penstock.spark.values.ddl import parse_ddl
from penstock.spark.values.json_schema import Rule, read_json_schema

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
