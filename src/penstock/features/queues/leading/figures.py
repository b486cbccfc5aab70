"""What went through queues since the node started: plain integers by topic and group, for whoever shows them.

They are counted where a change is applied, by intervals and never by message, on the node that leads.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.features.queues.core.records import EndCause, LeaseGranted, LeasesExtended, LeasesSettled, QueueEvent


@dataclass(slots=True)
class Figures:
    """Messages of one group of a topic."""

    received: int = 0  # deliveries, the first ones and the others
    redelivered: int = 0  # those of them that were not the first of their message
    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    extended: int = 0
    expired: int = 0  # leases that ended without an answer: visibility timeouts
    dead_lettered: int = 0  # written to the dead letters

    def count(self, event: QueueEvent) -> None:
        """Note what a change that was applied is about."""
        match event:
            case LeaseGranted():
                for first, last, count in event.spans:
                    self.received += last - first + 1
                    if count > 1:
                        self.redelivered += last - first + 1
            case LeasesSettled():
                self._count_settled(event)
            case LeasesExtended():
                self.extended += sum(last - first + 1 for first, last in event.spans)

    def _count_settled(self, event: LeasesSettled) -> None:
        size = sum(last - first + 1 for first, last in event.acked)
        size += sum(last - first + 1 for first, last, _, _ in event.waiting)
        size += sum(last - first + 1 for _, first, last, _, _ in event.dying)
        match event.cause:
            case EndCause.ACK:
                self.acked += size
            case EndCause.NACK:
                self.nacked += size
            case EndCause.REJECT:
                self.rejected += size
            case EndCause.EXPIRY:
                self.expired += size
            case EndCause.BURIAL:
                self.dead_lettered += size
            case EndCause.GAP:
                pass


class AllFigures:
    """Those of every group that was led here."""

    def __init__(self) -> None:
        self._by_group: dict[tuple[str, str], Figures] = {}

    def of(self, topic: str, group: str) -> Figures:
        found = self._by_group.get((topic, group))
        if found is None:
            found = self._by_group[topic, group] = Figures()
        return found

    def items(self) -> list[tuple[tuple[str, str], Figures]]:
        """(topic, group) and the figures, in the order of their names."""
        return sorted(self._by_group.items(), key=lambda item: item[0])

    def forget_topic(self, topic: str) -> None:
        """The topic is gone."""
        self._by_group = {key: figures for key, figures in self._by_group.items() if key[0] != topic}
