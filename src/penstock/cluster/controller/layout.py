"""Where replicas are: how many each node has and leads, of every topic and in all.

The planner's sketch pad. The first replica of a partition is the one that should lead. A partition on the move counts
where it is going to be. Companions do not count at all: where they are, another partition is already.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from penstock.cluster.controller.draft import target_of
from penstock.cluster.metadata import ClusterMetadata
from penstock.cluster.records import NodeRegistered
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
        self.pairs: defaultdict[tuple[int, int], int] = defaultdict(int)  # who would take over from whom

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
