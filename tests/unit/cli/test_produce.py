"""Input cut into messages and batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cli.exits import CommandError
from penstock.cli.produce import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, MessageShape, Sent, batches_of, lines_of, send


def lines_from(*pieces: bytes) -> list[list[bytes]]:
    """The lines of a pipe into which pieces are written one by one."""
    reader, writer = os.pipe()
    arrivals: list[list[bytes]] = []
    try:
        lines = lines_of(reader)
        for piece in pieces:
            os.write(writer, piece)
            if b"\n" in piece:
                arrivals.append(next(lines))
        os.close(writer)
        arrivals += list(lines)
    finally:
        os.close(reader)
    return arrivals


def test_lines_are_there_as_soon_as_they_end() -> None:
    assert lines_from(b"a\nb\nc", b"d\n", b"e") == [[b"a", b"b"], [b"cd"], [b"e"]]


def test_an_empty_line_is_a_message_and_a_last_line_end_is_not() -> None:
    assert lines_from(b"a\n\nb\n") == [[b"a", b"", b"b"]]
    assert lines_from(b"") == []


@given(st.binary(max_size=200))
def test_no_byte_is_lost(data: bytes) -> None:
    joined = b"\n".join(line for lines in lines_from(data) for line in lines)
    assert joined == data.removesuffix(b"\n")


def test_batches_are_bounded_in_messages_and_bytes() -> None:
    small = list(batches_of("x", iter([[b"v"] * (BATCH_MESSAGES_MAX + 1)]), MessageShape()))
    assert [len(batch) for batch in small] == [BATCH_MESSAGES_MAX, 1]
    large = list(
        batches_of("x", iter([[b"v" * (BATCH_BYTES_MAX - 1), b"v", b"v", b"v" * BATCH_BYTES_MAX]]), MessageShape())
    )
    assert [len(batch) for batch in large] == [2, 1, 1]


def test_what_arrived_is_not_held_back() -> None:
    arrived: list[str] = []

    def arrivals() -> Iterator[list[bytes]]:
        yield [b"1"]
        arrived.append("second")
        yield [b"2"]

    batches = batches_of("x", arrivals(), MessageShape())
    assert next(batches) == [{"value": "1"}]
    assert arrived == []


@pytest.mark.parametrize(
    ("shape", "line", "message"),
    [
        (MessageShape(), b"v", {"value": "v"}),
        (MessageShape(), b"\xff", {"value_base64": "/w=="}),
        (MessageShape(key="k", partition=2), b"v", {"key": "k", "value": "v", "partition": 2}),
        (MessageShape(key_separator=b"="), b"k=v=w", {"key": "k", "value": "v=w"}),
        (MessageShape(headers={"a": "b"}), b"v", {"value": "v", "headers": {"a": "b"}}),
        (MessageShape(is_json=True), b'{"value": {"a": 1}}', {"value": {"a": 1}}),
        (MessageShape(is_json=True), b'{"key": null, "value": null}', {"value": None}),
        (
            MessageShape(is_json=True),
            b'{"topic": "t", "offset": 3, "partition": 1, "value": ""}',
            {"partition": 1, "value": ""},
        ),
        (
            MessageShape(is_json=True, headers={"a": "1"}),
            b'{"value": "v", "headers": {"a": "0", "b": "2"}}',
            {"value": "v", "headers": {"a": "1", "b": "2"}},
        ),
    ],
)
def test_a_line_becomes_a_message(shape: MessageShape, line: bytes, message: dict[str, object]) -> None:
    assert shape.message(line, "line 1") == message


def test_blank_lines_between_json_lines_are_skipped() -> None:
    assert list(batches_of("x", iter([[b"", b'{"value": "v"}', b" "]]), MessageShape(is_json=True))) == [
        [{"value": "v"}]
    ]


class FakeRest:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def post(self, *path: str, body: object) -> Any:
        return self.answer


def test_what_was_stored_of_a_batch_is_counted_even_if_some_was_refused() -> None:
    results = [
        {"topic": "t", "partition": 0, "offset": 5, "timestamp": None},
        {"error": {"detail": "Too large."}},
        {"topic": "t", "partition": 0, "offset": 6, "timestamp": None},
    ]
    sent = Sent()
    with pytest.raises(CommandError, match=r"1 of 3 messages were refused: Too large\."):
        send(FakeRest({"results": results}), "t", [{}, {}, {}], sent)  # type: ignore[arg-type]
    assert (sent.messages, sent.partitions) == (2, {0: (5, 6, 2)})
