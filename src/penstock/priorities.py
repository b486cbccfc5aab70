"""Priorities: the five names, and the record header that carries one with a message wherever it goes.

The header is all there is: retries, dead letters, redrives and other clusters keep it because they keep headers. What
has no header, or one with another text, is normal.
"""

from __future__ import annotations

from typing import Final

from penstock.errors import InvalidRequest

PRIORITIES: Final = ("critical", "high", "normal", "low", "background")
NORMAL: Final = PRIORITIES.index("normal")
PRIORITY_HEADER: Final = "penstock-priority"

Headers = tuple[tuple[str, bytes | None], ...]

_LANES: Final = {name.encode(): lane for lane, name in enumerate(PRIORITIES)}


def lane_of(value: bytes | None) -> int:
    """The lane that a header's value names, whatever case it is written in; what is not known is normal."""
    if value is None:
        return NORMAL
    found = _LANES.get(value)
    return _LANES.get(value.lower(), NORMAL) if found is None else found


def lane_of_headers(headers: Headers) -> int:
    """The lane of a message; of several headers of that name the last counts, as it does in a dict of them."""
    lane = NORMAL
    for name, value in headers:
        if name == PRIORITY_HEADER:
            lane = lane_of(value)
    return lane


def priority_of(headers: Headers) -> str:
    """The name of a message's priority."""
    return PRIORITIES[lane_of_headers(headers)] if headers else PRIORITIES[NORMAL]


def with_priority(headers: Headers, priority: str | None) -> Headers:
    """Headers with a priority in them, in the place of any that they had; None leaves them as they are.

    It comes last, so that messages of one priority end alike and a batch of them is recognised at a glance.
    """
    if priority is None:
        return headers
    check_priority(priority)
    others = tuple(pair for pair in headers if pair[0] != PRIORITY_HEADER) if headers else ()
    return (*others, (PRIORITY_HEADER, priority.encode()))


def check_priority(priority: str) -> None:
    if priority not in PRIORITIES:
        raise InvalidRequest(
            f"{priority!r} is no priority. There are {', '.join(PRIORITIES[:-1])} and {PRIORITIES[-1]}."
        )
