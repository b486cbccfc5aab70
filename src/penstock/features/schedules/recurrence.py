"""Cron expressions: when something is to happen again, by the clock on the wall of some place.

Five fields (minute, hour, day of the month, month, day of the week), each ``*``, a number, a name (months and days of
the week), a range ``a-b``, a list ``a,b`` or any of them with a step ``/n``; or one of ``@hourly``, ``@daily``,
``@midnight``, ``@weekly``, ``@monthly``, ``@yearly``, ``@annually``. If both days are given, either will do, as cron
has it; a field that begins with ``*`` is not given.

Where clocks are changed: a time that does not exist happens at the first moment after the gap; a time that comes twice
happens the first time only. Several times in one gap are one moment, and so happen once.

How schedules come again, and what becomes of occurrences that were missed.

An occurrence is *missed* if it comes later than a grace time, because no node led the schedules then. What is late by
less is fired late, each occurrence by itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from enum import Enum
from functools import lru_cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from penstock.errors import InvalidRequest

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART: Final = re.compile(r"(?:(\*)|([0-9a-z]+)(?:-([0-9a-z]+))?)(?:/([0-9]+))?")
_LENGTH_MAX: Final = 256
_YEARS_MAX: Final = 40  # the 29th of February may be missing for 8 years, and on one day of the week for 40


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def number(self, text: str) -> int:
        if text in self.names:
            return self.names.index(text) + self.low
        if not text.isdecimal() or not self.low <= int(text) <= self.high:
            raise InvalidRequest(
                f"{text!r} is no {self.name} of a cron expression; it goes from {self.low} to {self.high}."
            )
        return int(text)

    def numbers(self, text: str) -> frozenset[int]:
        found: set[int] = set()
        for part in text.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                raise InvalidRequest(
                    f"{part!r} is no {self.name} of a cron expression, as '5', '1-5', '*/10' or 'mon' are."
                )
            star, first, last, step = match.groups()
            low = self.low if star else self.number(first)
            # A single number with a step goes on to the end, as in other crons.
            high = self.high if star or (last is None and step) else self.number(first if last is None else last)
            if self.name == "day of the week" and last is not None and high == 0 < low:
                high = 7  # Saturday to Sunday
            if high < low:
                raise InvalidRequest(f"{part!r} goes backwards; write it as a list of two ranges.")
            if step is not None and int(step) == 0:
                raise InvalidRequest(f"{part!r} has a step of 0; it must be 1 or more.")
            found.update(range(low, high + 1, int(step or 1)))
        return frozenset(found)


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of the week", 0, 7, _DAYS),
)


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression in a time zone. Two with the same text are equal."""

    text: str
    zone: str = "UTC"
    _times: tuple[tuple[int, int], ...] = field(init=False, repr=False, compare=False)  # hours and minutes, sorted
    _days: frozenset[int] = field(init=False, repr=False, compare=False)
    _months: frozenset[int] = field(init=False, repr=False, compare=False)
    _weekdays: frozenset[int] = field(init=False, repr=False, compare=False)
    _is_either: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        words = MACROS.get(self.text.strip().lower(), self.text).lower().split()
        if len(words) != len(_FIELDS) or len(self.text) > _LENGTH_MAX:
            raise InvalidRequest(
                f"A cron expression has five fields (minute, hour, day, month, day of the week) or is one of "
                f"{', '.join(MACROS)}; {self.text[:_LENGTH_MAX]!r} is neither."
            )
        minutes, hours, days, months, weekdays = (each.numbers(word) for each, word in zip(_FIELDS, words, strict=True))
        _zone(self.zone)
        assign = object.__setattr__
        assign(self, "_times", tuple((hour, minute) for hour in sorted(hours) for minute in sorted(minutes)))
        assign(self, "_days", days)
        assign(self, "_months", months)
        assign(self, "_weekdays", frozenset(day % 7 for day in weekdays))
        assign(self, "_is_either", not words[2].startswith("*") and not words[4].startswith("*"))
        if not any(self._dates(date(2000, 1, 1))):
            raise InvalidRequest(f"{self.text!r} never happens: no month in it has such a day.")

    def next_after(self, after_ms: int) -> int | None:
        """The first time after some moment, in milliseconds since 1970; None if that is beyond all calendars."""
        zone = _zone(self.zone)
        try:
            moment = datetime.fromtimestamp(after_ms // 1000, UTC).astimezone(zone)
            # A gap may move a time of the day before past midnight.
            start = moment.date() - timedelta(days=1)
        except (OverflowError, ValueError, OSError):
            return None
        for day in self._dates(start):
            # Changes of the clocks may put the times of a day out of order, so all of them are looked at.
            found = [at for at in _real_times(day, self._times, zone) if at > after_ms]
            if found:
                return min(found)
        return None

    def _dates(self, start: date) -> Iterator[date]:
        """The days on which it happens, from one on."""
        day = start
        last_year = min(start.year + _YEARS_MAX, date.max.year - 1)
        while day.year <= last_year:
            if day.month not in self._months:
                day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
                continue
            is_day, is_weekday = day.day in self._days, day.isoweekday() % 7 in self._weekdays
            if (is_day or is_weekday) if self._is_either else (is_day and is_weekday):
                yield day
            day += timedelta(days=1)


@lru_cache(maxsize=256)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidRequest(f"{name!r} is no time zone; write it as 'Europe/Berlin' or 'UTC'.") from error


@lru_cache(maxsize=512)
def _real_times(day: date, times: tuple[tuple[int, int], ...], zone: ZoneInfo) -> tuple[int, ...]:
    """When times of a day really are, in milliseconds since 1970."""
    return tuple(_real_ms(datetime(day.year, day.month, day.day, hour, minute), zone) for hour, minute in times)


def _real_ms(local: datetime, zone: ZoneInfo) -> int:
    first = local.replace(tzinfo=zone, fold=0)
    seconds = _seconds(first)
    if datetime.fromtimestamp(seconds, zone).replace(tzinfo=None) == local:
        return seconds * 1000
    # It does not exist. The gap ends between what the clock would say by the offset after it and by that before it.
    low, high = _seconds(first.replace(fold=1)), seconds
    after = datetime.fromtimestamp(high, zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == after:
            high = middle
        else:
            low = middle
    return high * 1000


def _seconds(moment: datetime) -> int:
    return int(moment.timestamp())


EVERY_MS_MIN: Final = 100


class Missed(Enum):
    """What is done about occurrences that were missed."""

    ONCE = "once"  # the oldest is fired, the others are not
    ALL = "all"  # each is fired
    SKIP = "skip"  # none is fired


class Every(msgspec.Struct, frozen=True, tag="e", array_like=True):
    """At fixed distances from a moment."""

    every_ms: int
    anchor_ms: int


class ByCron(msgspec.Struct, frozen=True, tag="c", array_like=True):
    """By a cron expression in a time zone."""

    text: str
    zone: str = "UTC"


Rule = Every | ByCron


def check_rule(rule: Rule) -> None:
    """Refuse what cannot be followed."""
    if isinstance(rule, ByCron):
        _cron(rule.text, rule.zone)
    elif rule.every_ms < EVERY_MS_MIN:
        raise InvalidRequest(f"Schedules come again every {EVERY_MS_MIN} ms or more, not every {rule.every_ms} ms.")


def next_after(rule: Rule, after_ms: int) -> int | None:
    """The first occurrence after a moment, None if there is none."""
    if isinstance(rule, Every):
        return rule.anchor_ms + ((after_ms - rule.anchor_ms) // rule.every_ms + 1) * rule.every_ms
    return _cron(rule.text, rule.zone).next_after(after_ms)


def next_due(rule: Rule, missed: Missed, due_ms: int, now_ms: int, grace_ms: int) -> int | None:
    """When a schedule comes again, one occurrence of which was dealt with just now."""
    following = next_after(rule, due_ms)
    if following is None or missed is Missed.ALL or following >= now_ms - grace_ms:
        return following
    return next_after(rule, now_ms)


def is_skipped(missed: Missed, due_ms: int, now_ms: int, grace_ms: int) -> bool:
    """Whether an occurrence came too late to be fired."""
    return missed is Missed.SKIP and due_ms < now_ms - grace_ms


@lru_cache(maxsize=1024)
def _cron(text: str, zone: str) -> Cron:
    return Cron(text, zone)
