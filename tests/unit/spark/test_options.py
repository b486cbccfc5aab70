"""Options are refused with words that say what would be right."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidConfig
from penstock.spark.reading.options import COLUMNS, Bound, SourceOptions

BASE = {"servers": "http://a:8080, b:8081", "topics": "orders,bills"}


def batch(**options: str) -> SourceOptions:
    return SourceOptions.of({**BASE, **options}, is_streaming=False)


def test_what_is_left_out_has_a_default() -> None:
    options = batch()
    assert options.servers == ("http://a:8080", "b:8081")
    assert (options.topics, options.pattern) == (("orders", "bills"), None)
    assert (options.starting, options.ending) == (Bound("earliest"), Bound("latest"))
    assert options.columns == COLUMNS[:-1]
    assert (options.isolation, options.fails_on_data_loss, options.on_error) == ("read_committed", True, "fail")


def test_the_case_of_names_does_not_count() -> None:
    given = {"SERVERS": "a:1", "Topics": "t", "FAILONDATALOSS": "False", "includeheaders": "TRUE"}
    options = SourceOptions.of(given, is_streaming=True)
    assert options.columns == COLUMNS
    assert not options.fails_on_data_loss


@pytest.mark.parametrize(
    ("topics", "pattern"),
    [("orders-*", "(?:orders\\-.*)"), ("a,b?c", "(?:a)|(?:b.c)"), ("*", "(?:.*)"), ("x.*", "(?:x\\..*)")],
)
def test_names_may_have_stars(topics: str, pattern: str) -> None:
    options = SourceOptions.of({"servers": "a:1", "topics": topics}, is_streaming=False)
    assert (options.topics, options.pattern) == ((), pattern)


def test_offsets_are_named_by_partition() -> None:
    bound = batch(startingOffsets='{"orders": {"0": 23, "1": -1, "2": "earliest"}}').starting
    assert [bound.of("orders", at) for at in range(4)] == [23, "latest", "earliest", "earliest"]
    assert bound.of("bills", 0) == "earliest"
    assert batch(endingTimestamp="2026-01-31T12:00:00+01:00").ending.timestamp_ms == 1769857200000
    assert batch(startingTimestamp="17").starting.timestamp_ms == 17


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"topic": "x"}, "no option 'topic'; did you mean 'topics'?"),
        ({"startOffset": "latest"}, "did you mean 'startingOffsets'?"),
        ({"zzz": "1"}, "it knows columns, deadLetterTopic"),
        ({"group": "g"}, "'group' is for streams"),
        ({"maxRecordsPerTrigger": "5"}, "is for streams"),
        ({"servers": ""}, "'servers' is empty"),
        ({"servers": "kafka://a:1"}, "such as http://127.0.0.1:8080"),
        ({"topics": "a b"}, "Option 'topics':"),
        ({"topics": ","}, "names no topic"),
        ({"topicsPattern": "x"}, "either `topics`"),
        ({"path": "x"}, "not by several of them"),
        ({"startingOffsets": "first"}, "is earliest, latest, or JSON"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "'x' is no partition"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "-3 is no offset"),
        ({"startingOffsets": '{"a": {"0": "soon"}}'}, "'soon' is no offset"),
        ({"startingOffsets": '{"a": 5}'}, "is not:"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "not both"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"startingTimestamp": "2026-01-31T12:00:00"}, "needs a time zone"),
        ({"minPartitions": "0"}, "whole number above 0"),
        ({"minPartitions": "many"}, "whole number above 0"),
        ({"isolation": "dirty"}, "read_committed, read_uncommitted"),
        ({"failOnDataLoss": "maybe"}, "one of true, false"),
        ({"columns": "offset,valu"}, "no column 'valu'"),
        ({"columns": "offset,offset"}, "names each column once"),
        ({"columns": "offset", "includeHeaders": "true"}, "leaves headers out"),
        ({"columns": "offset", "schema": "a INT"}, "leaves out"),
        ({"onError": "drop"}, "give one as well"),
        ({"onError": "explode", "schema": "a INT"}, "fail, drop, dead-letter"),
        ({"deadLetterTopic": "d", "schema": "a INT"}, "goes with onError=dead-letter"),
        ({"timeout": "-1"}, "seconds above 0"),
        ({"timeout": "soon"}, "seconds above 0"),
    ],
)
def test_mistakes_are_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        batch(**options)
    assert told in caught.value.message


def test_streams_have_no_end() -> None:
    with pytest.raises(InvalidConfig, match="'endingOffsets' is for batch reads"):
        SourceOptions.of({**BASE, "endingOffsets": "latest"}, is_streaming=True)


@pytest.mark.parametrize("missing", ["servers", "topics"])
def test_what_is_needed_is_asked_for(missing: str) -> None:
    with pytest.raises(InvalidConfig, match=missing):
        SourceOptions.of({name: text for name, text in BASE.items() if name != missing}, is_streaming=False)
