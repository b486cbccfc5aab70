"""Moves of replicas (KIP-455): how one begins, is called off and turns into another, and plans that even out the nodes.

While replicas move, ``replicas`` names those that are to be, in their order, and behind them those that go. The move
ends by itself, in the decision that finds the last newcomer in sync (`MetadataDraft.settle`).

A plan makes as few moves as will do, in this order: replicas leave nodes that are drained, no two replicas share a rack
that need not, every node has as many replicas as the others (give or take one), the disks are about as full, and every
node leads as much. Only the last costs nothing: naming another replica first moves no data. Replicas on fenced nodes
stay: they may come back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from penstock.consensus.commands import Move, Outcome, Outcomes
from penstock.consensus.controller.companions import check_not_companion
from penstock.consensus.controller.draft import MetadataDraft, is_moving
from penstock.consensus.controller.placement import Layout, Place, check_replicas, usable_nodes
from penstock.consensus.metadata import Topic
from penstock.consensus.records import PartitionAssigned
from penstock.errors import NoReassignment, PenstockError
from penstock.model import INTERNAL_TOPICS


def reassign(draft: MetadataDraft, moves: Iterable[Move]) -> Outcomes:
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


def start_move(draft: MetadataDraft, move: Move) -> PartitionAssigned:
    """Send a partition's replicas elsewhere, from where they were before any move that is under way."""
    assert move.replicas is not None
    check_replicas(draft.metadata, move.replicas)
    partition = draft.partition(draft.metadata.partition(move.topic, move.partition))
    return draft.redirect(partition, move.replicas)


def call_off(draft: MetadataDraft, partition: PartitionAssigned) -> PartitionAssigned:
    """Leave a partition's replicas where they were."""
    if not is_moving(partition):
        raise NoReassignment("The partition's replicas are not being moved.")
    origin = tuple(node_id for node_id in partition.replicas if node_id not in partition.adding)
    return draft.redirect(partition, origin)


def raise_internal_topics(draft: MetadataDraft) -> list[Move]:
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


def _short_of(draft: MetadataDraft, topic: Topic, wanted: int) -> list[PartitionAssigned]:
    partitions = [draft.partition(partition) for partition in topic.partitions]
    return [partition for partition in partitions if len(partition.replicas) < wanted and not is_moving(partition)]


def refusal(topic: str, partition: int, error: PenstockError, assigned: PartitionAssigned | None = None) -> Outcome:
    return Outcome(
        topic=topic, partition=partition, error=type(error).__name__, message=error.message, assigned=assigned
    )


# Disks that differ by less than this part of what they have on average are as full as each other.
SIZE_SLACK: Final = 0.1
SWAPS_MAX: Final = 1_000


def plan_drain(draft: MetadataDraft, node_id: int) -> list[Move]:
    """Moves of every replica of a node to others, as far as there is room."""
    layout = Layout.of(draft.metadata, draft.nodes)
    before = dict(layout.replicas)
    _empty(layout, node_id, _targets(draft))
    return _moves(before, layout)


def plan_rebalance(
    draft: MetadataDraft, first: Sequence[Move] = (), sizes: Mapping[Place, int] | None = None
) -> list[Move]:
    """Moves after which the nodes are even, ``first`` among them. Partitions that move already are let alone."""
    layout = Layout.of(draft.metadata, draft.nodes)
    before = dict(layout.replicas)
    for move in first:
        assert move.replicas is not None
        layout.put((move.topic, move.partition), move.replicas)
    busy = {
        (topic.name, partition.partition)
        for topic in draft.metadata.topics.values()
        for partition in topic.partitions
        if partition.adding or partition.removing
    }
    targets = _targets(draft)
    if targets:
        for node_id in sorted(draft.nodes):
            if draft.nodes[node_id].is_draining:
                _empty(layout, node_id, targets, busy)
        _spread_racks(layout, targets, busy)
        _even_replicas(layout, targets, busy)
        if sizes:
            _even_sizes(layout, targets, busy, sizes)
        _even_leaders(layout, targets, busy)
    return _moves(before, layout)


def _targets(draft: MetadataDraft) -> list[int]:
    nodes = draft.nodes
    return [node for node in usable_nodes(nodes) if draft.is_living(node) and not nodes[node].is_draining]


def _moves(before: Mapping[Place, tuple[int, ...]], layout: Layout) -> list[Move]:
    return [
        Move(topic=place[0], partition=place[1], replicas=replicas)
        for place, replicas in layout.replicas.items()
        if replicas != before[place]
    ]


def _empty(layout: Layout, node_id: int, targets: Sequence[int], busy: set[Place] | None = None) -> None:
    for place in list(layout.on_node.get(node_id, ())):
        if busy and place in busy:
            continue
        present = [replica for replica in layout.replicas[place] if replica != node_id]
        stand_in = layout.best_addition(place, present, [target for target in targets if target != node_id])
        if stand_in is not None:
            layout.swap(place, node_id, stand_in)


def _spread_racks(layout: Layout, targets: Sequence[int], busy: set[Place]) -> None:
    for place, replicas in list(layout.replicas.items()):
        if place in busy:
            continue
        crowding = layout.crowding(replicas)
        for old in reversed(replicas):
            if not crowding or old not in targets:
                continue
            present = [replica for replica in layout.replicas[place] if replica != old]
            new = layout.best_addition(place, present, [target for target in targets if target != old])
            if new is not None and layout.crowding_after(place, old, new) < crowding:
                layout.swap(place, old, new)
                crowding = layout.crowding(layout.replicas[place])


