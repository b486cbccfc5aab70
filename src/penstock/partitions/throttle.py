"""A token bucket: so many bytes a second, and no more than a second's worth at once. Pure."""

from __future__ import annotations


class Throttle:
    """How many bytes may be fetched now. A rate of 0 means any number."""

    __slots__ = ("_left", "_rate", "_then")

    def __init__(self, bytes_per_second: int, now: float) -> None:
        self._rate = bytes_per_second
        self._left = float(bytes_per_second)
        self._then = now

    @property
    def rate(self) -> int:
        """Bytes a second; 0 for any number."""
        return self._rate

    def set_rate(self, bytes_per_second: int, now: float) -> None:
        """Allow another number of bytes a second from now on."""
        if bytes_per_second != self._rate:
            self._rate, self._left, self._then = bytes_per_second, float(bytes_per_second), now

    @property
    def is_on(self) -> bool:
        return self._rate > 0

    def available(self, now: float) -> int:
        """The bytes that may be taken now; below 1 none."""
        self._left = min(self._left + (now - self._then) * self._rate, float(self._rate))
        self._then = now
        return int(self._left)

    def take(self, size: int) -> None:
        """So many were taken. That may be more than were there: then it is made up for by waiting."""
        if self._rate:
            self._left -= size

    def wait_s(self, now: float) -> float:
        """How long until something may be taken."""
        available = self.available(now)
        return 0.0 if not self._rate or available >= 1 else (1 - self._left) / self._rate
