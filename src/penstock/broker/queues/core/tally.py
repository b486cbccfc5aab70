"""How many messages went which way, counted as changes are applied: by intervals, never by message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from penstock.broker.queues.core.records import Cause, Leased, Settled


@dataclass(slots=True)
class Tally:
    """Messages since somebody looked last."""

    delivered: int = 0  # for the first time
    redelivered: int = 0
    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    expired: int = 0  # their lease ended without an answer
    buried: int = 0  # written to the dead letters

    @property
    def failed(self) -> int:
        return self.nacked + self.rejected + self.expired

    def add(self, other: Tally) -> None:
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def on_leased(self, event: Leased) -> None:
        for first, last, count in event.spans:
            if count == 1:
                self.delivered += last - first + 1
            else:
                self.redelivered += last - first + 1

    def on_settled(self, event: Settled) -> None:
        match event.cause:
            case Cause.ACK:
                self.acked += _messages(event.acked)
            case Cause.BURIAL:
                self.buried += _messages(event.acked)
            case Cause.NACK:
                self.nacked += _failed(event)
            case Cause.REJECT:
                self.rejected += _failed(event)
            case Cause.EXPIRY:
                self.expired += _failed(event)
            case Cause.GAP | Cause.RELEASE:
                pass


def _messages(spans: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in spans)


def _failed(event: Settled) -> int:
    again = sum(last - first + 1 for first, last, _, _ in event.waiting)
    return again + sum(last - first + 1 for _, first, last, _, _ in event.dying)
