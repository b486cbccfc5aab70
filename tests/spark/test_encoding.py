"""Columns in Arrow become the very bytes that records one by one would, and go where Kafka's clients send them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.errors import InvalidConfig, InvalidRecord
from penstock.priorities import PRIORITIES
from penstock.records import Codec, accept_batch, decode_records, encode_batch, murmur2
from penstock.spark.values import parse_ddl
from penstock.spark.writing.columns import check_schema, hashes_of, partitions_of, rows_of
from penstock.spark.writing.encoding import Columns, Numbering, encode
from penstock.spark.writing.options import SinkOptions

SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 16, 63, 64, 100, 8_191, 8_192, 70_000)


def some_bytes(dice: random.Random, sizes: tuple[int, ...] = SIZES) -> bytes | None:
    return None if dice.random() < 0.15 else dice.randbytes(dice.choice(sizes))


@pytest.mark.parametrize("seed", range(8))
def test_batches_are_those_of_the_plain_encoder(seed: int) -> None:
    dice = random.Random(seed)
    count = dice.choice((1, 5, 300))
    keys = [some_bytes(dice, SIZES[:10]) for _ in range(count)]
    values = [some_bytes(dice) for _ in range(count)]
    times = [1_700_000_000_000 + dice.randrange(-(10**10), 10**10) for _ in range(count)]
    partitions = np.array([dice.randrange(3) for _ in range(count)], np.int64)
    has_keys = seed % 2 == 0
    columns = Columns(
        partitions,
        np.array(times, np.int64),
        pa.array(keys, pa.binary()) if has_keys else None,
        pa.array(values, pa.binary()),
    )
    found = []
    sent = dict.fromkeys(range(3), 0)
    codec = Codec.ZSTD if seed == 3 else Codec.NONE
    for partition, data in encode(
        "t", columns, Numbering(7, 0, is_transactional=True), batch_bytes=90_000, codec=codec
    ):
        records = decode_records(data)
        expected = encode_batch(
            records,
            codec=codec,
            producer_id=7,
            producer_epoch=0,
            base_sequence=sent[partition],
            is_transactional=True,
        )
        assert data == expected
        accept_batch(memoryview(data))
        sent[partition] += len(records)
        found += [(partition, each.key, each.value, each.timestamp) for each in records]
    rows = zip(partitions.tolist(), keys if has_keys else [None] * count, values, times, strict=True)
    assert found == sorted(rows, key=lambda row: row[0])


def test_batches_are_as_large_as_they_may_be_and_a_larger_record_is_alone() -> None:
    sizes = [400] * 10 + [5_000] + [400] * 10
    columns = Columns(
        np.zeros(len(sizes), np.int64),
        np.zeros(len(sizes), np.int64),
        None,
        pa.array([b"x" * size for size in sizes], pa.binary()),
    )
    counts = [len(decode_records(data)) for _, data in encode("t", columns, Numbering(1, 0, False), batch_bytes=1_000)]
    assert counts == [2] * 5 + [1] + [2] * 5


@pytest.mark.parametrize("seed", range(5))
def test_keys_go_where_kafka_sends_them(seed: int) -> None:
    dice = random.Random(seed)
    keys = [dice.randbytes(dice.choice((0, 1, 2, 3, 4, 5, 11, 12, 13, 40))) for _ in range(200)]
    column = pa.array([b"before", *keys, b"after"], pa.binary()).slice(1, len(keys))
    assert hashes_of(column).tolist() == [murmur2(key) for key in keys]
    expected = [(murmur2(key) & 0x7FFFFFFF) % 7 for key in keys]
    assert partitions_of(column, len(keys), 7, 3).tolist() == expected


def test_rows_without_keys_are_spread_in_runs() -> None:
    assert partitions_of(None, 9, 3, 1).tolist() == [1, 1, 1, 2, 2, 2, 0, 0, 0]
    column = pa.array([None, b"k", None], pa.binary())
    spread = partitions_of(column, 3, 5, 0)
    assert spread[1] == (murmur2(b"k") & 0x7FFFFFFF) % 5
    assert spread[0] != spread[2]


# -- rows --------------------------------------------------------------------------------------------------------------


def encoded(batch: pa.RecordBatch, topic: str | None = "t") -> dict[str, list[Any]]:
    """What is in the records that rows become, by topic."""
    found: dict[str, list[Any]] = {}
    for rows in rows_of(batch, topic, 1_234):
        zeros = np.zeros(rows.count, np.int64)
        columns = Columns(zeros, rows.timestamps_ms, rows.key, rows.value, rows.header_counts, rows.headers)
        for _, data in encode(rows.topic, columns, Numbering(1, 0, False), batch_bytes=100_000):
            found.setdefault(rows.topic, []).extend(
                (each.key, each.value, each.headers, each.timestamp) for each in decode_records(data)
            )
    return found


def test_headers_of_both_forms_and_priorities_are_kept() -> None:
    pairs = [[("a", b"1"), ("b", None), ("a", b"")], None, []]
    as_map = pa.array(pairs, pa.map_(pa.string(), pa.binary()))
    struct = pa.struct([("key", pa.string()), ("value", pa.binary())])
    dicts = [None if some is None else [{"key": name, "value": value} for name, value in some] for some in pairs]
    as_list = pa.array([[{"key": "not", "value": b"mine"}], *dicts], pa.list_(struct)).slice(1)
    values = pa.array(["x", "y", None])
    for column in (as_map, as_list):
        batch = pa.record_batch({"value": values, "headers": column})
        headers = tuple(pairs[0] or ())
        assert encoded(batch)["t"] == [(None, b"x", headers, 1_234), (None, b"y", (), 1_234), (None, None, (), 1_234)]
    batch = pa.record_batch({"value": values, "headers": as_list, "priority": pa.array(["high", None, "background"])})
    assert [headers for _, _, headers, _ in encoded(batch)["t"]] == [
        (*(pairs[0] or ()), ("penstock-priority", b"high")),
        (),
        (("penstock-priority", b"background"),),
    ]


def test_every_priority_has_its_header() -> None:
    batch = pa.record_batch({"value": [b"v"] * len(PRIORITIES), "priority": list(PRIORITIES)})
    assert [headers[0][1] for _, _, headers, _ in encoded(batch)["t"]] == [name.encode() for name in PRIORITIES]


def test_rows_name_their_topics_and_moments() -> None:
    batch = pa.record_batch(
        {
            "topic": pa.array(["a", None, "b", "a"]),
            "value": pa.array([b"1", b"2", b"3", b"4"]),
            "timestamp": pa.array([1_999, None, 5_000_000, 0], pa.timestamp("us", "UTC")),
        }
    )
    assert encoded(batch, "rest") == {
        "a": [(None, b"1", (), 1), (None, b"4", (), 0)],
        "rest": [(None, b"2", (), 1_234)],
        "b": [(None, b"3", (), 5_000)],
    }
    with pytest.raises(InvalidRecord, match="A row has no topic"):
        encoded(batch, None)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"value": [b"v"], "priority": ["urgent"]}, "'urgent'; it is one of critical, high"),
        ({"value": [b"v"], "partition": [-1]}, "numbered from 0"),
        ({"value": [b"v"], "timestamp": pa.array([-1], pa.int64())}, "before 1970"),
        (
            {
                "value": [b"v"],
                "headers": pa.array([[None]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
            },
            "no name",
        ),
    ],
)
def test_bad_rows_are_told_of(columns: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidRecord, match=told):
        encoded(pa.record_batch(columns))


# -- schemas and options -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ("key string", "Column 'value' is missing"),
        ("value int", "Column 'value' is string or binary, not int; cast it. Use to_json"),
        ("value string, keys string", "no column 'keys'; did you mean 'key'"),
        ("value string, amount double", "no column 'amount'; A row has deliver_at"),
        ("value string, partition string", "Column 'partition' is int, not string"),
        ("value string, timestamp date", "Column 'timestamp' is timestamp"),
        ("value string, headers array<string>", "Column 'headers' is map"),
        ("value string, headers map<string, int>", "Column 'headers' is map"),
        ("value string, priority int", "Column 'priority' is string"),
        ("value string, VALUE string", "more than one column 'value'"),
    ],
)
def test_columns_that_do_not_fit_are_told_of(schema: str, told: str) -> None:
    with pytest.raises(InvalidRecord, match=told):
        check_schema(parse_ddl(schema), has_topic=True)


def test_a_topic_comes_from_somewhere() -> None:
    check_schema(parse_ddl("Topic string, Value binary"), has_topic=False)
    with pytest.raises(InvalidRecord, match="Name the topic"):
        check_schema(parse_ddl("value binary"), has_topic=False)


SERVERS = {"servers": "http://a:1,http://b:2"}


@pytest.mark.parametrize(
    ("options", "is_streaming", "told"),
    [
        ({}, True, "'servers' is missing"),
        ({"servers": " , "}, True, "'servers' is missing"),
        ({"servers": "kafka://a"}, True, "http://127.0.0.1:8080"),
        ({**SERVERS, "tpic": "a"}, True, "did you mean 'topic'"),
        ({**SERVERS, "topic": "a b"}, True, "Option 'topic'"),
        ({**SERVERS, "topic": ""}, True, "empty"),
        ({**SERVERS, "topic": "a", "path": "b"}, True, "not by both"),
        ({**SERVERS, "delivery": "at-most-once"}, True, "exactly-once, at-least-once"),
        ({**SERVERS, "compression": "brotli"}, True, "one of none, gzip"),
        ({**SERVERS, "stagingTimeout": "3 minutes"}, True, "'stagingTimeout' is a number"),
        ({**SERVERS, "txnId": "x"}, True, "for batch writes"),
        ({**SERVERS, "txnVersion": "1"}, False, "goes with 'txnId'"),
        ({**SERVERS, "txnId": "x", "delivery": "at-least-once"}, False, "leave out delivery"),
        ({**SERVERS, "txnId": "a b"}, False, "'txnId' has"),
    ],
)
def test_options_that_make_no_sense_are_told_of(options: dict[str, str], is_streaming: bool, told: str) -> None:
    with pytest.raises(InvalidConfig, match=told):
        SinkOptions.of(options, is_streaming=is_streaming)


def test_options_are_read_whatever_their_case() -> None:
    found = SinkOptions.of(
        {**SERVERS, "TOPIC": "t", "TxnID": "x", "txnversion": "7", "checkpointLocation": "/x", "compression": "zstd"},
        is_streaming=False,
    )
    assert (found.servers, found.topic, found.transaction, found.version) == (("http://a:1", "http://b:2"), "t", "x", 7)
    assert found.codec is Codec.ZSTD
    assert found.is_staged
