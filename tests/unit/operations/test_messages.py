"""Messages between JSON and bytes: nothing is lost on the way there and back."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.messages import NewMessage, instant, view_of
from penstock.errors import InvalidField
from penstock.operations.messages import message_of
from penstock.records import Record

_data = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)
_headers = st.lists(st.tuples(st.text(max_size=5), _data), max_size=5).map(tuple)


def _decode(text: bytes) -> NewMessage:
    return msgspec.json.decode(text, type=NewMessage)


@given(key=_data, value=_data, headers=_headers)
def test_what_is_read_can_be_published_again_unchanged(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...]
) -> None:
    view = msgspec.to_builtins(view_of(Record(5, 1000, key, value, headers)))
    del view["offset"]
    message = message_of(_decode(msgspec.json.encode(view)), 0)
    assert (message.key, message.value, message.timestamp_ms) == (key, value, 1000)
    for name in {name for name, _ in headers}:
        assert [v for n, v in message.headers if n == name] == [v for n, v in headers if n == name]


_json = st.recursive(
    st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(_json)
def test_a_json_value_is_stored_as_json_that_means_the_same(value: object) -> None:
    given = msgspec.json.format(msgspec.json.encode(value), indent=2)
    stored = message_of(_decode(b'{"value": ' + given + b"}"), 0).value
    assert stored == msgspec.json.format(msgspec.json.encode(value), indent=-1)


def test_a_message_needs_exactly_one_value() -> None:
    with pytest.raises(InvalidField, match="needs value"):
        message_of(_decode(b'{"key": "a"}'), 0)
    with pytest.raises(InvalidField, match="not both"):
        message_of(_decode(b'{"value": null, "value_base64": ""}'), 0)
    assert message_of(_decode(b'{"value": null}'), 0).value is None
    assert message_of(_decode(b'{"value_base64": ""}'), 0).value == b""


def test_times_that_no_calendar_has_are_null() -> None:
    assert instant(-1) is None
    assert instant(1 << 62) is None
    assert str(instant(1)) == "1970-01-01 00:00:00.001000+00:00"
