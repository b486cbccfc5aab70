"""A draft of the next metadata: nodes and partitions as they are to be, over those that are.

Every change of a partition goes through `MetadataDraft.settle`, which holds its laws: fenced nodes leave ``in_sync``
unless none would be left, the leader is in sync and lives or there is none, replicas that fell out while too few were
in sync stay eligible (KIP-966), a move ends when all that come are in sync, and epochs grow with what they count. A
replica that came back cut is doubtful: it loses its place as soon as a sound one leads, and leads itself only where
more than half of those that had everything are doubtful and there, and none has more (docs/decisions/0011).

The companion of a partition (docs/decisions/0012) follows it: to the same replicas, in moves that end when both can,
and to the same leader where that one is in sync.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from msgspec.structs import replace

from penstock.config.settings import GroupSettings
from penstock.consensus.metadata import ClusterMetadata, Topic, min_in_sync, more_than_half
from penstock.consensus.records import (
    NO_LEADER,
    Doubt,
    MetadataRecord,
    NodeChanged,
    NodeRegistered,
    NodeRemoved,
    PartitionAssigned,
    TopicConfigured,
)
from penstock.errors import InvalidReplicaAssignment, StaleNodeEpoch
from penstock.model import QUEUE_STATE_PREFIX, queue_parent

MIN_IN_SYNC: Final = "min.insync.replicas"
UNCLEAN: Final = "unclean.leader.election.enable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the settings of the cluster say. Every node has to have the same."""

    min_in_sync: int = 0  # of topics that do not say; 0 means more than half of the replicas
    internal_replication_factor: int = 3
    groups: GroupSettings = field(default_factory=GroupSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerView:
    """What the controller knows beside the metadata."""

    index: int = 0  # up to where the metadata log is applied
    leaving: Collection[int] = ()  # nodes about to stop
    silent: Collection[int] = ()  # nodes that this controller has not heard yet: it may be that they are gone
    unable: Collection[int] = ()  # nodes that cannot write to their disks


class MetadataDraft:
    """Changes that are not facts yet."""

    def __init__(
        self, metadata: ClusterMetadata, rules: Rules | None = None, situation: ControllerView | None = None
    ) -> None:
        self.metadata = metadata
        self.rules = rules or Rules()
        self.situation = situation or ControllerView()
        self.nodes = dict(metadata.nodes)
        self._facts: list[MetadataRecord] = []
        self._configs: dict[UUID, dict[str, str]] = {}
        self._partitions: dict[tuple[UUID, int], PartitionAssigned] = {}

    def records(self) -> list[MetadataRecord]:
        """What has to be committed for the draft to become true."""
        self._let_companions_follow()
        for topic in [self._topic(topic_id) for topic_id, index in self._partitions if index == 0]:
            # Leaders may go by partition 0 where a topic does not say how many have to be in sync.
            for partition in topic.partitions[1:]:
                now = self.partition(partition)
                if now.eligible:
                    self.settle(now)
        return [*self._facts, *self._partitions.values()]

    # -- nodes --------------------------------------------------------------------------------------------------------

    def register(self, node: NodeRegistered) -> None:
        self.nodes[node.node_id] = node
        self._facts.append(node)

    def change_node(self, node_id: int, *, is_fenced: bool | None = None, is_draining: bool | None = None) -> None:
        node = self.nodes[node_id]
        changed = replace(
            node,
            is_fenced=node.is_fenced if is_fenced is None else is_fenced,
            is_draining=node.is_draining if is_draining is None else is_draining,
        )
        if changed != node:
            self.nodes[node_id] = changed
            self._facts.append(
                NodeChanged(
                    node_id=node_id,
                    epoch=node.epoch,
                    is_fenced=changed.is_fenced,
                    is_draining=changed.is_draining,
                )
            )

    def remove_node(self, node_id: int) -> None:
        del self.nodes[node_id]
        self._facts.append(NodeRemoved(node_id=node_id))

    def check_epoch(self, node_id: int, epoch: int) -> None:
        """Refuse what a node says that has registered again since, or was removed."""
        node = self.nodes.get(node_id)
        if node is None or node.epoch != epoch:
            raise StaleNodeEpoch(f"Node {node_id} has registered again since, or was removed.")

    def find(self, topic_id: UUID, index: int) -> PartitionAssigned | None:
        """A partition as it is to be; None if it was deleted in the meantime."""
        topic = self.metadata.topic_by_id(topic_id)
        if topic is None or not 0 <= index < len(topic.partitions):
            return None
        return self.partition(topic.partitions[index])

    def is_living(self, node_id: int) -> bool:
        node = self.nodes.get(node_id)
        return node is not None and not node.is_fenced

    def is_heard(self, node_id: int) -> bool:
        return self.is_living(node_id) and node_id not in self.situation.silent

    def is_steady(self, node_id: int) -> bool:
        """Whether a node is there, there to stay, and able to lead."""
        is_going = self.nodes[node_id].is_draining if node_id in self.nodes else True
        is_going = is_going or node_id in self.situation.leaving or node_id in self.situation.unable
        return self.is_heard(node_id) and not is_going

    # -- topics -------------------------------------------------------------------------------------------------------

    def configure(self, topic: Topic, key: str, value: str | None) -> None:
        configs = self._configs.setdefault(topic.topic_id, dict(topic.configs))
        if value is None:
            configs.pop(key, None)
        else:
            configs[key] = value
        self._facts.append(TopicConfigured(topic_id=topic.topic_id, key=key, value=value))

    def _config(self, topic: Topic, key: str) -> str | None:
        return self._configs.get(topic.topic_id, topic.configs).get(key)

    def _topic(self, topic_id: UUID) -> Topic:
        topic = self.metadata.topic_by_id(topic_id)
        assert topic is not None, "a partition has a topic"
        return topic

    # -- companions ---------------------------------------------------------------------------------------------------

    def parent_of(self, partition: PartitionAssigned) -> PartitionAssigned | None:
        """The partition that this one is the companion of, as it is in this draft."""
        name = queue_parent(self._topic(partition.topic_id).name)
        parent = None if name is None else self.metadata.topics.get(name)
        return None if parent is None else self.partition(parent.partitions[partition.partition])

    def companion_of(self, partition: PartitionAssigned) -> PartitionAssigned | None:
        """The companion of a partition, as it is in this draft."""
        companion = self.metadata.topics.get(f"{QUEUE_STATE_PREFIX}{self._topic(partition.topic_id).name}")
        return None if companion is None else self.partition(companion.partitions[partition.partition])

    def rejoin_companions(self) -> None:
        """Let all companions follow that do not, also where nothing else is about to change."""
        for topic in self.metadata.topics.values():
            if queue_parent(topic.name) is not None:
                for partition in topic.partitions:
                    self._let_follow(self.partition(partition))

    def _let_companions_follow(self) -> None:
        for changed in list(self._partitions.values()):
            companion = changed if self.parent_of(changed) is not None else self.companion_of(changed)
            if companion is not None:
                self._let_follow(companion)

    def _let_follow(self, companion: PartitionAssigned) -> None:
        parent = self.parent_of(companion)
        assert parent is not None, "a companion goes with its parent"
        target = target_of(parent)
        if target_of(companion) != target:
            try:
                self.redirect(companion, target)
            except InvalidReplicaAssignment:
                pass  # too few of those that have everything would stay: others have to catch up first
        companion = self.partition(companion)
        is_apart = companion.leader != parent.leader and parent.leader in companion.in_sync
        if is_apart or (is_moving(companion) and not is_moving(parent)):
            self.settle(companion)

    # -- partitions ---------------------------------------------------------------------------------------------------

    def redirect(self, partition: PartitionAssigned, target: tuple[int, ...]) -> PartitionAssigned:
        """Send replicas elsewhere, from where they were before any move that is under way (KIP-455)."""
        origin = [node_id for node_id in partition.replicas if node_id not in partition.adding]
        removing = tuple(node_id for node_id in origin if node_id not in target)
        replicas = (*target, *removing)
        in_sync = tuple(node_id for node_id in partition.in_sync if node_id in replicas)
        if len(in_sync) < min(len(partition.in_sync), max(self.min_in_sync(partition), 1)):
            # Newcomers of the move that is under way may have what was acknowledged, and few others.
            raise InvalidReplicaAssignment(
                f"Only replicas {list(partition.in_sync)} are in sync, and too few of them would stay. "
                "Wait until others are."
            )
        wanted = replace(
            partition,
            replicas=replicas,
            in_sync=in_sync,
            eligible=tuple(node_id for node_id in partition.eligible if node_id in replicas),
            adding=tuple(node_id for node_id in target if node_id not in origin),
            removing=removing,
        )
        return self.settle(wanted)

    def partition(self, known: PartitionAssigned) -> PartitionAssigned:
        """The partition as it is in this draft."""
        return self._partitions.get((known.topic_id, known.partition), known)

    def partitions(self) -> Iterator[PartitionAssigned]:
        for topic in self.metadata.topics.values():
            for partition in topic.partitions:
                yield self.partition(partition)

    def partitions_of(self, node_id: int) -> Iterator[PartitionAssigned]:
        """Those that have a replica on a node."""
        return (partition for partition in self.partitions() if node_id in partition.replicas)

    def min_in_sync(self, partition: PartitionAssigned) -> int:
        topic = self._topic(partition.topic_id)
        configured = int(self._config(topic, MIN_IN_SYNC) or 0) or self.rules.min_in_sync
        least = min_in_sync(partition, configured)
        if not configured and partition.partition:
            first = self.partition(topic.partitions[0])
            least = min(least, more_than_half(len(first.replicas) - len(first.adding)))
        return least

    def settle(
        self,
        wanted: PartitionAssigned,
        *,
        lost: Collection[int] = (),
        leader: int | None = None,
        is_unclean: bool = False,
        is_renewed: bool = False,
    ) -> PartitionAssigned:
        """Put a partition into the draft as ``wanted``, with a leader and all else that follows from it.

        ``lost`` names replicas that no longer have what they had, ``leader`` one that is to lead if it can; of a
        companion, that is the leader of its parent.
        ``is_unclean`` lets a replica lead that may not have every committed record, if no other can. ``is_renewed``
        begins a new partition epoch even if nothing changes, so that whatever was asked for in the old one is over.
        """
        before = self.partition(self._topic(wanted.topic_id).partitions[wanted.partition])
        doubts = _doubts(wanted)
        parent = self.parent_of(wanted)
        if parent is not None and parent.leader != NO_LEADER:
            leader = parent.leader
        wanted = replace(wanted, in_sync=self._trim(wanted))
        if parent is None or not is_moving(parent):
            wanted = self._end_move(wanted)
        chosen, is_clean = self._choose_leader(wanted, leader, is_unclean=is_unclean)
        in_sync: tuple[int, ...] = wanted.in_sync
        if chosen != NO_LEADER and chosen not in in_sync:
            in_sync = (chosen,)
        if doubts and self.is_heard(chosen):
            # There is a leader: a doubtful replica has to catch up before it counts.
            in_sync = tuple(
                node_id
                for node_id in in_sync
                if node_id == chosen or (node_id not in doubts and self.is_living(node_id))
            )
            lost = {*lost, *doubts} - {chosen}
            doubts = {}
        eligible: Sequence[int] = ()
        if is_clean and len(in_sync) < self.min_in_sync(wanted):
            complete = {*before.in_sync, *before.eligible, *wanted.eligible} - {*in_sync, *lost}
            eligible = [node_id for node_id in wanted.replicas if node_id in complete]
        settled = replace(
            wanted,
            in_sync=tuple(node_id for node_id in wanted.replicas if node_id in in_sync),
            eligible=tuple(eligible),
            doubtful=tuple(doubt for node_id, doubt in doubts.items() if node_id in (*in_sync, *eligible)),
            leader=chosen,
            leader_epoch=before.leader_epoch + (chosen != before.leader),
            partition_epoch=before.partition_epoch,
        )
        if settled != before or is_renewed:
            settled = replace(settled, partition_epoch=before.partition_epoch + 1)
            self._partitions[settled.topic_id, settled.partition] = settled
        return settled

    def settle_all(self, partitions: Iterable[PartitionAssigned]) -> None:
        for partition in list(partitions):
            self.settle(partition)

    def _trim(self, partition: PartitionAssigned) -> tuple[int, ...]:
        """Fenced and doubtful nodes go, as long as one that was heard stays. The last ones stay: they have all."""
        doubts = _doubts(partition)
        sound = tuple(node_id for node_id in partition.in_sync if self.is_living(node_id) and node_id not in doubts)
        return sound if any(self.is_heard(node_id) for node_id in sound) else partition.in_sync

    def _end_move(self, partition: PartitionAssigned) -> PartitionAssigned:
        """End a move once all that come are in sync, if enough of those that stay are (KIP-455)."""
        if not is_moving(partition):
            return partition
        moved = replace(
            partition,
            replicas=tuple(node_id for node_id in partition.replicas if node_id not in partition.removing),
            in_sync=tuple(node_id for node_id in partition.in_sync if node_id not in partition.removing),
            adding=(),
            removing=(),
        )
        is_done = set(partition.adding) <= set(moved.in_sync) and len(moved.in_sync) >= self.min_in_sync(moved)
        return moved if is_done else partition

    def _choose_leader(self, partition: PartitionAssigned, wished: int | None, *, is_unclean: bool) -> tuple[int, bool]:
        """The leader, and whether it has every committed record."""
        doubts = _doubts(partition)
        sound = [node_id for node_id in partition.in_sync if node_id not in doubts]
        best = self._best(partition, sound)
        for node_id in (wished, partition.leader):
            if node_id in sound and self.is_living(node_id):
                is_there_to_stay = self.is_steady(node_id) or node_id in self.situation.silent
                if is_there_to_stay or best is None or not self.is_steady(best):
                    return node_id, True
        if best is None:
            best = self._best(partition, [node_id for node_id in partition.eligible if node_id not in doubts])
        if best is None:
            best = self._best_doubtful(partition)
        if best is not None:
            return best, True
        if is_unclean or self._config(self._topic(partition.topic_id), UNCLEAN) == "true":
            best = self._best_doubtful(partition, is_unclean=True)
            best = self._best(partition, partition.replicas) if best is None else best
        return (NO_LEADER, True) if best is None else (best, False)

    def _best_doubtful(self, partition: PartitionAssigned, *, is_unclean: bool = False) -> int | None:
        """The doubtful replica that has most, if more than half of those that had everything can be compared.

        As long as no more than a minority of them is damaged, somebody among them still has everything, and nobody
        has a later epoch or a longer log without having that too.
        """
        doubts = _doubts(partition)
        there = [doubt for node_id, doubt in doubts.items() if self.is_heard(node_id)]
        if not there or (2 * len(there) <= len({*partition.in_sync, *partition.eligible}) and not is_unclean):
            return None
        order = partition.replicas.index
        return max(there, key=lambda doubt: (doubt.last_epoch, doubt.end, -order(doubt.node_id))).node_id

    def _best(self, partition: PartitionAssigned, candidates: Sequence[int]) -> int | None:
        """The first in the order of replicas; better one that is there to stay, or at least was heard."""
        in_order = [node_id for node_id in partition.replicas if node_id in candidates and self.is_living(node_id)]
        for is_good in (self.is_steady, self.is_heard):
            for node_id in in_order:
                if is_good(node_id):
                    return node_id
        return in_order[0] if in_order else None


def is_moving(partition: PartitionAssigned) -> bool:
    return bool(partition.adding or partition.removing)


def target_of(partition: PartitionAssigned) -> tuple[int, ...]:
    """The replicas a partition has, or will have when its move is done."""
    if not partition.removing:
        return partition.replicas
    return tuple(node_id for node_id in partition.replicas if node_id not in partition.removing)


def _doubts(partition: PartitionAssigned) -> dict[int, Doubt]:
    """The doubtful ones among those that had every committed record."""
    members = {*partition.in_sync, *partition.eligible}.intersection(partition.replicas)
    return {doubt.node_id: doubt for doubt in partition.doubtful if doubt.node_id in members}
