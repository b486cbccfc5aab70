"""Where new partitions go: leaders and replicas even over the nodes, of each topic first and then of all topics.

Racks come before evenness. A node that is fenced gets a replica only if there are too few others, and never the lead;
one that is being drained gets nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.cluster.controller.layout import Layout, Place
from penstock.cluster.metadata import ClusterMetadata
from penstock.cluster.records import NodeRegistered
from penstock.errors import InvalidReplicaAssignment, InvalidReplicationFactor

REPLICATION_FACTOR_DEFAULT: Final = 3


def usable_nodes(nodes: Mapping[int, NodeRegistered]) -> list[int]:
    """Nodes that may be given replicas; those that are fenced may come back."""
    usable = [node_id for node_id in sorted(nodes) if not nodes[node_id].is_draining]
    return usable or sorted(nodes)


def default_replication_factor(metadata: ClusterMetadata, most: int = REPLICATION_FACTOR_DEFAULT) -> int:
    """Three, or one for each node."""
    return min(most, len(usable_nodes(metadata.nodes)))


def place(
    metadata: ClusterMetadata, topic: str, *, first: int, count: int, replication_factor: int
) -> list[tuple[int, ...]]:
    """Replicas for ``count`` partitions of a topic, from number ``first`` on."""
    candidates = usable_nodes(metadata.nodes)
    if not 1 <= replication_factor <= len(candidates):
        raise InvalidReplicationFactor(
            f"Replication factor {replication_factor} needs as many nodes; the cluster has {len(candidates)}."
        )
    leaders = [node_id for node_id in candidates if not metadata.nodes[node_id].is_fenced]
    if not leaders:
        raise InvalidReplicationFactor("No node is there that could lead a partition. Try again in a moment.")
    layout = Layout.around(metadata, topic)
    for index in range(first, first + count):
        leader = min(leaders, key=lambda node_id: _leading_load(layout, topic, node_id))
        layout.put((topic, index), _choose(layout, (topic, index), leader, candidates, replication_factor))
    _even_out(layout, [(topic, index) for index in range(first, first + count)], leaders)
    return [layout.replicas[topic, index] for index in range(first, first + count)]


def _even_out(layout: Layout, places: Sequence[Place], nodes: Sequence[int]) -> None:
    """Followers chosen one after the other may end up uneven by two: let the fullest give to the emptiest."""

    def held(node_id: int) -> int:
        return layout.topic_has[places[0][0], node_id]

    while True:
        full, empty = max(nodes, key=held), min(nodes, key=held)
        swappable = [
            place
            for place in places
            if full in layout.replicas[place][1:]
            and empty not in layout.replicas[place]
            and layout.crowding_after(place, full, empty) <= layout.crowding(layout.replicas[place])
        ]
        if held(full) - held(empty) < 2 or not swappable:
            return
        layout.swap(swappable[0], full, empty)


def _leading_load(layout: Layout, topic: str, node_id: int) -> tuple[int, ...]:
    """What a node has to lead and to hold; who has least of it leads next."""
    led = (layout.topic_leads[topic, node_id], layout.topic_has[topic, node_id])
    return (*led, layout.leads[node_id], layout.has(node_id), node_id)


def _choose(
    layout: Layout, place: tuple[str, int], leader: int, candidates: Sequence[int], replication_factor: int
) -> list[int]:
    chosen = [leader]
    while len(chosen) < replication_factor:
        addition = layout.best_addition(place, chosen, candidates)
        assert addition is not None, "there are as many nodes as replicas"
        chosen.append(addition)
    # Those behind a leader take over in their order; one node's leaderships should not all go to the same other.
    chosen[1:] = sorted(
        chosen[1:], key=lambda node_id: (layout.nodes[node_id].is_fenced, layout.pairs[leader, node_id])
    )
    return chosen


def check_replicas(metadata: ClusterMetadata, replicas: Sequence[int]) -> None:
    """Refuse replicas that are not different nodes of the cluster."""
    unknown = [node_id for node_id in replicas if node_id not in metadata.nodes]
    if unknown or not replicas or len(set(replicas)) != len(replicas):
        raise InvalidReplicaAssignment(
            f"Replicas {list(replicas)} must be different nodes of the cluster ({sorted(metadata.nodes)})."
        )


def check_assignment(
    metadata: ClusterMetadata, assignment: Sequence[Sequence[int]], count: int
) -> list[tuple[int, ...]]:
    """The places somebody chose for new partitions, if they make sense."""
    if len(assignment) != count or not assignment:
        raise InvalidReplicaAssignment(
            f"The assignment covers {len(assignment)} partitions where {count} are asked for."
        )
    for replicas in assignment:
        check_replicas(metadata, replicas)
        if all(metadata.nodes[node_id].is_fenced for node_id in replicas):
            raise InvalidReplicaAssignment(f"None of the replicas {list(replicas)} is on a node that is there now.")
    if len({len(replicas) for replicas in assignment}) > 1:
        raise InvalidReplicaAssignment("Every partition of a topic must have the same number of replicas.")
    return [tuple(replicas) for replicas in assignment]
