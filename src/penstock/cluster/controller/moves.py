"""Moves of replicas (KIP-455): how one begins, is called off, and turns into another.

While replicas move, ``replicas`` names those that are to be, in their order, and behind them those that go. The move
ends by itself, in the decision that finds the last newcomer in sync (`Draft.settle`).
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.cluster.commands import Move, Outcome, Outcomes
from penstock.cluster.controller.companions import check_not_companion
from penstock.cluster.controller.draft import Draft, is_moving
from penstock.cluster.controller.layout import Layout
from penstock.cluster.controller.placement import check_replicas, usable_nodes
from penstock.cluster.metadata import Topic
from penstock.cluster.records import PartitionAssigned
from penstock.errors import NoReassignment, PenstockError
from penstock.model import INTERNAL_TOPICS


def reassign(draft: Draft, moves: Iterable[Move]) -> Outcomes:
    """Begin moves or call them off; each partition has an outcome of its own."""
    outcomes = []
    for move in moves:
        try:
            check_not_companion(move.topic)
            partition = draft.partition(draft.metadata.partition(move.topic, move.partition))
            moved = call_off(draft, partition) if move.replicas is None else start_move(draft, move)
            outcomes.append(Outcome(topic=move.topic, partition=move.partition, assigned=moved))
        except PenstockError as error:
            outcomes.append(refusal(move.topic, move.partition, error))
    return Outcomes(outcomes=tuple(outcomes))


def start_move(draft: Draft, move: Move) -> PartitionAssigned:
    """Send a partition's replicas elsewhere, from where they were before any move that is under way."""
    assert move.replicas is not None
    check_replicas(draft.metadata, move.replicas)
    partition = draft.partition(draft.metadata.partition(move.topic, move.partition))
    return draft.redirect(partition, move.replicas)


def call_off(draft: Draft, partition: PartitionAssigned) -> PartitionAssigned:
    """Leave a partition's replicas where they were."""
    if not is_moving(partition):
        raise NoReassignment("The partition's replicas are not being moved.")
    origin = tuple(node_id for node_id in partition.replicas if node_id not in partition.adding)
    return draft.redirect(partition, origin)


def raise_internal_topics(draft: Draft) -> list[Move]:
    """Moves that give the broker's own topics the replicas they should have, now that there are nodes for them."""
    candidates = [node_id for node_id in usable_nodes(draft.nodes) if draft.is_living(node_id)]
    wanted = min(draft.rules.internal_replication_factor, len(candidates))
    layout: Layout | None = None
    moves = []
    for name in sorted(INTERNAL_TOPICS & draft.metadata.topics.keys()):
        for partition in _short_of(draft, draft.metadata.topics[name], wanted):
            layout = layout or Layout.of(draft.metadata, draft.nodes)
            place = (name, partition.partition)
            replicas = list(partition.replicas)
            while len(replicas) < wanted:
                addition = layout.best_addition(place, replicas, candidates)
                if addition is None:
                    break
                replicas.append(addition)
            layout.put(place, replicas)
            moves.append(Move(topic=name, partition=partition.partition, replicas=tuple(replicas)))
    return moves


def _short_of(draft: Draft, topic: Topic, wanted: int) -> list[PartitionAssigned]:
    partitions = [draft.partition(partition) for partition in topic.partitions]
    return [partition for partition in partitions if len(partition.replicas) < wanted and not is_moving(partition)]


def refusal(topic: str, partition: int, error: PenstockError, assigned: PartitionAssigned | None = None) -> Outcome:
    return Outcome(
        topic=topic, partition=partition, error=type(error).__name__, message=error.message, assigned=assigned
    )
