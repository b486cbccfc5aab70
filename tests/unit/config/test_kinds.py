"""Values as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.kinds import (
    Address,
    Choice,
    Directory,
    Duration,
    Flag,
    HostPort,
    Maybe,
    Size,
    ValueKind,
    Whole,
    Words,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("250", 250),
        ("250ms", 250),
        ("30s", 30_000),
        ("1.5s", 1_500),
        ("2m", 120_000),
        ("168h", 604_800_000),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        (" 10 s ", 10_000),
        ("1_000", 1_000),
    ],
)
def test_durations_take_milliseconds_or_a_unit(text: str, ms: int) -> None:
    assert Duration().parse(text) == ms


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64MiB", 64 << 20),
        ("64 mib", 64 << 20),
        ("1.5KiB", 1536),
        ("1kB", 1000),
        ("2GB", 2 * 10**9),
        ("7B", 7),
    ],
)
def test_sizes_take_bytes_or_a_unit(text: str, size: int) -> None:
    assert Size().parse(text) == size


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        (Duration(), "soon", "is not a duration"),
        (Duration(), "-5s", "is not a duration"),
        (Duration(), "5 fortnights", "unknown unit 'fortnights'"),
        (Duration(), "0.5ms", "not a whole number of milliseconds"),
        (Duration(low=1000), "999", "out of range"),
        (Duration(), "-1", "is not a duration"),
        (Size(), "64 apples", "unknown unit"),
        (Size(), "", "is not a size"),
        (Size(high=10), "11", "out of range"),
        (Whole(0, 9), "3.5", "not a whole number"),
        (Whole(0, 9), "10", "out of range"),
        (Whole(0, 9), "", "not a whole number"),
        (Choice(("a", "b")), "c", "not one of the choices"),
        (Flag(), "maybe", "neither true nor false"),
        (Words(), "  ", "is empty"),
        (Directory(), "", "is not a path"),
        (HostPort(), "localhost", "has no port"),
        (HostPort(), "localhost:http", "has no port"),
        (HostPort(), "9092", "has no host"),
        (HostPort(), ":9092", "has no host"),
        (HostPort(), "::1:9092", "without brackets"),
        (HostPort(), "localhost:65536", "out of range"),
        (HostPort(low=1), "localhost:0", "out of range"),
    ],
)
def test_a_bad_value_says_what_is_wrong_with_it(kind: ValueKind, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        kind.parse(text)
    assert kind.allowed


@pytest.mark.parametrize("word", ["unlimited", "Unlimited", "-1"])
def test_no_limit_is_a_word_or_minus_one(word: str) -> None:
    assert Duration(may_be_unlimited=True).parse(word) == -1
    assert Size(may_be_unlimited=True).parse(word) == -1


def test_addresses_may_be_ipv6() -> None:
    address = HostPort().parse("[::1]:9092")
    assert address == Address("::1", 9092)
    assert str(address) == "[::1]:9092"


@pytest.mark.parametrize("nothing", ["", "null", "~", "None"])
def test_nothing_is_a_value_where_it_is_allowed(nothing: str) -> None:
    assert Maybe(Words()).parse(nothing) is None


def test_a_directory_may_start_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert Directory().parse("~/data") == Path("/home/someone/data")


@given(st.integers(0, 1 << 50))
def test_what_is_shown_is_read_back(amount: int) -> None:
    assert Duration().parse(Duration().show(amount)) == amount
    assert Size().parse(Size().show(amount)) == amount
