"""Counters that the hot path can afford: plain integers, read when metrics are rendered."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

LATENCY_BOUNDS_SECONDS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

# A group's round waits for people's programs, not for disks.
ROUND_BOUNDS_SECONDS: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


class Histogram:
    """How often a duration fell below each bound."""

    __slots__ = ("_bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_SECONDS) -> None:
        self._bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(self._bounds, seconds)] += 1
        self.sum += seconds

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound, count up to it) as Prometheus has them."""
        total = 0
        rows = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self.counts, strict=True):
            total += count
            rows.append((bound, total))
        return rows


@dataclass(slots=True)
class TopicStats:
    """What went through one topic since the node started."""

    messages_produced: int = 0
    bytes_produced: int = 0
    messages_consumed: int = 0
    bytes_consumed: int = 0
    produce_errors: dict[str, int] = field(default_factory=dict)

    def count_error(self, code: str) -> None:
        self.produce_errors[code] = self.produce_errors.get(code, 0) + 1


@dataclass(slots=True)
class TransactionOutcomes:
    """How transactions were decided since the node started."""

    committed: int = 0
    aborted: dict[str, int] = field(default_factory=dict)  # by reason

    def count_aborted(self, reason: str) -> None:
        self.aborted[reason] = self.aborted.get(reason, 0) + 1


@dataclass(slots=True)
class TransactionStats(TransactionOutcomes):
    """What became of transactions since the node started; those of series are counted once more by themselves."""

    commit_latency: Histogram = field(default_factory=Histogram)
    series: TransactionOutcomes = field(default_factory=TransactionOutcomes)


@dataclass(slots=True)
class ReplicationStats:
    """What went between leaders and followers since the node started."""

    bytes_in: int = 0  # fetched by followers here
    bytes_out: int = 0  # given to followers elsewhere
    expands: int = 0  # replicas that came in sync with a leader here, as the controller granted it
    shrinks: int = 0  # and that fell out
    truncations: int = 0


@dataclass(slots=True)
class ScrubStats:
    """What the scrub has looked at and found since the node started."""

    bytes: int = 0
    segments: int = 0
    damaged: int = 0  # segments in which damage was found that was not known
    unreadable: int = 0  # checks that the disk refused
    indexes_repaired: int = 0


@dataclass(slots=True)
class BrokerStats:
    """What went through the node since it started."""

    append_latency: Histogram = field(default_factory=Histogram)
    produce_latency: Histogram = field(default_factory=Histogram)
    sync_latency: Histogram = field(default_factory=Histogram)
    transactions: TransactionStats = field(default_factory=TransactionStats)
    replication: ReplicationStats = field(default_factory=ReplicationStats)
    scrub: ScrubStats = field(default_factory=ScrubStats)
    topics: dict[str, TopicStats] = field(default_factory=dict)

    def topic(self, name: str) -> TopicStats:
        stats = self.topics.get(name)
        if stats is None:
            stats = self.topics[name] = TopicStats()
        return stats
