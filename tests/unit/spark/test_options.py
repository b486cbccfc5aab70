"""Options are refused with words that say what would be right."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock.errors import InvalidConfig, InvalidRequest
from penstock.spark.reading.options import COLUMNS, Bound, SourceOptions
from penstock.spark.writing.options import SinkOptions

BASE = {"servers": "http://a:8080, b:8081", "topics": "orders,bills"}


def batch(**options: str) -> SourceOptions:
    return SourceOptions.of({**BASE, **options}, is_streaming=False)


def test_what_is_left_out_has_a_default() -> None:
    options = batch()
    assert options.servers == ("http://a:8080", "b:8081")
    assert (options.topics, options.pattern) == (("orders", "bills"), None)
    assert (options.starting, options.ending) == (
        Bound("earliest", is_given=False),
        Bound("latest", is_given=False),
    )
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
        ({"zzz": "1"}, "it knows assign, ca, certificate, columns, deadLetterTopic"),
        ({"group": "g"}, "'group' is for streams"),
        ({"maxRecordsPerTrigger": "5"}, "is for streams"),
        ({"servers": ""}, "'servers' is empty"),
        ({"servers": "kafka://a:1"}, "such as http://127.0.0.1:8080"),
        ({"servers": "ftp://a:1"}, "takes addresses such as http://127.0.0.1:8080"),
        ({"subscribe": "x"}, "subscribe is another name for topics"),
        ({"assign": '{"a": [0]}'}, "not by several of them"),
        ({"startingOffsetsByTimestamp": '{"a": {"0": -3}}'}, "in milliseconds since 1970"),
        ({"startingOffsetsByTimestamp": '{"a": {"x": 3}}'}, "'x' is no partition"),
        ({"startingTimestamp": "5", "startingOffsetsByTimestampStrategy": "error"}, "Leave it out"),
        ({"topics": "a b"}, "Option 'topics':"),
        ({"topics": ","}, "names no topic"),
        ({"topicsPattern": "x"}, "not by several of them"),
        ({"path": "x"}, "not by several of them"),
        ({"startingOffsets": "first"}, "is earliest, latest, or JSON"),
        ({"startingOffsets": '{"a": {"x": 1}}'}, "'x' is no partition"),
        ({"startingOffsets": '{"a": {"0": -3}}'}, "-3 is no offset"),
        ({"startingOffsets": '{"a": {"0": "soon"}}'}, "'soon' is no offset"),
        ({"startingOffsets": '{"a": 5}'}, "is not:"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "not two of them"),
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
        ({"timeout": "-1"}, "a number from 0.001 to 86400"),
        ({"timeout": "soon"}, "a number from 0.001 to 86400"),
    ],
)
def test_mistakes_are_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        batch(**options)
    assert told in caught.value.message


def of(*, is_streaming: bool = False, **options: str) -> SourceOptions:
    names = {"servers": "http://a:8080", **{name.replace("__", "."): text for name, text in options.items()}}
    return SourceOptions.of(names, is_streaming=is_streaming)


def test_options_of_the_kafka_connector_mean_the_same() -> None:
    assert of(subscribe="orders,bills").topics == ("orders", "bills")
    assert of(subscribePattern="orders.*").pattern == "orders.*"
    assert of(subscribe="o", maxOffsetsPerTrigger="7", is_streaming=True).max_records == 7
    assert of(subscribe="o", kafka__isolation__level="read_uncommitted").isolation == "read_uncommitted"
    some = of(assign='{"orders": [0, 2], "bills": [1]}')
    assert (some.topics, some.assigned) == (("orders", "bills"), {"orders": {0, 2}, "bills": {1}})
    bound = of(subscribe="o", startingOffsetsByTimestamp='{"o": {"0": 5, "1": 9}}').starting
    assert (bound.instant_of("o", 0), bound.instant_of("o", 2), bound.of("o", 2)) == (5, None, "earliest")
    assert bound.instants == {5, 9}
    assert of(subscribe="o", endingOffsetsByTimestamp='{"o": {"0": 5}}').ending.instants == {5}
    assert of(subscribe="o", startingTimestamp="5", startingOffsetsByTimestampStrategy="latest").starting.instants == {
        5
    }


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("kafka.bootstrap.servers", "give `servers`, the HTTP addresses of nodes, such as http://"),
        ("bootstrap.servers", "give `servers`"),
        ("groupIdPrefix", "In place of groupIdPrefix give `group`"),
        ("kafka.group.id", "give `group`"),
        ("kafka.security.protocol", "kafka.security.protocol is for a Kafka client"),
        ("minOffsetsPerTrigger", "give the query a trigger"),
        ("maxTriggerDelay", "give the query a trigger"),
        ("maxRecordsPerPartition", "give `minPartitions`"),
        ("fetchOffset.numRetries", "`timeout` seconds"),
        ("kafkaConsumer.pollTimeoutMs", "`timeout` seconds"),
    ],
)
def test_other_options_of_the_kafka_connector_are_answered_with_ours(name: str, told: str) -> None:
    for is_streaming in (True, False):
        with pytest.raises(InvalidConfig) as caught:
            SourceOptions.of({**BASE, name: "1"}, is_streaming=is_streaming)
        assert told in caught.value.message
    with pytest.raises(InvalidConfig) as caught:
        SinkOptions.of({"servers": "http://a:8080", "topic": "t", name: "1"}, is_streaming=True)
    assert told in caught.value.message


def test_headers_are_written_without_being_asked_for() -> None:
    with pytest.raises(InvalidConfig, match="leave out includeHeaders"):
        SinkOptions.of({"servers": "http://a:8080", "topic": "t", "includeHeaders": "true"}, is_streaming=True)


@pytest.mark.parametrize("server", ["kafka://a:9092", "PLAINTEXT://a:9092", "SASL_SSL://a:9093"])
def test_an_address_of_kafka_is_known_by_its_form(server: str) -> None:
    with pytest.raises(InvalidConfig, match="speaks Kafka's protocol"):
        SourceOptions.of({**BASE, "servers": server}, is_streaming=False)


def test_streams_have_no_end() -> None:
    with pytest.raises(InvalidConfig, match="'endingOffsets' is for batch reads"):
        SourceOptions.of({**BASE, "endingOffsets": "latest"}, is_streaming=True)


@pytest.mark.parametrize("missing", ["servers", "topics"])
def test_what_is_needed_is_asked_for(missing: str) -> None:
    with pytest.raises(InvalidConfig, match=missing):
        SourceOptions.of({name: text for name, text in BASE.items() if name != missing}, is_streaming=False)


@pytest.mark.parametrize("text", ["{}", "[1]", '{"a": []}', '{"a": [-1]}', '{"a b": [1]}', "orders"])
def test_what_is_assigned_is_json(text: str) -> None:
    with pytest.raises(InvalidConfig, match="'assign'"):
        of(assign=text)


Options = SourceOptions | SinkOptions
_TOKEN = "psk_canary"


def secured(given: dict[str, str]) -> tuple[Options, ...]:
    """The options of every reader and writer."""
    source, sink = {"servers": "http://127.0.0.1:1", "topics": "t", **given}, {"servers": "http://127.0.0.1:1", **given}
    return (
        SourceOptions.of(source, is_streaming=False),
        SourceOptions.of(source, is_streaming=True),
        SinkOptions.of(sink, is_streaming=False),
        SinkOptions.of(sink, is_streaming=True),
    )


def test_a_plan_names_the_file_of_a_token_and_never_holds_the_token(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(_TOKEN)
    for options in secured({"tokenFile": str(path), "ca": "/ca.pem", "certificate": "/c.pem", "key": "/k.pem"}):
        assert options.token_file == str(path)
        assert (options.trust.ca, options.trust.certificate, options.trust.key) == ("/ca.pem", "/c.pem", "/k.pem")
        options.way()  # also once it was used
        assert _TOKEN not in repr(options)
        assert _TOKEN.encode() not in pickle.dumps(options)


def test_the_transport_logs_in_with_the_token_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(_TOKEN)
    for options in secured({"tokenFile": str(path)}):
        assert options.way().transport._login.header() == b"Bearer " + _TOKEN.encode()
    for options in secured({}):
        assert not options.way().transport._login


def test_a_token_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    for options in secured({"tokenFile": str(tmp_path / "gone")}):
        with pytest.raises(InvalidRequest, match="gone cannot be read"):
            options.way()


def test_a_token_does_not_leave_in_the_clear(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(_TOKEN)
    options = SinkOptions.of({"servers": "http://queue.example:8080", "tokenFile": str(path)}, is_streaming=False)
    with pytest.raises(InvalidRequest, match="https://"):
        options.way()


@pytest.mark.parametrize("name", ["token", "apiKey", "user", "PASSWORD"])
def test_secrets_are_no_options(name: str) -> None:
    with pytest.raises(InvalidConfig, match="tokenFile") as of_source:
        batch(**{name: _TOKEN})
    with pytest.raises(InvalidConfig, match="tokenFile") as of_sink:
        SinkOptions.of({"servers": "a:1", name: _TOKEN}, is_streaming=True)
    assert _TOKEN not in of_source.value.message + of_sink.value.message
