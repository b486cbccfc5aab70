"""Whether the node lives, whether it can do its work, and what it has to say about itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from penstock import __version__
from penstock.broker.partition import Partition
from penstock.http.door import Door
from penstock.http.exchange import Call, Reply, reply

_REASONS_MAX = 100


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


async def livez(_door: Door, _call: Call[None, None]) -> Liveness:
    """The process answers."""
    return Liveness()


async def readyz(door: Door, _call: Call[None, None]) -> Reply:
    """The node can do its work: 200 if it can, 503 with the reasons if not."""
    health = examine(door)
    return reply(health, 503 if health.status == "unready" else 200)


async def health(door: Door, _call: Call[None, None]) -> Health:
    """The same findings as /readyz, always with status 200."""
    return examine(door)


def examine(door: Door) -> Health:
    """Look at every partition on this node."""
    reasons: list[Finding] = []
    warnings: list[Finding] = []
    if door.stopping.is_set():
        reasons.append(Finding(code="stopping", detail="The node is stopping."))
    reasons += _membership(door)
    reasons += [
        Finding(code="background_task", detail=f"The background task {name!r} failed a moment ago: {why}.")
        for name, why in door.broker.supervision.troubles()
    ]
    for partition in door.broker.replicas:
        failure = partition.log.failure
        if failure is not None:
            reasons.append(_finding(partition, failure.code, failure.message))
        if partition.log.corrupt_bytes:
            warnings.append(
                _finding(
                    partition,
                    "corrupt_bytes",
                    f"{partition.log.corrupt_bytes} bytes of {partition.log.directory} fail their checksums and are "
                    "not served; nothing was deleted.",
                )
            )
        warnings += [
            _finding(
                partition,
                "lost_records",
                f"Offsets {lost.first} to {lost.next - 1} are lost: no replica has them any more. Readers go past.",
            )
            for lost in partition.log.lost
        ]
    broker = door.broker
    return Health(
        status="unready" if reasons else "degraded" if warnings else "ok",
        reasons=reasons[:_REASONS_MAX],
        warnings=warnings[:_REASONS_MAX],
        node_id=broker.config.node_id,
        version=__version__,
        uptime_ms=max(broker.clock.now_ms() - door.started_at_ms, 0),
        partitions=len(broker.replicas),
    )


def _membership(door: Door) -> Iterator[Finding]:
    """What keeps the node from taking part in the cluster."""
    broker = door.broker
    if not broker.registration.has_quorum:
        yield Finding(code="no_quorum", detail="The node has not heard of the cluster's controller for a while.")
    node = broker.metadata.nodes.get(broker.config.node_id)
    if node is None:
        yield Finding(code="not_registered", detail="The node has not been taken into the cluster yet.")
    elif node.is_fenced:
        yield Finding(code="fenced", detail="The cluster does not count on this node until it has caught up.")


def _finding(partition: Partition, code: str, detail: str) -> Finding:
    return Finding(code=code, detail=detail, topic=partition.id.topic, partition=partition.id.partition)
