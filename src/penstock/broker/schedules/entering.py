"""How schedules come in: what is checked of them, and when they are due first."""

from __future__ import annotations

import re
from typing import Final

from penstock.broker.schedules.messages import New
from penstock.broker.schedules.records import Schedule
from penstock.broker.schedules.recurrence import Every, Rule, check_rule, next_after
from penstock.errors import InvalidRequest

DUE_MS_MAX: Final = 253_402_300_799_000  # the end of the year 9999

_ID: Final = re.compile(r"(?!sched-[0-9]+-[0-9]+\Z)[A-Za-z0-9._:~@+-]{1,200}")
_TAKEN: Final = frozenset({"stats", "next", ".", ".."})  # paths of REST that mean something else


def id_of(shard: int, number: int) -> str:
    """The id that the server gives; no client's looks like it."""
    return f"sched-{shard}-{number}"


def checked(new: New, now_ms: int) -> tuple[int, Rule | None]:
    """Refuse what is wrong in itself; otherwise as `first_due`."""
    if new.id and (not _ID.fullmatch(new.id) or new.id in _TAKEN):
        raise InvalidRequest(
            "An id has 1 to 200 letters, digits or any of . _ : ~ @ + -, is not 'stats' or 'next', and does not look "
            "like sched-1-2, as those of the server do."
        )
    return first_due(new.due_ms, new.rule, now_ms)


def made(new: New, now_ms: int) -> Schedule:
    """A schedule as it was asked for."""
    due_ms, rule = checked(new, now_ms)
    return Schedule(new.id, due_ms, new.message, rule, new.missed, now_ms)


def stands_for(schedule: Schedule, new: New) -> bool:
    """Whether a schedule is what was to be added under its id.

    Times are compared if they were given as such. A delay leads to another time whenever it is said, and one that comes
    again has moved on.
    """
    if (schedule.message, schedule.missed) != (new.message, new.missed):
        return False
    if isinstance(new.rule, Every):
        return isinstance(schedule.rule, Every) and schedule.rule.every_ms == new.rule.every_ms
    if new.rule is not None or schedule.rule is not None:
        return schedule.rule == new.rule
    return not new.is_exact or new.due_ms == schedule.due_ms


def first_due(due_ms: int | None, rule: Rule | None, now_ms: int) -> tuple[int, Rule | None]:
    """When a schedule is due first, and its rule from then on."""
    if rule is not None:
        check_rule(rule)
        if isinstance(rule, Every):
            due_ms = now_ms + rule.every_ms if due_ms is None else due_ms
            rule = Every(rule.every_ms, due_ms)
        elif due_ms is None:
            due_ms = next_after(rule, now_ms)
    if due_ms is None:
        raise InvalidRequest("A schedule needs a time or a rule that leads to one.")
    if not 0 <= due_ms <= DUE_MS_MAX:
        raise InvalidRequest(f"A time is between 0 and {DUE_MS_MAX} ms after the beginning of 1970, not {due_ms}.")
    return due_ms, rule
