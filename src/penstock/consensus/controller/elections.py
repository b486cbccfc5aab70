"""Leaders: those that are asked for, those given back, and the replicas that leaders find in sync."""

from __future__ import annotations

from collections.abc import Collection

from msgspec.structs import replace

from penstock.consensus.commands import ChangeInSync, ElectLeaders, InSyncChange, Outcome, Outcomes
from penstock.consensus.controller.draft import MetadataDraft
from penstock.consensus.controller.moves import refusal
from penstock.consensus.metadata import Topic
from penstock.consensus.records import NO_LEADER, PartitionAssigned
from penstock.errors import (
    ElectionNotNeeded,
    FencedLeaderEpoch,
    IneligibleReplica,
    InvalidRequest,
    LeaderNotAvailable,
    NotLeader,
    PenstockError,
    StalePartitionEpoch,
    UnknownLeaderEpoch,
    UnknownPartition,
    UnknownTopic,
)


def elect_leaders(draft: MetadataDraft, command: ElectLeaders) -> Outcomes:
    """Elections that a client asks for. Where all partitions are meant, those that need none are left out."""
    places = command.partitions
    if places is None:
        places = tuple(
            (topic.name, partition.partition)
            for topic in draft.metadata.topics.values()
            for partition in topic.partitions
        )
    outcomes = []
    for topic, index in places:
        try:
            partition = draft.partition(draft.metadata.partition(topic, index))
            elected = _elect_unclean(draft, partition) if command.is_unclean else _elect_preferred(draft, partition)
            outcomes.append(Outcome(topic=topic, partition=index, assigned=elected))
        except ElectionNotNeeded as error:
            if command.partitions is not None:
                outcomes.append(refusal(topic, index, error))
        except PenstockError as error:
            outcomes.append(refusal(topic, index, error))
    return Outcomes(outcomes=tuple(outcomes))


def _elect_preferred(draft: MetadataDraft, partition: PartitionAssigned) -> PartitionAssigned:
    preferred = partition.replicas[0]
    if partition.leader == preferred:
        raise ElectionNotNeeded(f"Node {preferred} leads the partition already.")
    elected = draft.settle(partition, leader=preferred)
    if elected.leader != preferred:
        raise LeaderNotAvailable(
            f"Node {preferred}, which should lead, cannot: it is not in sync, not there, or about to go."
        )
    return elected


def _elect_unclean(draft: MetadataDraft, partition: PartitionAssigned) -> PartitionAssigned:
    if partition.leader != NO_LEADER:
        raise ElectionNotNeeded(f"The partition has a leader, node {partition.leader}.")
    elected = draft.settle(partition, is_unclean=True)
    if elected.leader == NO_LEADER:
        raise LeaderNotAvailable(f"None of the replicas {list(partition.replicas)} is there.")
    companion = draft.companion_of(partition)
    if companion is not None and companion.leader == NO_LEADER:
        draft.settle(companion, is_unclean=True)
    return elected


def give_back_leaders(draft: MetadataDraft, unsettled: Collection[int] = ()) -> None:
    """Let partitions be led by their first replica again, where it is in sync; not yet by nodes that just came back."""
    for partition in list(draft.partitions()):
        preferred = partition.replicas[0]
        if (
            partition.leader != preferred
            and preferred in partition.in_sync
            and preferred not in unsettled
            and draft.is_steady(preferred)
        ):
            draft.settle(partition, leader=preferred)


def change_in_sync(draft: MetadataDraft, command: ChangeInSync) -> Outcomes:
    """A leader says who is in sync. Each partition has an outcome, and is told as it is now."""
    draft.check_epoch(command.node_id, command.epoch)
    return Outcomes(outcomes=tuple(_change_one(draft, command.node_id, change) for change in command.changes))


def _change_one(draft: MetadataDraft, node_id: int, change: InSyncChange) -> Outcome:
    topic = draft.metadata.topic_by_id(change.topic_id)
    if topic is None:
        name = str(change.topic_id)
        return refusal(name, change.partition, UnknownTopic(f"There is no topic with the id {change.topic_id}."))
    if not 0 <= change.partition < len(topic.partitions):
        error = UnknownPartition(f"Topic {topic.name!r} has no partition {change.partition}.")
        return refusal(topic.name, change.partition, error)
    return _change_known(draft, topic, node_id, change)


def _change_known(draft: MetadataDraft, topic: Topic, node_id: int, change: InSyncChange) -> Outcome:
    partition = draft.partition(topic.partitions[change.partition])
    try:
        _check_change(draft, partition, node_id, change)
    except PenstockError as error:
        return refusal(topic.name, change.partition, error, partition)
    members = {member for member, _ in change.in_sync}
    in_sync = tuple(replica for replica in partition.replicas if replica in members)
    # A replica that the leader finds in sync has everything, whatever was cut off it before. One that was doubtful and
    # is not found in sync has lost its place now that there is a leader: it must not stay eligible as if never cut.
    lost = [doubt.node_id for doubt in partition.doubtful if doubt.node_id not in members]
    settled = draft.settle(replace(partition, in_sync=in_sync, doubtful=()), lost=lost, is_renewed=True)
    return Outcome(topic=topic.name, partition=change.partition, assigned=settled)


def _check_change(draft: MetadataDraft, partition: PartitionAssigned, node_id: int, change: InSyncChange) -> None:
    if change.leader_epoch < partition.leader_epoch:
        raise FencedLeaderEpoch(f"The partition is in leader epoch {partition.leader_epoch}.")
    if change.leader_epoch > partition.leader_epoch:
        raise UnknownLeaderEpoch(f"The partition is only in leader epoch {partition.leader_epoch} here.")
    if partition.leader != node_id:
        raise NotLeader(f"Node {partition.leader} leads the partition, not node {node_id}.")
    if change.partition_epoch != partition.partition_epoch:
        raise StalePartitionEpoch(f"The partition is in partition epoch {partition.partition_epoch}.")
    members = [member for member, _ in change.in_sync]
    if node_id not in members or len(set(members)) != len(members) or not set(members) <= set(partition.replicas):
        raise InvalidRequest(
            f"{members} cannot be in sync: it takes the leader {node_id} and others of {list(partition.replicas)}."
        )
    for member, epoch in change.in_sync:
        known = draft.nodes.get(member)
        if known is None or known.is_fenced or known.epoch != epoch:
            raise IneligibleReplica(f"Node {member} is fenced, or no longer in epoch {epoch}.")
