"""One node: whether it lives and can do its work, its figures, and the scrub of its disk."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.api.operation import Action, Admits, Repeat, Request, Resource, operation


class Liveness(msgspec.Struct, frozen=True, kw_only=True):
    status: Literal["ok"] = "ok"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something worth knowing about one partition, or about the node where there is none."""

    code: str
    detail: str
    topic: str | None = None
    partition: int | None = None


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """`ok`; `degraded`: all work is done but something needs a look; `unready`: some work is not done."""

    status: Literal["ok", "degraded", "unready"]
    reasons: list[Finding]
    warnings: list[Finding]
    node_id: int
    version: str
    uptime_ms: int
    partitions: int


class TopicFigures(msgspec.Struct, kw_only=True):
    """One topic on this node: counters since it started, and what its logs hold now."""

    topic: str
    partitions: int = 0
    messages: int = 0
    size_bytes: int = 0
    segments: int = 0
    corrupt_bytes: int = 0
    messages_produced: int = 0
    bytes_produced: int = 0
    messages_consumed: int = 0
    bytes_consumed: int = 0
    produce_errors: dict[str, int] = {}


class LatencyView(msgspec.Struct, frozen=True, kw_only=True):
    """Durations since the node started; percentiles are upper bounds of the bucket they fall in, null with no data."""

    count: int
    mean_ms: float | None
    p50_ms: float | None
    p99_ms: float | None


class MetricsView(msgspec.Struct, frozen=True, kw_only=True):
    """What went through this node since it started, and what lies on it."""

    time_ms: int
    uptime_ms: int
    topics: list[TopicFigures]
    log_append_latency: LatencyView
    log_sync_latency: LatencyView
    produce_latency: LatencyView


class ScrubView(msgspec.Struct, frozen=True, kw_only=True):
    """The scrub of the node that answers. Counts are since it started."""

    node_id: int
    is_on: Annotated[bool, Meta(description="Whether it runs by itself; it can be asked for in any case.")]
    is_running: bool
    round: Annotated[int, Meta(description="The round under way, or the last one.")]
    completed_round: Annotated[int, Meta(description="The last round that looked at everything due; 0 for none.")]
    completed_at_ms: Annotated[int | None, Meta(description="When that round ended, in ms since 1970.")]
    asked_round: Annotated[
        int | None, Meta(description="The round that will have checked everything, where that was asked for.")
    ]
    checked_bytes: int
    checked_segments: int
    damaged_segments: Annotated[int, Meta(description="Segments in which damage was found that was not known.")]
    unreadable_segments: Annotated[int, Meta(description="Checks that the disk refused.")]
    repaired_indexes: int
    damaged_partitions: Annotated[
        int, Meta(description="Replicas here that are known to be damaged now, and are not copied anew yet.")
    ]
    corrupt_bytes: Annotated[int, Meta(description="Bytes of them that fail their checksums.")]


_LOOK = Action.DESCRIBE.of(Resource.NODE)


@operation(
    "GET /livez",
    name="livez",
    tag="health",
    needs=(),
    admits=Admits.EVERYONE,
    repeat=Repeat.SAFE,
    is_early=True,
)
class IsAlive(Request[Liveness], frozen=True, kw_only=True):
    """The process answers."""


@operation(
    "GET /readyz",
    name="readyz",
    tag="health",
    needs=(),
    admits=Admits.EVERYONE,
    repeat=Repeat.SAFE,
    also={503: lambda health: health.status == "unready"},
    is_early=True,
)
class IsReady(Request[Health], frozen=True, kw_only=True):
    """The node can do its work: 200 if it can, 503 with the reasons if not."""


@operation("GET /v1/admin/health", name="admin_health", tag="admin", needs=_LOOK, repeat=Repeat.SAFE, is_early=True)
class DescribeHealth(Request[Health], frozen=True, kw_only=True):
    """The same findings as /readyz, always with status 200."""


@operation("GET /v1/admin/metrics", name="admin_metrics", tag="admin", needs=_LOOK, repeat=Repeat.SAFE, is_early=True)
class DescribeFigures(Request[MetricsView], frozen=True, kw_only=True):
    """The figures of /metrics as JSON, by topic."""


@operation("GET /v1/storage/scrub", name="scrub_status", tag="cluster", needs=_LOOK, repeat=Repeat.SAFE, is_early=True)
class DescribeScrub(Request[ScrubView], frozen=True, kw_only=True):
    """How far the scrub of this node is, and what it has found."""


@operation(
    "POST /v1/storage/scrub",
    name="scrub_now",
    tag="cluster",
    needs=Action.ALTER.of(Resource.NODE),
    repeat=Repeat.SAME,
    status=202,
    is_early=True,
)
class ScrubNow(Request[ScrubView], frozen=True, kw_only=True):
    """Have everything on this node checked now. It is done when `completed_round` reaches `asked_round`."""
