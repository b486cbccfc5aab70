"""Where replicas are and where new ones go: leaders and replicas even over the nodes, of each topic first, then of all.

Racks come before evenness. A node that is fenced gets a replica only if there are too few others, and never the lead;
one that is being drained gets nothing. In a `Layout` the first replica of a partition is the one that should lead, and
a partition on the move counts where it is going to be. Companions do not count: they are where their partition is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.consensus.controller.draft import target_of
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.records import NodeRegistered
from penstock.errors import InvalidReplicaAssignment, InvalidReplicationFactor
from penstock.model import queue_parent

Place = tuple[str, int]  # a topic's name and a partition of it


class Layout:
    """Replicas by partition, and the counts that follow from them."""

    def __init__(self, nodes: Mapping[int, NodeRegistered]) -> None:
        self.nodes = nodes
        self._has_racks = len({node.rack for node in nodes.values()}) > 1
        self.replicas: dict[Place, tuple[int, ...]] = {}
        self.on_node: dict[int, dict[Place, None]] = {}
        # Counted for every node in all, and for each topic apart.
        self.held: defaultdict[int, int] = defaultdict(int)
        self.leads: defaultdict[int, int] = defaultdict(int)
        self.topic_has: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.topic_leads: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.pairs: defaultdict[tuple[int, int], int] = defaultdict(int)  # (leader, the replica that would take over)

    @staticmethod
    def of(metadata: ClusterMetadata, nodes: Mapping[int, NodeRegistered] | None = None) -> Layout:
        layout = Layout(metadata.nodes if nodes is None else nodes)
        for topic in metadata.topics.values():
            if queue_parent(topic.name) is not None:
                continue
            for partition in topic.partitions:
                layout.put((topic.name, partition.partition), target_of(partition))
        return layout

    @staticmethod
    def around(metadata: ClusterMetadata, topic: str) -> Layout:
        """The partitions of one topic, and of all others only how many each node has."""
        layout = Layout(metadata.nodes)
        held, leads, pairs = layout.held, layout.leads, layout.pairs
        for other in metadata.topics.values():
            if queue_parent(other.name) is not None:
                continue
            for partition in other.partitions:
                replicas = target_of(partition)
                if other.name == topic:
                    layout.put((topic, partition.partition), replicas)
                    continue
                leads[replicas[0]] += 1
                if len(replicas) > 1:
                    pairs[replicas[0], replicas[1]] += 1
                for node_id in replicas:
                    held[node_id] += 1
        return layout

    def has(self, node_id: int) -> int:
        return self.held[node_id]

    def put(self, place: Place, replicas: Sequence[int]) -> None:
        """Put a partition there, and nowhere else."""
        old = self.replicas.get(place)
        if old is not None:
            self._count(place, old, -1)
            for node_id in old:
                del self.on_node[node_id][place]
        self.replicas[place] = tuple(replicas)
        self._count(place, replicas, 1)
        for node_id in replicas:
            self.on_node.setdefault(node_id, {})[place] = None

    def _count(self, place: Place, replicas: Sequence[int], step: int) -> None:
        topic = place[0]
        self.leads[replicas[0]] += step
        self.topic_leads[topic, replicas[0]] += step
        if len(replicas) > 1:
            self.pairs[replicas[0], replicas[1]] += step
        for node_id in replicas:
            self.held[node_id] += step
            self.topic_has[topic, node_id] += step

    def swap(self, place: Place, old: int, new: int) -> None:
        """Let one node take another's replica."""
        self.put(place, [new if node_id == old else node_id for node_id in self.replicas[place]])

    def rack(self, node_id: int) -> str | None:
        node = self.nodes.get(node_id)
        return None if node is None else node.rack

    def crowding(self, replicas: Sequence[int]) -> int:
        """How many replicas share a rack with an earlier one, where there are several racks."""
        if not self._has_racks:
            return 0
        return len(replicas) - len({self.rack(node_id) for node_id in replicas})

    def crowding_after(self, place: Place, old: int, new: int) -> int:
        """The same once one node has taken another's replica."""
        return self.crowding([new if replica == old else replica for replica in self.replicas[place]])

    def best_addition(self, place: Place, present: Sequence[int], candidates: Sequence[int]) -> int | None:
        """The node that one more replica of a partition should go to: another rack first, then few replicas."""
        racks = Counter(self.rack(node_id) for node_id in present)
        free = [node_id for node_id in candidates if node_id not in present]
        if not free:
            return None
        return min(
            free,
            key=lambda node_id: (
                self.nodes[node_id].is_fenced,
                racks[self.rack(node_id)],
                self.topic_has[place[0], node_id],
                self.has(node_id),
                node_id,
            ),
        )


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
    """The replicas that a client chose for new partitions, if they make sense."""
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
