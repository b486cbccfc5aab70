"""The cluster in numbers, as one node sees it: what it leads and follows, who the others are, where the quorum is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from penstock.broker.broker import Broker
from penstock.consensus.records import NO_LEADER
from penstock.doors.rest.leaderships import LeadershipCount
from penstock.operations.cluster import is_under_replicated, status_of_node
from penstock.partitions.partition import Partition

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

_STATUSES = ("up", "draining", "fenced")
_ROLES = ("leader", "voter", "learner", "none")


def lag_of(partition: Partition) -> int:
    """How many messages the last of a partition's followers is behind; 0 where none is, or another node leads."""
    followers = partition.followers
    return 0 if followers is None else max(followers.lags(partition.log.end_offset).values(), default=0)


def collect_cluster(broker: Broker, leaderships: LeadershipCount) -> Iterable[Metric]:
    yield from _nodes_and_partitions(broker)
    yield from _replication(broker, leaderships)
    yield from _quorum(broker)


def _nodes_and_partitions(broker: Broker) -> Iterable[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    metadata = broker.metadata
    statuses: list[str] = [status_of_node(node) for node in metadata.nodes.values()]
    nodes = GaugeMetricFamily("penstock_nodes", "Nodes of the cluster.", labels=["status"])
    for status in _STATUSES:
        nodes.add_metric([status], statuses.count(status))
    yield nodes
    assigned = [partition for topic in metadata.topics.values() for partition in topic.partitions]
    led_here = [partition for partition in assigned if partition.leader == broker.config.node_id]
    yield GaugeMetricFamily(
        "penstock_under_replicated_partitions",
        "Partitions led here of which a replica is not in sync.",
        sum(is_under_replicated(partition) for partition in led_here),
    )
    yield GaugeMetricFamily(
        "penstock_leaderless_partitions",
        "Partitions of the cluster that nobody leads.",
        sum(partition.leader == NO_LEADER for partition in assigned),
    )
    yield GaugeMetricFamily(
        "penstock_moving_partitions",
        "Partitions of the cluster whose replicas are on their way to other nodes.",
        sum(bool(partition.adding or partition.removing) for partition in assigned),
    )


def _replication(broker: Broker, leaderships: LeadershipCount) -> Iterable[Metric]:
    from prometheus_client.metrics_core import CounterMetricFamily

    stats = broker.stats.replication
    for name, text, value in (
        ("penstock_leader_elections", "Times that this node began to lead a partition.", leaderships.gained),
        ("penstock_in_sync_shrinks", "Replicas that fell out of sync with a leader here.", stats.shrinks),
        ("penstock_in_sync_expands", "Replicas that came in sync with a leader here.", stats.expands),
        ("penstock_replication_bytes_in", "Bytes that followers here fetched.", stats.bytes_in),
        ("penstock_replication_bytes_out", "Bytes that followers elsewhere were given.", stats.bytes_out),
        ("penstock_replica_truncations", "Times that a follower here cut its log back.", stats.truncations),
    ):
        yield CounterMetricFamily(name, text, value)


def _quorum(broker: Broker) -> Iterable[Metric]:
    from prometheus_client.metrics_core import GaugeMetricFamily

    quorum, node_id = broker.quorum, broker.config.node_id
    role = "voter" if node_id in quorum.members.voters else "learner" if node_id in quorum.members.learners else "none"
    if quorum.is_leader:
        role = "leader"
    roles = GaugeMetricFamily("penstock_quorum_role", "What this node is in the quorum.", labels=["role"])
    for each in _ROLES:
        roles.add_metric([each], int(each == role))
    yield roles
    yield GaugeMetricFamily("penstock_quorum_term", "The quorum's term, as known here.", quorum.term)
    yield GaugeMetricFamily(
        "penstock_quorum_commit_index", "The last entry known to be committed.", quorum.commit_index
    )
    yield GaugeMetricFamily("penstock_quorum_applied_index", "The last entry applied here.", quorum.applied_index)
    yield GaugeMetricFamily(
        "penstock_quorum_reached", "Whether the controller answers this node.", int(broker.registration.has_quorum)
    )
