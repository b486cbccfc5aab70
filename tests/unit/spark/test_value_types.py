"""Schemas of values: what can be said, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from penstock.errors import InvalidConfig
from penstock.spark.values import checked_type, rule_of, struct_of


def test_ddl_is_read_without_a_jvm() -> None:
    text = """id BIGINT NOT NULL COMMENT 'it''s', `a b`: decimal(12, 3), m MAP<STRING, ARRAY<INT>>,
              s STRUCT<x: DOUBLE, `y``z`: STRUCT<deep: BOOLEAN>>, at TIMESTAMP, d DATE, b BINARY""".replace("''", "")
    assert struct_of(text).simpleString() == (
        "struct<id:bigint,a b:decimal(12,3),m:map<string,array<int>>,"
        "s:struct<x:double,y`z:struct<deep:boolean>>,at:timestamp,d:date,b:binary>"
    )


def test_sparks_own_json_is_read() -> None:
    kind = struct_of("a INT, b ARRAY<STRING>")
    assert struct_of(kind.json()) == kind


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("id", "at ''"),
        ("id NUMBER", "at 'number'"),
        ("id INT,, x INT", "at ','"),
        ("id INT x", "at 'x'"),
        ("id ARRAY<INT", "at ''"),
        ("id MAP<INT, INT>", "keys of a MAP are STRING"),
        ("id INT, id INT", "declares 'id' twice"),
        ("id DECIMAL(40, 2)", "cannot hold"),
        ("id INT; drop", "at '; drop'"),
        ("avro:orders-value", "no schema registry yet"),
        ("protobuf", "no schema registry yet"),
        ("{", "is none"),
        ('{"type": "struct", "fields": [{}]}', "Spark's own JSON"),
        ('{"type": "string"}', "of type object"),
        ('{"type": "object"}', "needs `properties`"),
        ('{"type": "object", "properties": {"a": {"oneOf": []}}}', "'oneOf', which cannot be checked"),
        ('{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}', "of several types"),
        ('{"type": "object", "properties": {"a": {"type": "text"}}}', "does not have"),
        ('{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["b"]}', "requires 'b'"),
        ('{"type": "object", "properties": {"a": {"type": "string", "format": "x"}}}', "format 'x'"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, told: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        rule_of(text)
    assert told in caught.value.message


SCHEMA = json.dumps(
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "required": ["id"],
        "additionalProperties": False,
        "properties": {
            "id": {"type": "integer", "minimum": 1},
            "state": {"enum": ["new", "done"], "type": "string"},
            "at": {"type": ["string", "null"], "format": "date-time"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}},
            "extra": {"type": "object", "additionalProperties": {"type": "number"}},
        },
    }
)


def test_json_schema_becomes_types() -> None:
    assert struct_of(SCHEMA).simpleString() == (
        "struct<id:bigint,state:string,at:timestamp,tags:array<string>,extra:map<string,double>>"
    )


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"id": 1, "state": "new", "at": "2026-01-01T00:00:00Z", "tags": ["a"], "extra": {"x": 1}}, ""),
        ({"id": 1, "at": None}, ""),
        ({"id": None}, "got `null`"),
        ({}, "missing required field `id`"),
        ({"id": 0}, ">= 1"),
        ({"id": 1, "state": None}, "got `null`"),
        ({"id": 1.5}, "Expected `int`"),
        ({"id": 1, "state": "old"}, "Invalid enum value 'old'"),
        ({"id": 1, "at": "2026-01-01T00:00:00"}, "timezone"),
        ({"id": 1, "tags": ["long"]}, "$.tags[0]"),
        ({"id": 1, "more": 1}, "unknown field `more`"),
        ([1], "Expected `object`, got `array`"),
    ],
)
def test_values_are_checked_against_all_of_it(value: Any, told: str) -> None:
    decoder = msgspec.json.Decoder(checked_type(rule_of(SCHEMA)))
    if not told:
        decoder.decode(json.dumps(value))
        return
    with pytest.raises(msgspec.ValidationError) as caught:
        decoder.decode(json.dumps(value))
    assert told in str(caught.value)


def test_numbers_have_to_fit_their_columns() -> None:
    decoder = msgspec.json.Decoder(checked_type(rule_of("a TINYINT, b STRUCT<c: INT NOT NULL>")))
    decoder.decode(b'{"a": -128, "b": {"c": 2147483647}}')
    for wrong in (b'{"a": 128}', b'{"b": {}}', b'{"b": {"c": null}}', b'{"b": {"c": 2147483648}}'):
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(wrong)
