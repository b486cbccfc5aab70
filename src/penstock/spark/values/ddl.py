"""Spark's DDL for types, read without a JVM: a source plans in a process of its own that has none.

``id BIGINT NOT NULL, name STRING COMMENT 'as shown', tags ARRAY<STRING>, at STRUCT<x: DOUBLE, y: DOUBLE>``
"""

from __future__ import annotations

import re
from typing import Final

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
