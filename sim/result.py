"""What a simulated history came to: the same facts for a quorum of cores and for a whole cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Result:
    """One seed's history in numbers. The same seed always comes to the same result, its trace included."""

    kind: str  # "raft" or "cluster"
    seed: int
    duration_ms: int  # of virtual time
    events: int  # that happened: messages, ticks, writes
    operations: int  # of clients, that were answered
    faults: Mapping[str, int]  # by kind
    trace: str  # stands for all that happened, in its order
    violation: str | None = None  # what was proved wrong
    history: tuple[str, ...] = ()  # a line for all that happened, if it was asked for
    counts: Mapping[str, int] = field(default_factory=dict)  # what there was of queues and schedules

    def to_json(self) -> dict[str, object]:
        return asdict(self)
