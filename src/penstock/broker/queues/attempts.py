"""Attempts to receive: what each got, so that one whose answer was lost can be made again without costing a try.

Whoever leads a partition remembers for a short while what it leased to which attempt. If the consumer makes the attempt
again, what the first one got is given back unseen, and then it receives as anybody does. Nothing of this is written
down: across a change of leaders, a repeated attempt is a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from penstock.broker.queues.leases import Lease

ATTEMPT_CHARS_MAX: Final = 64
_REMEMBERED_SECONDS: Final = 120.0
_REMEMBERED_MAX: Final = 10_000
_SPANS_MAX: Final = 100_000

Name = tuple[str, str, str]  # of the topic, of the group, and of the attempt


class _Attempt(NamedTuple):
    at: float
    leases: list[Lease]  # without their batches


class Attempts:
    """The latest attempts, up to a number and an age. ``now`` is in seconds, by a clock that only goes forward."""

    def __init__(self, attempts_max: int = _REMEMBERED_MAX, spans_max: int = _SPANS_MAX) -> None:
        self._attempts: OrderedDict[Name, _Attempt] = OrderedDict()
        self._attempts_max = attempts_max
        self._spans_max = spans_max
        self._spans = 0

    def __len__(self) -> int:
        return len(self._attempts)

    def note(self, name: Name, leases: list[Lease], now: float) -> bool:
        """An attempt was made and got this; whether it was known before."""
        self._expire(now)
        known = self._attempts.get(name)
        bare = [lease._replace(batches=b"") for lease in leases]
        if known is None:
            self._attempts[name] = _Attempt(now, bare)
        else:
            known.leases.extend(bare)
        self._spans += sum(len(lease.deliveries) for lease in bare)
        while len(self._attempts) > self._attempts_max or (self._spans > self._spans_max and len(self._attempts) > 1):
            self._drop(next(iter(self._attempts)))
        return known is not None

    def take(self, name: Name, now: float) -> list[Lease]:
        """What an attempt got, which is forgotten by that."""
        self._expire(now)
        return self._drop(name) if name in self._attempts else []

    def _expire(self, now: float) -> None:
        while self._attempts:
            name, oldest = next(iter(self._attempts.items()))
            if oldest.at + _REMEMBERED_SECONDS > now:
                return
            self._drop(name)

    def _drop(self, name: Name) -> list[Lease]:
        leases = self._attempts.pop(name).leases
        self._spans -= sum(len(lease.deliveries) for lease in leases)
        return leases
