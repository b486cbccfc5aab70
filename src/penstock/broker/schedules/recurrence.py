"""How schedules come again, and what becomes of occurrences that were missed.

An occurrence is *missed* if it comes later than a grace time, because nobody led the schedules then. What is late by
less is fired late, each occurrence by itself.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from typing import Final

import msgspec

from penstock.broker.schedules.cron import Cron
from penstock.errors import InvalidRequest

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