def _even_replicas(layout: Layout, targets: Sequence[int], busy: set[Place]) -> None:
    """Let nodes above the mean give to nodes below it, the most uneven pair first."""
    blocked: set[tuple[int, int]] = set()
    while True:
        pairs = [
            (layout.has(source) - layout.has(target), source, target)
            for source in targets
            for target in targets
            if layout.has(source) - layout.has(target) > 1 and (source, target) not in blocked
        ]
        if not pairs:
            return
        _, source, target = max(pairs, key=lambda pair: (pair[0], -pair[1], -pair[2]))
        if not _give(layout, source, target, targets, busy):
            blocked.add((source, target))


def _give(layout: Layout, source: int, target: int, targets: Sequence[int], busy: set[Place]) -> bool:
    total = sum(layout.has(node_id) for node_id in targets)
    mean = total // len(targets)
    ceiling = -(-total // len(targets))
    count = max(1, min(layout.has(source) - ceiling, mean - layout.has(target)))
    candidates = [place for place in layout.on_node[source] if _can_go(layout, place, source, target, busy)]
    candidates.sort(key=lambda place: layout.topic_has[place[0], target] - layout.topic_has[place[0], source])
    for place in candidates[:count]:
        layout.swap(place, source, target)
    return bool(candidates)


def _can_go(layout: Layout, place: Place, source: int, target: int, busy: set[Place]) -> bool:
    replicas = layout.replicas[place]
    return (
        place not in busy
        and target not in replicas
        and layout.crowding_after(place, source, target) <= layout.crowding(replicas)
    )


def _even_sizes(layout: Layout, targets: Sequence[int], busy: set[Place], sizes: Mapping[Place, int]) -> None:
    """Swap large replicas of the fullest node for small ones of the emptiest; the number of replicas stays."""
    use = {node: sum(sizes.get(place, 0) for place in layout.on_node.get(node, ())) for node in targets}
    for _ in range(SWAPS_MAX):
        full = max(targets, key=lambda node: (use[node], node))
        empty = min(targets, key=lambda node: (use[node], node))
        gap = use[full] - use[empty]
        if gap <= SIZE_SLACK * sum(use.values()) / len(targets):
            return
        found = _best_swap(layout, full, empty, busy, sizes, gap)
        if found is None:
            return
        large, small = found
        layout.swap(large, full, empty)
        layout.swap(small, empty, full)
        difference = sizes.get(large, 0) - sizes.get(small, 0)
        use[full] -= difference
        use[empty] += difference


def _best_swap(
    layout: Layout, full: int, empty: int, busy: set[Place], sizes: Mapping[Place, int], gap: int
) -> tuple[Place, Place] | None:
    """The swap whose difference comes nearest to half the gap, and makes it smaller."""
    giving = [place for place in layout.on_node[full] if _can_go(layout, place, full, empty, busy)]
    taking = sorted(
        (sizes.get(place, 0), place)
        for place in layout.on_node.get(empty, ())
        if _can_go(layout, place, empty, full, busy)
    )
    best: tuple[float, Place, Place] | None = None
    for large in giving:
        ideal = sizes.get(large, 0) - gap / 2
        at = bisect_left(taking, ideal, key=lambda sized: sized[0])
        for size, small in taking[max(0, at - 1) : at + 1]:
            difference = sizes.get(large, 0) - size
            if not 0 < difference < gap:
                continue
            off = abs(difference - gap / 2)
            if best is None or (off, large, small) < best:
                best = (off, large, small)
    return None if best is None else best[1:]


def _even_leaders(layout: Layout, targets: Sequence[int], busy: set[Place]) -> None:
    """Name other replicas first until every node is first as often as the others, if need be in a chain of swaps."""
    led: dict[int, dict[Place, None]] = {node_id: {} for node_id in targets}
    for place, replicas in layout.replicas.items():
        if replicas[0] in led and place not in busy:
            led[replicas[0]][place] = None
    done: set[int] = set()
    while True:
        sources = [node for node in targets if node not in done]
        if not sources:
            return
        source = max(sources, key=lambda node: (layout.leads[node], -node))
        chain = _chain(layout, led, source)
        if chain is None:
            done.add(source)
            continue
        done.clear()
        for place, old, new in chain:
            others = [replica for replica in layout.replicas[place] if replica != new]
            layout.put(place, [new, *others])
            del led[old][place]
            led[new][place] = None


def _chain(layout: Layout, led: dict[int, dict[Place, None]], source: int) -> list[tuple[Place, int, int]] | None:
    """The shortest way to hand one leadership on from node to node, to one that leads at least two less."""
    came: dict[int, tuple[Place, int] | None] = {source: None}
    queue = deque([source])
    while queue:
        node = queue.popleft()
        if layout.leads[source] - layout.leads[node] > 1:
            chain = []
            while (step := came[node]) is not None:
                place, old = step
                chain.append((place, old, node))
                node = old
            return chain
        for place in led[node]:
            for replica in layout.replicas[place][1:]:
                if replica in led and replica not in came:
                    came[replica] = (place, node)
                    queue.append(replica)
    return None
