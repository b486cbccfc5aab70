"""What users may publish, errors of nodes, and pauses between tries."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

import penstock
from penstock import errors
from penstock.api.problems import problem_of
from penstock.client.calls import error_named, error_of
from penstock.client.transport import Backoff
from penstock.client.values import header_pairs, key_bytes, moment_ms, value_bytes


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (None, None),
        (b"raw", b"raw"),
        (bytearray(b"raw"), b"raw"),
        (memoryview(b"raw"), b"raw"),
        ("grün", "grün".encode()),
        ("", b""),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
        (3, b"3"),
        (True, b"true"),
    ],
)
def test_values_become_bytes(value: Any, data: bytes | None) -> None:
    assert value_bytes(value) == data


@pytest.mark.parametrize("value", [object(), {"a": object()}, "\ud800", lambda: 1])
def test_what_has_no_bytes_is_refused_with_a_hint(value: Any) -> None:
    with pytest.raises(errors.InvalidRecord, match=r"[gG]ive bytes"):
        value_bytes(value)


def test_keys_are_text_or_bytes() -> None:
    assert [key_bytes("a"), key_bytes(b"a"), key_bytes(None)] == [b"a", b"a", None]
    with pytest.raises(errors.InvalidRecord, match="got int"):
        key_bytes(5)  # type: ignore[arg-type]


def test_headers_keep_their_order_and_may_repeat() -> None:
    assert header_pairs([("b", "1"), ("a", None), ("b", b"2")]) == (("b", b"1"), ("a", None), ("b", b"2"))
    assert header_pairs({"x": "y"}) == (("x", b"y"),)
    assert header_pairs(None) == ()
    with pytest.raises(errors.InvalidRecord, match="'x'"):
        header_pairs({"x": 1})  # type: ignore[dict-item]


def test_moments_need_a_time_zone() -> None:
    assert moment_ms(datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)) == 1500
    assert moment_ms(2.5) == 2500
    with pytest.raises(errors.InvalidRecord, match="time zone"):
        moment_ms(datetime(2026, 1, 1))


# -- errors ------------------------------------------------------------------------------------------------------------


def test_every_error_survives_its_way_over_the_wire() -> None:
    for kind in errors.ALL:
        error = error_named(kind.code, "why")
        assert type(error) is kind
        assert error.message == "why"


def revived(error: errors.PenstockError, **members: object) -> errors.PenstockError:
    """An error that came as a problem document, with some members changed."""
    told = msgspec.to_builtins(problem_of(error, "/v1/topics/x")) | members
    return error_of(told["status"], msgspec.json.encode(told))


def test_a_problem_becomes_the_error_it_tells_of() -> None:
    error = revived(errors.UnknownTopic("There is no topic 'x'."), retriable=False)
    assert isinstance(error, errors.UnknownTopic)
    assert (error.message, error.retriable) == ("There is no topic 'x'.", False)


def test_an_error_of_the_future_keeps_its_code() -> None:
    error = revived(errors.InvalidRequest("It is too blue."), code="too_blue")
    assert isinstance(error, errors.InvalidRequest)
    assert (error.code, errors.InvalidRequest.code) == ("too_blue", "invalid_request")
    assert type(revived(errors.NodeStarting("Red."), code="too_red")) is errors.PenstockError


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"\xff"])
def test_an_answer_that_is_not_from_a_node_is_recognised(body: bytes) -> None:
    assert isinstance(error_of(502, body), errors.UnexpectedAnswer)


def test_pauses_double_up_to_the_cap() -> None:
    backoff = Backoff(0.1, 1.0, random.Random(1))
    pauses = [backoff.next() for _ in range(40)]
    for at, pause in enumerate(pauses):
        ceiling = min(1.0, 0.1 * 2**at)
        assert ceiling / 2 <= pause <= ceiling
    backoff.reset()
    assert backoff.next() <= 0.1


# -- the package -------------------------------------------------------------------------------------------------------


def test_every_name_of_the_package_is_there() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert set(penstock.__all__) == set(dir(penstock))
    with pytest.raises(AttributeError, match="no attribute 'Cleint'"):
        penstock.Cleint  # noqa: B018


def test_importing_the_package_loads_nothing_else() -> None:
    program = "import sys, penstock; print([name for name in sys.modules if name.startswith('penstock.')])"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.strip() == "[]"


def test_the_client_loads_nothing_of_the_broker() -> None:
    program = "import sys, penstock; penstock.Client, penstock.worker; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.split()
    assert [name for name in loaded if name.startswith(("penstock.node", "penstock.doors.rest", "starlette"))] == []
