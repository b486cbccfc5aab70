"""Nodes: how they come, are given up on, come back, step aside and go, and what that means for their partitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from penstock.consensus.commands import DoubtedReplica, DoubtReplicas, Move, RegisterNode, ReportLosses, StuckReplica
from penstock.consensus.controller.draft import MetadataDraft, target_of
from penstock.consensus.controller.moves import plan_drain, start_move
from penstock.consensus.controller.placement import Layout, usable_nodes
from penstock.consensus.records import NO_LEADER, Doubt, NodeRegistered, PartitionAssigned
from penstock.errors import DuplicateNode, NodeInUse, NodeNotFound


def register(draft: MetadataDraft, command: RegisterNode) -> int:
    """A node came up, and is fenced until it has caught up with the metadata; the epoch of its new life."""
    known = draft.nodes.get(command.node_id)
    has_other_disk = known is not None and known.directory_id not in ("", command.directory_id)
    if has_other_disk and draft.is_living(command.node_id):
        raise DuplicateNode(
            f"Node {command.node_id} is running with another data directory. Give one of the two another --node-id, "
            "or wait a few seconds if the other has just stopped."
        )
    epoch = max(draft.situation.index, 0 if known is None else known.epoch + 1)
    draft.register(
        NodeRegistered(
            node_id=command.node_id,
            epoch=epoch,
            endpoints=command.endpoints,
            rack=command.rack,
            directory_id=command.directory_id,
            is_fenced=True,
            is_draining=known is not None and known.is_draining,
        )
    )
    doubts = {(each.topic_id, each.partition): each for each in command.doubtful}
    for partition in list(draft.partitions_of(command.node_id)):
        doubted = doubts.get((partition.topic_id, partition.partition))
        if has_other_disk or command.has_lost_writes:
            _give_up_replica(draft, partition, command.node_id, is_wiped=has_other_disk)
        elif doubted is not None:
            _doubt_replica(draft, partition, command.node_id, doubted)
        else:
            draft.settle(partition)
    return epoch


def _give_up_replica(draft: MetadataDraft, partition: PartitionAssigned, node_id: int, *, is_wiped: bool) -> None:
    """A replica lacks what it had: it is neither in sync nor eligible any more.

    If no other replica has everything, none leads until such a one comes back or an unclean election is asked for:
    records that were acknowledged must not be lost without a word. A partition with one replica has no other hope, and
    goes on with what is on its disk; unless that disk is gone.
    """
    if len(partition.replicas) == 1 and not is_wiped:
        draft.settle(partition)
        return
    wanted = replace(
        partition, in_sync=_without(partition.in_sync, node_id), eligible=_without(partition.eligible, node_id)
    )
    draft.settle(wanted, lost=(node_id,))


def _doubt_replica(draft: MetadataDraft, partition: PartitionAssigned, node_id: int, doubted: DoubtedReplica) -> None:
    """A replica may lack what it had. `MetadataDraft.settle` knows what that means for its place."""
    others = [doubt for doubt in partition.doubtful if doubt.node_id != node_id]
    doubt = Doubt(node_id=node_id, last_epoch=doubted.last_epoch, end=doubted.end)
    draft.settle(replace(partition, doubtful=(*others, doubt)))


def doubt(draft: MetadataDraft, command: DoubtReplicas) -> None:
    """A running node found replicas damaged. What it leads and no other node could lead at once, it goes on to lead."""
    node_id = command.node_id
    draft.check_epoch(node_id, command.epoch)
    for doubted in command.doubtful:
        partition = draft.find(doubted.topic_id, doubted.partition)
        if partition is None:
            continue
        sound = set(partition.in_sync) - {node_id} - {each.node_id for each in partition.doubtful}
        if partition.leader == node_id and not any(draft.is_heard(other) for other in sound):
            continue
        if node_id in partition.replicas:
            _doubt_replica(draft, partition, node_id, doubted)


def lose(draft: MetadataDraft, command: ReportLosses) -> None:
    """A leader is the last replica that counts and found records damaged, or retention has passed what was lost."""
    draft.check_epoch(command.node_id, command.epoch)
    for losses in command.partitions:
        partition = draft.find(losses.topic_id, losses.partition)
        if partition is None:
            continue
        if (partition.leader, partition.leader_epoch) != (command.node_id, losses.leader_epoch):
            continue
        is_last = partition.in_sync == (command.node_id,) and not partition.eligible
        if is_last or set(losses.lost) <= set(partition.lost):
            draft.settle(replace(partition, lost=losses.lost))


def fence(draft: MetadataDraft, node_ids: Sequence[int]) -> None:
    """Nodes were not heard of for a whole session: others take over what they led."""
    for node_id in node_ids:
        draft.change_node(node_id, is_fenced=True)
    gone = set(node_ids)
    draft.settle_all(
        partition
        for partition in draft.partitions()
        if partition.leader in gone or not gone.isdisjoint(partition.in_sync)
    )


def unfence(draft: MetadataDraft, node_id: int) -> None:
    """A node is there again, and may lead what no other node could."""
    draft.change_node(node_id, is_fenced=False)
    draft.settle_all(partition for partition in draft.partitions_of(node_id) if partition.leader == NO_LEADER)


def step_aside(draft: MetadataDraft, node_id: int) -> None:
    """Let others lead what a leaving or draining node leads, where one can."""
    draft.settle_all(partition for partition in draft.partitions_of(node_id) if partition.leader == node_id)


def is_needed(draft: MetadataDraft, node_id: int) -> bool:
    """Whether a node leads anything that a living node could take over, at once or when it has caught up."""
    return any(
        partition.leader == node_id and any(other != node_id and draft.is_steady(other) for other in partition.replicas)
        for partition in draft.partitions()
    )


def drain(draft: MetadataDraft, node_id: int, *, with_replicas: bool) -> list[Move]:
    """Nothing new comes to a node, what it leads goes to others, and its replicas too where there is room."""
    check_known(draft, node_id)
    draft.change_node(node_id, is_draining=True)
    moves = plan_drain(draft, node_id) if with_replicas else []
    for move in moves:
        start_move(draft, move)
    step_aside(draft, node_id)
    return moves


def stuck_on(draft: MetadataDraft, node_id: int) -> list[StuckReplica]:
    """The replicas that stay on a node although it is drained. Companions go where their parents do."""
    found = []
    for partition in draft.partitions_of(node_id):
        if node_id in partition.removing or draft.parent_of(partition) is not None:
            continue
        topic = draft.metadata.topic_by_id(partition.topic_id)
        assert topic is not None, "a partition has a topic"
        staying = len(target_of(partition))
        others = [
            other
            for other in usable_nodes(draft.nodes)
            if other != node_id and draft.is_living(other) and not draft.nodes[other].is_draining
        ]
        reason = f"It has {staying} replicas, and only {len(others)} other nodes can take them."
        if len(others) >= staying:
            reason = "A move of its replicas has to end first."
        found.append(StuckReplica(topic=topic.name, partition=partition.partition, reason=reason))
    return found


def use_again(draft: MetadataDraft, node_id: int) -> None:
    check_known(draft, node_id)
    draft.change_node(node_id, is_draining=False)


def remove(draft: MetadataDraft, node_id: int, *, is_forced: bool) -> None:
    """A node goes for good. Forced, its replicas begin anew elsewhere, from those that others have."""
    check_known(draft, node_id)
    left = list(draft.partitions_of(node_id))
    if left and not is_forced:
        raise NodeInUse(
            f"Node {node_id} still has replicas of {len(left)} partitions. Drain it and wait until they have moved. "
            "What has nowhere to go needs another node or a lower replication factor; removed by force, the node "
            "leaves those partitions with fewer replicas."
        )
    draft.remove_node(node_id)
    layout = Layout.of(draft.metadata, draft.nodes)
    for partition in left:  # a companion comes after its parent, as it was made after it
        _replace_replica(draft, layout, partition, node_id)


def _replace_replica(draft: MetadataDraft, layout: Layout, partition: PartitionAssigned, node_id: int) -> None:
    topic = draft.metadata.topic_by_id(partition.topic_id)
    assert topic is not None
    place = (topic.name, partition.partition)
    parent = draft.parent_of(partition)
    adding, removing = partition.adding, _without(partition.removing, node_id)
    replicas = _without(partition.replicas, node_id)
    if node_id in adding:  # the move has lost its end: leave the replicas where they were
        replicas = tuple(replica for replica in replicas if replica not in adding)
        adding = removing = ()
    elif node_id not in partition.removing:
        candidates = usable_nodes(draft.nodes) if parent is None else parent.replicas
        stand_in = layout.best_addition(place, replicas, candidates)
        replicas = replicas if stand_in is None else (*replicas, stand_in)
    if set(replicas) <= set(removing):  # no replica is left to take over from those that go, so they stay
        removing = ()
    if not replicas:
        raise NodeInUse(f"Node {node_id} is the only one that could have {place[0]}-{place[1]}.")
    if parent is None:
        layout.put(place, replicas)
    wanted = replace(
        partition,
        replicas=replicas,
        in_sync=tuple(replica for replica in partition.in_sync if replica in replicas),
        eligible=tuple(replica for replica in partition.eligible if replica in replicas),
        adding=adding,
        removing=removing,
    )
    draft.settle(wanted, lost=(node_id,))


def check_known(draft: MetadataDraft, node_id: int) -> None:
    if node_id not in draft.nodes:
        raise NodeNotFound(f"There is no node {node_id}; the cluster has {sorted(draft.nodes)}.")


def _without(nodes: Iterable[int], gone: int) -> tuple[int, ...]:
    return tuple(node_id for node_id in nodes if node_id != gone)
