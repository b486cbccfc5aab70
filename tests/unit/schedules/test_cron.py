"""Cron expressions against a scan of every minute."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.features.schedules.recurrence import MACROS, Cron

BERLIN = "Europe/Berlin"


def ms(*parts: int, zone: str = "UTC", fold: int = 0) -> int:
    return int(datetime(*parts, tzinfo=ZoneInfo(zone), fold=fold).timestamp()) * 1000  # type: ignore[arg-type,misc]


def after(text: str, *parts: int, zone: str = "UTC", fold: int = 0) -> str:
    found = Cron(text, zone).next_after(ms(*parts, zone=zone, fold=fold))
    assert found is not None
    return datetime.fromtimestamp(found // 1000, ZoneInfo(zone)).isoformat()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("* * * * *", "2026-01-01T00:01:00+00:00"),
        ("*/15 * * * *", "2026-01-01T00:15:00+00:00"),
        ("5/20 * * * *", "2026-01-01T00:05:00+00:00"),
        ("0 9-17/4 * * *", "2026-01-01T09:00:00+00:00"),
        ("30 8 * * mon-fri", "2026-01-01T08:30:00+00:00"),
        ("0 0 * * SUN", "2026-01-04T00:00:00+00:00"),
        ("0 0 * * 7", "2026-01-04T00:00:00+00:00"),
        ("0 0 * * sat-sun", "2026-01-03T00:00:00+00:00"),
        ("0 0 29 feb *", "2028-02-29T00:00:00+00:00"),
        ("0 0 29 2 */7", "2032-02-29T00:00:00+00:00"),  # which is a Sunday
        ("0 0 13 * fri", "2026-01-02T00:00:00+00:00"),  # either day
        ("0 0 1,15 * *", "2026-01-15T00:00:00+00:00"),
        ("@daily", "2026-01-02T00:00:00+00:00"),
        ("@midnight", "2026-01-02T00:00:00+00:00"),
        ("@hourly", "2026-01-01T01:00:00+00:00"),
        ("@weekly", "2026-01-04T00:00:00+00:00"),
        ("@monthly", "2026-02-01T00:00:00+00:00"),
        ("@Yearly", "2027-01-01T00:00:00+00:00"),
        ("@annually", "2027-01-01T00:00:00+00:00"),
    ],
)
def test_the_usual_expressions(text: str, expected: str) -> None:
    assert after(text, 2026, 1, 1) == expected


def test_a_time_that_does_not_exist_happens_right_after_the_gap() -> None:
    assert after("30 2 * * *", 2026, 3, 28, 12, zone=BERLIN) == "2026-03-29T03:00:00+02:00"
    assert after("30 2 * * *", 2026, 3, 29, 3, zone=BERLIN) == "2026-03-30T02:30:00+02:00"


def test_several_times_in_one_gap_happen_once() -> None:
    assert after("*/20 2 * * *", 2026, 3, 28, 12, zone=BERLIN) == "2026-03-29T03:00:00+02:00"
    assert after("*/20 2 * * *", 2026, 3, 29, 3, zone=BERLIN) == "2026-03-30T02:00:00+02:00"


def test_a_time_that_comes_twice_happens_once() -> None:
    assert after("30 2 * * *", 2026, 10, 25, 1, zone=BERLIN) == "2026-10-25T02:30:00+02:00"
    assert after("30 2 * * *", 2026, 10, 25, 2, 30, zone=BERLIN) == "2026-10-26T02:30:00+01:00"
    assert after("30 2 * * *", 2026, 10, 25, 2, 10, zone=BERLIN, fold=1) == "2026-10-26T02:30:00+01:00"


def test_a_day_that_a_country_left_out() -> None:
    """Samoa had no 30 December 2011."""
    assert after("0 12 * * *", 2011, 12, 29, 13, zone="Pacific/Apia") == "2011-12-31T00:00:00+14:00"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "5-1 * * * *",
        "a * * * *",
        "1- * * * *",
        "1,,2 * * * *",
        "* * * foo *",
        "mon * * * *",
        "0 0 30 2 *",
        "0 0 31 4,6,9,11 *",
        "@never",
        "0 0 L * *",
        "* * * * *" + " " * 300,
    ],
)
def test_what_is_no_cron_expression_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        Cron(text)


@pytest.mark.parametrize("zone", ["Nowhere/Else", "", "../etc/passwd", "/etc/localtime"])
def test_what_is_no_time_zone_is_refused(zone: str) -> None:
    with pytest.raises(InvalidRequest):
        Cron("* * * * *", zone)


def test_far_ends_of_time_are_no_bug() -> None:
    assert Cron("@yearly").next_after(10**18) is None
    assert Cron("@yearly").next_after(-(10**18)) is None
    assert Cron("@yearly").next_after(253402300799_000) is None


# -- against a scan ----------------------------------------------------------------------------------------------------


def some(low: int, high: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    """A field as text, and the numbers it stands for."""
    numbers = st.lists(st.integers(low, high), min_size=1, max_size=4).map(
        lambda found: (",".join(map(str, found)), frozenset(found))
    )
    steps = st.integers(1, high).map(lambda step: (f"*/{step}", frozenset(range(low, high + 1, step))))
    ranges = st.tuples(st.integers(low, high), st.integers(low, high), st.integers(1, 5)).map(
        lambda r: (f"{min(r[:2])}-{max(r[:2])}/{r[2]}", frozenset(range(min(r[:2]), max(r[:2]) + 1, r[2])))
    )
    return st.one_of(st.just(("*", frozenset(range(low, high + 1)))), numbers, steps, ranges)


STARTS = [
    (BERLIN, datetime(2026, 3, 28, 22, tzinfo=UTC)),
    (BERLIN, datetime(2026, 10, 24, 22, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 3, 8, 2, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 1, tzinfo=UTC)),
    ("Australia/Lord_Howe", datetime(2026, 4, 4, 10, tzinfo=UTC)),  # half an hour
    ("Australia/Lord_Howe", datetime(2026, 10, 3, 10, tzinfo=UTC)),
    ("Asia/Kathmandu", datetime(2026, 6, 1, tzinfo=UTC)),
    ("America/Sao_Paulo", datetime(2018, 11, 3, 22, tzinfo=UTC)),  # the gap is at midnight
    ("UTC", datetime(2028, 2, 28, 20, tzinfo=UTC)),
]
MINUTES = 36 * 60


@settings(max_examples=40, deadline=None)
@given(
    place=st.sampled_from(STARTS),
    minute=some(0, 59),
    hour=some(0, 23),
    day=some(1, 31),
    weekday=some(0, 6),
    offset=st.integers(0, 600),
)
def test_what_is_found_is_what_a_scan_of_all_minutes_finds(
    place: tuple[str, datetime],
    minute: tuple[str, frozenset[int]],
    hour: tuple[str, frozenset[int]],
    day: tuple[str, frozenset[int]],
    weekday: tuple[str, frozenset[int]],
    offset: int,
) -> None:
    zone, start = place
    cron = Cron(f"{minute[0]} {hour[0]} {day[0]} * {weekday[0]}", zone)
    is_either = not day[0].startswith("*") and not weekday[0].startswith("*")

    def happens(local: datetime) -> bool:
        days = (local.day in day[1], local.isoweekday() % 7 in weekday[1])
        is_day = any(days) if is_either else all(days)
        return is_day and local.hour in hour[1] and local.minute in minute[1]

    expected = scan(zone, start, happens)
    at: int | None = int(start.timestamp()) * 1000 + offset * 60_000
    end = int((start + timedelta(minutes=MINUTES)).timestamp()) * 1000
    found: list[int] = []
    while (at := cron.next_after(at)) is not None and at < end:  # type: ignore[arg-type]
        found.append(at)
    assert found == [each for each in expected if each > int(start.timestamp()) * 1000 + offset * 60_000]


def scan(zone: str, start: datetime, happens: Callable[[datetime], bool]) -> list[int]:
    return [at for at, shown in walk(zone, start) if any(map(happens, shown))]


@cache
def walk(zone: str, start: datetime) -> list[tuple[int, list[datetime]]]:
    """Every minute that was, with what the wall clock showed for the first time then, or had left out before."""
    found: list[tuple[int, list[datetime]]] = []
    seen: set[datetime] = set()
    begin = start - timedelta(hours=30)
    before = local_of(begin, zone)
    for number in range(1, 30 * 60 + MINUTES):
        moment = begin + timedelta(minutes=number)
        local = local_of(moment, zone)
        shown = [before + timedelta(minutes=n) for n in range(1, int((local - before) / timedelta(minutes=1)) + 1)]
        if moment >= start:
            found.append((int(moment.timestamp()) * 1000, [each for each in shown if each not in seen]))
        seen.update(shown)
        before = local
    return found


def local_of(moment: datetime, zone: str) -> datetime:
    return moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None)


def test_short_names_are_expressions_too() -> None:
    for name, text in MACROS.items():
        assert Cron(name).next_after(0) == Cron(text).next_after(0)
