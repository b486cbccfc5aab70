"""What the headers of a dead letter say, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.consensus.queue_config import QueueSettings
from penstock.features.dead_letters.letters import (
    HEADERS_BYTES_MAX,
    DeadLetterOrigin,
    dead_letter_topic,
    origin_of,
    queue_settings_for,
    revived,
    times_redriven,
    with_origin,
)
from penstock.model import check_topic_name
from penstock.records import Record

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.integers(0, 2**63 - 1)
headers = st.lists(st.tuples(texts, st.none() | st.binary(max_size=20)), max_size=5).map(tuple)
origins = st.builds(DeadLetterOrigin, texts, numbers, numbers, st.integers(-1, 2**62), texts, numbers, texts, numbers)


@given(headers, origins, origins)
def test_a_message_comes_back_as_it_was_however_often_it_died(
    headers: tuple, first: DeadLetterOrigin, second: DeadLetterOrigin
) -> None:
    message = Record(7, 1, b"k", b"v", headers)
    once = with_origin(message, first)
    assert origin_of(once.headers) == first
    twice = with_origin(once, second)
    assert origin_of(twice.headers) == second
    again = revived(twice)
    assert origin_of(again.headers) == first, "what was there stays there"
    whole = revived(again)
    assert [each for each in whole.headers if each[0] != "penstock-redriven"] == [
        each for each in headers if each[0] != "penstock-redriven"
    ]
    assert times_redriven(whole.headers) == times_redriven(headers) + 2


@given(
    st.lists(
        st.tuples(st.sampled_from([f"penstock-dlq-{name}" for name in DeadLetterOrigin._fields]), st.binary()),
        max_size=9,
    )
)
def test_headers_that_somebody_else_wrote_do_no_harm(written: list[tuple[str, bytes]]) -> None:
    found = origin_of(tuple(written))
    for name in ("partition", "offset", "timestamp_ms", "tries", "time_ms"):
        assert getattr(found, name) is None or isinstance(getattr(found, name), int)


def test_the_headers_take_no_more_than_is_left_for_them() -> None:
    origin = DeadLetterOrigin("t" * 249, 2**31, 2**63, 2**63, "g" * 249, 10**6, "\U0001f600" * 1_000, 2**63)
    told = with_origin(Record(0, 0, None, None), origin).headers
    assert sum(len(name) + len(value or b"") + 20 for name, value in told) < HEADERS_BYTES_MAX


@pytest.mark.parametrize(
    ("topic", "values", "expected"),
    [
        ("orders", {}, "orders.dlq"),
        ("orders", {"dead.letter.topic": "graves"}, "graves"),
        ("orders", {"dead.letter.topic": "dead.{topic}"}, "dead.orders"),
        ("orders.dlq", {}, None),
        ("orders.dlq", {"dead.letter.topic": "hopeless"}, "hopeless"),
        ("graves", {"dead.letter.topic": "graves"}, None),
    ],
)
def test_where_dead_letters_go(topic: str, values: dict[str, str], expected: str | None) -> None:
    settings = QueueSettings().with_values(values)
    assert dead_letter_topic(topic, settings) == expected
    assert queue_settings_for(topic, settings).tries == (0 if expected is None else 3)


def test_a_topic_with_a_long_name_has_dead_letters_too() -> None:
    names = {dead_letter_topic("t" * 248 + last, QueueSettings()) for last in "ab"}
    assert len(names) == 2
    for name in names:
        assert check_topic_name(name or "").endswith(".dlq")
