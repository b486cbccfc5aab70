"""What a handler may raise to say more than that it failed."""

from __future__ import annotations

from penstock.client.values import Duration, seconds_of


class Reject(Exception):
    """The message can never be handled: it goes to the dead letters at once, with this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Exception):
    """Deliver the message again after ``delay`` (seconds or a `timedelta`), or after the group's backoff."""

    def __init__(self, delay: Duration | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = None if delay is None else seconds_of(delay, "delay")
        self.reason = reason


def reason_of(error: BaseException) -> str:
    """What a failure is called in a message's history: the kind of error, and its first line."""
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
