"""What nodes say about themselves when another one asks: how far they know the metadata, and what room they have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock import __version__
from penstock.errors import PenstockError
from penstock.network.port import Method, Nothing

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

_TIMEOUT_SECONDS: Final = 2.0


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    """One node, as it is now. ``leader_id`` is whom it takes for the leader of the quorum, if anybody."""

    node_id: int
    version: str
    term: int
    leader_id: int | None
    applied_index: int
    size_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    corrupt_bytes: int = 0
    scrubbed_at_ms: int | None = None  # when the last round of the scrub ended


REPORT: Final = Method("node.report", Nothing, NodeReport)


def serve_report(broker: Broker) -> None:
    """Answer other nodes that ask how this one is."""
    broker.peers.serve(REPORT, lambda _node_id, _request, _body: report_of(broker))


def report_of(broker: Broker) -> NodeReport:
    """This node."""
    total_bytes, free_bytes = broker.disk_usage()
    quorum = broker.quorum
    return NodeReport(
        node_id=broker.config.node_id,
        version=__version__,
        term=quorum.term,
        leader_id=quorum.leader_id,
        applied_index=quorum.applied_index,
        size_bytes=sum(partition.log.size_bytes for partition in broker.replicas),
        disk_total_bytes=total_bytes,
        disk_free_bytes=free_bytes,
        corrupt_bytes=sum(partition.log.corrupt_bytes for partition in broker.replicas),
        scrubbed_at_ms=broker.scrub.progress.completed_at_ms,
    )


async def gather_reports(broker: Broker, node_ids: Iterable[int]) -> dict[int, NodeReport]:
    """The reports of those nodes that answer soon."""
    asked = list(node_ids)
    found = await asyncio.gather(*(_ask(broker, node_id) for node_id in asked))
    return {node_id: report for node_id, report in zip(asked, found, strict=True) if report is not None}


async def _ask(broker: Broker, node_id: int) -> NodeReport | None:
    if node_id == broker.config.node_id:
        return report_of(broker)
    try:
        report: NodeReport = (await broker.peers.call(node_id, REPORT, Nothing(), timeout_s=_TIMEOUT_SECONDS)).reply
    except PenstockError:
        return None
    return report
