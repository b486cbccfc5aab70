"""The oracles: what must hold at every moment, looked at from above, where no node can look.

- *acked is durable in enough places*: when a write is acknowledged, as many disks have it as min.insync.replicas says;
- *high watermark keeps its promise*: whoever the metadata calls in sync has everything that any leader ever called
  committed;
- *one leader an epoch*: a leader epoch of a partition has one leader, for ever;
- *leaders are let in*: no partition is given a leader whose node is fenced;
- *background tasks do not fail*: none of a node's supervised tasks has met a bug;
- *same metadata at the same index*: what one node applied at an index, every node applies there.

At the end, when all faults are over and all logs stand still, the logs are compared with each other and with what the
clients were told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.broker import Broker
from penstock.consensus.records import NO_LEADER, MetadataRecord, NodeRegistered, PartitionAssigned
from penstock.model import SCHEDULES_TOPIC, queue_parent
from penstock.partitions.partition import Partition
from penstock.records import decode_records, parse_header
from penstock.records.header import CONTROL_BIT
from sim.cluster.history import Place, State

if TYPE_CHECKING:
    from sim.cluster.simulation import BrokerNode, Simulation


class Oracles:
    """Looks at every node of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._history = simulation.history
        self._applied: dict[int, Sequence[MetadataRecord]] = {}
        self._leaders: dict[tuple[Place, int], int] = {}
        self._committed: dict[Place, int] = {}
        self._assigned: dict[Place, PartitionAssigned] = {}
        self.on_assigned: Callable[[PartitionAssigned], None] | None = None  # hears of each in the moment it is applied

    # -- metadata -----------------------------------------------------------------------------------------------------

    def watch(self, node: BrokerNode, broker: Broker) -> None:
        """A broker was made: hear of everything it applies from its first entry on."""
        broker.quorum.listen(partial(self._on_applied, node, broker), _nothing, _nothing)
        rewrite = broker.replicas.rewrite

        async def watched(partition: Partition, change: Callable[[], None], is_wanted: Callable[[], bool]) -> bool:
            is_done = await rewrite(partition, change, is_wanted)
            self._check_in_sync(node, partition)  # in the very moment: soon after, it has copied everything again
            return is_done

        broker.replicas.rewrite = watched  # type: ignore[method-assign]
        self._simulation.planning.agenda.watch(node, broker)

    def _on_applied(self, node: BrokerNode, broker: Broker, index: int, records: Sequence[MetadataRecord]) -> None:
        known = self._applied.setdefault(index, tuple(records))
        if known != tuple(records):
            self._history.violate(
                "same metadata at the same index", f"{index} is {known} and on node {node.id} {tuple(records)}"
            )
        for record in records:
            if isinstance(record, PartitionAssigned):
                topic = broker.metadata.topic_by_id(record.topic_id)
                leader = broker.metadata.nodes.get(record.leader)
                if record.leader != NO_LEADER and (leader is None or leader.is_fenced):
                    self._history.violate("leaders are let in", f"{record} is led by {leader}")
                if topic is not None:
                    place = (topic.name, record.partition)
                    latest = self._assigned.get(place)
                    if latest is None or record.partition_epoch > latest.partition_epoch:
                        self._assigned[place] = record
                        self._check_place(place, int(topic.configs.get("min.insync.replicas", 1)))
                        self._simulation.ledger.lead(topic.name, record.partition, record.leader)
                        if self.on_assigned is not None:
                            self.on_assigned(record)

    def places_in_sync(self, node_id: int) -> dict[Place, None]:
        """Where a node is in sync, or may lead as if it were, as the latest metadata says."""
        return {
            place: None
            for place, assigned in self._assigned.items()
            if node_id in (*assigned.in_sync, *assigned.eligible)
        }

    def assigned(self, place: Place) -> PartitionAssigned:
        """A partition as the latest metadata says that anybody has applied."""
        return self._assigned[place]

    def find_assigned(self, place: Place) -> PartitionAssigned | None:
        """The same, if anybody has heard of it yet."""
        return self._assigned.get(place)

    def assigned_when_registered(self, node_id: int, place: Place) -> PartitionAssigned:
        """What a partition was when a node had last registered."""
        latest, then = None, None
        topic_id = self._assigned[place].topic_id
        for _, records in sorted(self._applied.items()):
            for record in records:
                if isinstance(record, PartitionAssigned) and (record.topic_id, record.partition) == (
                    topic_id,
                    place[1],
                ):
                    latest = record
            if any(isinstance(record, NodeRegistered) and record.node_id == node_id for record in records):
                then = latest
        assert then is not None, "it has registered since the partition was made"
        return then

    # -- at every moment ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Look at everybody."""
        members = self._simulation.running()
        for node, broker in members:
            if broker.supervision.failures:
                self._history.violate(
                    "background tasks do not fail", f"{broker.supervision.troubles()} on node {node.id}"
                )
        for node, broker in members:
            for partition in broker.replicas:
                if partition.is_leader:
                    self._check_leader(node, partition)
        for node, broker in members:
            for partition in broker.replicas:
                self._check_in_sync(node, partition)

    def _check_place(self, place: Place, needed: int) -> None:
        """Who is in sync has just changed: each of them has everything, also those that are down."""
        assigned, committed = self._assigned[place], self._committed.get(place, 0)
        have = [
            node_id
            for node_id in assigned.replicas
            if max(self._durable_end(node_id, place), 0) >= committed or self._has_lost(node_id, place)
        ]
        if len(have) < min(needed, len(assigned.replicas)):
            self._history.violate(
                "acked is durable in enough places",
                f"{place} was committed up to {committed}; only {have} of {assigned.replicas} have all of that",
            )
        for node_id in assigned.in_sync:
            node = self._simulation.nodes.get(node_id)
            durable = self._durable_end(node_id, place)
            if node is not None and place not in node.wiped and max(durable, 0) < committed:
                self._history.violate(
                    "high watermark keeps its promise",
                    f"{place} was committed up to {committed}; node {node_id} is called in sync, and has {durable}",
                )

    def _has_lost(self, node_id: int, place: Place) -> bool:
        """Whether a node had everything until its disk was lost, and has not copied it again."""
        node = self._simulation.nodes.get(node_id)
        return node is not None and place in node.lost

    def _check_leader(self, node: BrokerNode, partition: Partition) -> None:
        place = (partition.id.topic, partition.id.partition)
        known = self._leaders.setdefault((place, partition.leader_epoch), node.id)
        if known != node.id:
            self._history.violate(
                "one leader an epoch", f"{known} and {node.id} lead {partition.id} in epoch {partition.leader_epoch}"
            )
        if queue_parent(place[0]) is not None or place[0] == SCHEDULES_TOPIC:
            # Leases, and that a schedule was fired, are committed without being synced. What they promise is judged by
            # what workers and planners were told.
            return
        if partition.high_watermark > self._committed.get(place, 0):
            self._committed[place] = partition.high_watermark

    def _check_in_sync(self, node: BrokerNode, partition: Partition) -> None:
        place = (partition.id.topic, partition.id.partition)
        assigned = self._assigned.get(place)
        committed = self._committed.get(place, 0)
        if partition.log.durable_offset >= committed and not node.is_damaged:
            node.lost.pop(place, None)  # damage that is yet to be found will make it shorter
        if assigned is None or partition.log.durable_offset >= committed:
            node.wiped.pop(place, None)
            return
        if node.id not in assigned.in_sync:
            if node.id not in assigned.eligible:
                node.wiped.pop(place, None)
            return
        if place in node.wiped:
            return  # nobody could tell yet that its disk is another one
        self._history.violate(
            "high watermark keeps its promise",
            f"{partition.id} was committed up to {committed}; node {node.id} is in sync {assigned.in_sync} and durable "
            f"up to {partition.log.durable_offset} of {partition.log.end_offset}",
        )

    def check_acked(self, partition: Partition, offset: int) -> None:
        """A write up to before ``offset`` is being acknowledged now."""
        place = (partition.id.topic, partition.id.partition)
        assigned = self._assigned.get(place)
        if assigned is None:
            return
        have = [node_id for node_id in assigned.replicas if self._durable_end(node_id, place) >= offset]
        needed = partition.settings.min_insync_replicas or len(assigned.replicas) // 2 + 1
        if len(have) < min(needed, len(assigned.replicas)):
            self._history.violate(
                "acked is durable in enough places",
                f"{partition.id} acknowledged up to {offset}, which only {have} of {assigned.replicas} have durable; "
                f"{needed} are needed",
            )
        missing = [node_id for node_id in assigned.in_sync if node_id not in have]
        if missing and partition.leader_epoch == assigned.leader_epoch:
            self._history.violate(
                "high watermark keeps its promise",
                f"{partition.id} acknowledged up to {offset}, which {missing} of those in sync do not have durable",
            )

    def _durable_end(self, node_id: int, place: Place) -> int:
        node = self._simulation.nodes.get(node_id)
        if node is None:
            return -1
        before = node.durable.get(place, -1)
        if node.broker is None or not node.broker.replicas.has(*place):
            return before
        durable = node.broker.replicas.get(*place).log.durable_offset
        return max(durable, before) if place in node.wiped else durable

    # -- at the end ---------------------------------------------------------------------------------------------------

    def check_metadata(self) -> None:
        """When all is calm every node has the same metadata."""
        states = {
            node.id: [repr(record) for record in broker.metadata.to_records()]
            for node, broker in self._simulation.members()
        }
        first = next(iter(states.values()))
        for node_id, state in states.items():
            if state != first:
                differing = [pair for pair in zip(first, state, strict=False) if pair[0] != pair[1]]
                self._history.violate("same metadata at the same index", f"node {node_id} differs: {differing[:2]}")

    def check_logs(self) -> None:
        """When all is calm the logs agree, and they hold what the clients were promised."""
        for place in self._simulation.all_places():
            logs = {
                node.id: _contents(broker.replicas.get(*place))
                for node, broker in self._simulation.members()
                if broker.replicas.has(*place)
            }
            leader = next((node_id for node_id in logs if self._leads(node_id, place)), None)
            if leader is None:
                self._history.violate("the cluster heals", f"nobody leads {place} at the end")
                continue
            for node_id, log in logs.items():
                self._compare(place, leader, logs[leader], node_id, log)
            if place in self._simulation.shape.written:
                self._check_promises(place, logs[leader])
        self._check_transactions()

    def _leads(self, node_id: int, place: Place) -> bool:
        broker = self._simulation.nodes[node_id].broker
        return broker is not None and broker.replicas.get(*place).is_leader

    def _compare(
        self, place: Place, leader: int, expected: dict[int, _Stored], node_id: int, log: dict[int, _Stored]
    ) -> None:
        for offset in expected.keys() | log.keys():
            if offset in log and offset in expected and log[offset] != expected[offset]:
                self._history.violate(
                    "leaders agree below the high watermark",
                    f"{place} at {offset} is {expected[offset]} on node {leader} and {log[offset]} on node {node_id}",
                )
                return

    def _check_promises(self, place: Place, log: dict[int, _Stored]) -> None:
        history = self._history
        where: dict[bytes, int] = {}
        last: dict[str, int] = {}
        for offset, (_, is_control, value) in sorted(log.items()):
            if is_control:
                continue
            sent = history.sent.get(value)
            if sent is None or sent.place != place:
                history.violate("consistent offsets", f"{place} has {value!r} at {offset}, which nobody sent there")
                continue
            if value in where:
                history.violate("no duplicates", f"{value!r} is at {where[value]} and at {offset} of {place}")
            where[value] = offset
            if sent.number <= last.get(sent.producer, -1):
                history.violate("order of a producer", f"{value!r} comes late at {place} {offset}")
            last[sent.producer] = sent.number
        for value, sent in history.sent.items():
            if sent.place == place and sent.offset is not None and value not in where:
                history.violate("no acked write is lost", f"{value!r} was acknowledged at {place} {sent.offset}")
        for offset, value in history.read.get(place, {}).items():
            if offset not in log or log[offset][2] != value:
                history.violate(
                    "consistent offsets", f"{value!r} was read or acknowledged at {place} {offset}: {log.get(offset)}"
                )

    def _check_transactions(self) -> None:
        """Everything that is visible to readers of committed transactions is whole."""
        visible = self._simulation.visible_values()
        for name, fate in self._history.transactions.items():
            seen = [value for value in fate.values if value in visible]
            if fate.state is State.COMMITTED and len(seen) < len(fate.values):
                missing = [value for value in fate.values if value not in visible]
                self._history.violate("no acked write is lost", f"{missing} of committed {name} cannot be seen")
            elif fate.state in (State.OPEN, State.ABORTED) and seen:
                self._history.violate("no aborted read", f"{seen} of {fate.state.value} {name} can be seen")
            elif 0 < len(seen) < len(fate.values):
                self._history.violate("no transaction is half visible", f"{seen} of {fate.values} of {name}")


_Stored = tuple[int, bool, bytes]  # leader epoch, whether it is a marker, value


def _contents(partition: Partition) -> dict[int, _Stored]:
    return dict(_records(partition))


def _records(partition: Partition) -> Iterator[tuple[int, _Stored]]:
    log = partition.log
    for piece in log.good_batches(log.start_offset):
        data = piece.read()
        header = parse_header(data)
        for record in decode_records(data):
            yield record.offset, (header.leader_epoch, bool(header.attributes & CONTROL_BIT), record.value or b"")


def _nothing(*_: object) -> None:
    return
