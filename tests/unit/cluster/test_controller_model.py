"""The controller against random histories, with a dumb twin of the data: logs as lists, and what was committed.

The twin knows nothing of eligibility or epochs. It appends on leaders, copies to followers, and counts a record as
committed when every replica in sync has it and enough are in sync, as a leader would. Whoever is elected cleanly must
have every committed record. One of the topics has a companion, which has to be where its parent is and to be led alike.
"""

from __future__ import annotations

from uuid import UUID

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.consensus.commands import (
    AddPartitions,
    ChangeInSync,
    Command,
    ConfigureTopic,
    CreateTopic,
    DeleteTopic,
    DoubtedReplica,
    DrainNode,
    ElectLeaders,
    InSyncChange,
    Move,
    Outcomes,
    Reassign,
    Rebalance,
    RegisterNode,
    RemoveNode,
)
from penstock.consensus.controller import ControllerView, MetadataDraft, decide
from penstock.consensus.controller.draft import target_of
from penstock.consensus.controller.elections import give_back_leaders
from penstock.consensus.controller.moves import raise_internal_topics, start_move
from penstock.consensus.controller.nodes import fence, is_needed, step_aside, unfence
from penstock.consensus.metadata import ClusterMetadata, Topic
from penstock.consensus.records import (
    NO_LEADER,
    MetadataRecord,
    NodeRegistered,
    PartitionAssigned,
    decode_records,
    encode_records,
)
from penstock.consensus.topic_config import TopicSettings, resolve
from penstock.errors import IneligibleReplica, PenstockError
from penstock.model import OFFSETS_TOPIC, queue_parent, queue_state_topic

NODES = (1, 2, 3, 4)
TOPICS = ("a", OFFSETS_TOPIC, queue_state_topic("a"))
DEFAULTS = TopicSettings(min_insync_replicas=0)

nodes = st.sampled_from(NODES)
topics = st.sampled_from(TOPICS)
indexes = st.integers(0, 1)
Key = tuple[UUID, int]


class ControllerModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.metadata = ClusterMetadata()
        self.index = 0
        self.running: dict[int, int] = {}  # the processes that run, by node, with their epochs
        self.disks: dict[int, str] = {}
        self.epochs: dict[int, int] = {}  # the highest each node ever had
        self.silent: set[int] = set()
        self.leaving: set[int] = set()
        self.logs: dict[tuple[Key, int], list[int]] = {}
        self.committed: dict[Key, list[int]] = {}
        self.written = 0
        self.epoch_of: dict[int, int] = {}  # the leader epoch that each record was written in
        self.damaged: dict[Key, set[int]] = {}  # replicas that lack what they had, of which nobody made anything yet
        self.created = 0
        self.earlier: list[ChangeInSync] = []

    # -- the world ----------------------------------------------------------------------------------------------------

    def situation(self) -> ControllerView:
        return ControllerView(index=self.index, leaving=frozenset(self.leaving), silent=frozenset(self.silent))

    def draft(self) -> MetadataDraft:
        return MetadataDraft(self.metadata, situation=self.situation())

    def obey(self, command: Command) -> object:
        """Decide and commit; None if it was refused."""
        before = self.metadata.to_records()
        try:
            decision = decide(self.metadata, command, situation=self.situation())
        except PenstockError:
            assert self.metadata.to_records() == before
            return None
        assert self.metadata.to_records() == before, "a decision changes nothing by itself"
        is_unclean = isinstance(command, ElectLeaders) and command.is_unclean
        self.commit(decision.records, is_unclean=is_unclean, is_renewal=isinstance(command, ChangeInSync))
        return decision.answer

    def commit(self, records: list[MetadataRecord], *, is_unclean: bool = False, is_renewal: bool = False) -> None:
        for record in records:
            if isinstance(record, PartitionAssigned):
                self.check_step(record, is_unclean=is_unclean, is_renewal=is_renewal)
            if isinstance(record, NodeRegistered):
                assert record.epoch > self.epochs.get(record.node_id, -1), "every life has an epoch of its own"
                self.epochs[record.node_id] = record.epoch
            self.metadata.apply(*decode_records(encode_records([record])))
        self.index += bool(records)
        self.advance()

    def check_step(self, after: PartitionAssigned, *, is_unclean: bool, is_renewal: bool) -> None:
        topic = self.metadata.topic_by_id(after.topic_id)
        assert topic is not None
        if after.partition == len(topic.partitions):
            return
        before = topic.partitions[after.partition]
        assert after.partition_epoch > before.partition_epoch
        is_other_leader = after.leader != before.leader
        assert after.leader_epoch >= before.leader_epoch + is_other_leader
        if not is_other_leader and after.leader_epoch > before.leader_epoch:
            raise AssertionError("a leader epoch without a new leader")
        what = [
            (one.replicas, one.in_sync, one.leader, one.adding, one.removing, one.eligible, one.doubtful)
            for one in (before, after)
        ]
        assert is_renewal or what[0] != what[1], "a record that changes nothing"
        if is_other_leader and after.leader != NO_LEADER:
            self.check_election(before, after, is_unclean=is_unclean)

    def check_election(self, before: PartitionAssigned, after: PartitionAssigned, *, is_unclean: bool) -> None:
        key = (after.topic_id, after.partition)
        log, committed = self.logs.setdefault((key, after.leader), []), self.committed.setdefault(key, [])
        if is_unclean and after.leader not in (*before.in_sync, *before.eligible):
            committed[:] = [record for record in committed if record in log]
        assert log[: len(committed)] == committed, "a leader lacks what was committed"

    def partitions(self) -> list[tuple[Topic, PartitionAssigned]]:
        return [(topic, partition) for topic in self.metadata.topics.values() for partition in topic.partitions]

    def log(self, partition: PartitionAssigned, node_id: int) -> list[int]:
        return self.logs.setdefault(((partition.topic_id, partition.partition), node_id), [])

    def is_led(self, partition: PartitionAssigned) -> bool:
        """Whether the process that leads runs, and is the one that was elected."""
        leader = self.metadata.nodes.get(partition.leader)
        return leader is not None and self.running.get(partition.leader) == leader.epoch

    def advance(self) -> None:
        """Commit whatever a leader would."""
        for topic, partition in self.partitions():
            least = resolve(DEFAULTS, topic.configs, topic.replication_factor).min_insync_replicas
            if not self.is_led(partition) or len(partition.in_sync) < least:
                continue
            agreed = self.log(partition, partition.leader)
            for node_id in partition.in_sync:
                other = self.log(partition, node_id)
                same = 0
                while same < min(len(agreed), len(other)) and agreed[same] == other[same]:
                    same += 1
                agreed = agreed[:same]
            committed = self.committed.setdefault((partition.topic_id, partition.partition), [])
            if len(agreed) > len(committed):
                committed[:] = agreed

    # -- topics -------------------------------------------------------------------------------------------------------

    @initialize(count=st.sampled_from([1, 3, 3, 4]), least=st.sampled_from(["1", "2", None]))
    def begin(self, count: int, least: str | None) -> None:
        for node_id in NODES[:count]:
            self.start(node_id, has_lost_writes=False, is_wiped=False)
            self.beat(node_id)
        self.create("a", 2, None, least)
        self.create(queue_state_topic("a"), 1, None, None)

    @rule(
        name=topics,
        partitions=st.integers(1, 2),
        factor=st.one_of(st.none(), st.integers(1, 4)),
        least=st.sampled_from(["1", "2", "3", None]),
    )
    def create(self, name: str, partitions: int, factor: int | None, least: str | None) -> None:
        self.created += 1
        configs = {} if least is None else {"min.insync.replicas": least}
        command = CreateTopic(
            name=name,
            topic_id=UUID(int=self.created),
            partitions=partitions,
            replication_factor=factor,
            configs=configs,
        )
        if self.obey(command) is not None:
            assert not decide(self.metadata, command).records, "asked again, there is nothing to do"

    @rule(name=topics)
    def delete(self, name: str) -> None:
        self.obey(DeleteTopic(name=name))

    @rule(name=topics)
    def grow(self, name: str) -> None:
        self.obey(AddPartitions(name=name, count=2))

    @rule(name=topics, least=st.sampled_from(["1", "2", "3", None]))
    def configure(self, name: str, least: str | None) -> None:
        self.obey(ConfigureTopic(name=name, changes={"min.insync.replicas": least}))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def damage(self, node_id: int) -> tuple[DoubtedReplica, ...]:
        """Cut the last record off a node's replicas where no other is damaged; what it says about all of them."""
        doubtful = []
        for _, partition in self.partitions():
            if node_id not in partition.replicas or len(partition.replicas) == 1:
                continue
            key = (partition.topic_id, partition.partition)
            log = self.log(partition, node_id)
            members = {*partition.in_sync, *partition.eligible}
            doubts = {doubt.node_id for doubt in partition.doubtful}
            damaged = self.damaged.setdefault(key, set())
            damaged &= members & doubts
            if log and len(members) > 1 and damaged <= {node_id}:
                log.pop()
                damaged.add(node_id)
            last_epoch = self.epoch_of[log[-1]] if log else -1
            doubtful.append(
                DoubtedReplica(
                    topic_id=partition.topic_id, partition=partition.partition, last_epoch=last_epoch, end=len(log)
                )
            )
        return tuple(doubtful)

    @rule(node_id=nodes, has_lost_writes=st.booleans(), is_wiped=st.booleans(), is_damaged=st.booleans())
    def start(self, node_id: int, has_lost_writes: bool, is_wiped: bool, is_damaged: bool = False) -> None:
        """A process begins, on the disk that it had or on a new one."""
        known = self.metadata.nodes.get(node_id)
        if is_wiped and known is not None and not known.is_fenced:
            return  # refused: see the tables
        if (is_wiped or has_lost_writes) and self.is_last_sound(node_id):
            return  # more damage at once than anybody promises to survive
        if is_wiped:
            self.disks[node_id] = f"{node_id}-{self.index}"
        self.running.pop(node_id, None)
        self.leaving.discard(node_id)
        for _, partition in self.partitions():
            log = self.log(partition, node_id)
            is_alone = len(partition.replicas) == 1 and node_id in partition.replicas
            if is_wiped:
                log.clear()
            elif has_lost_writes and log:
                log.pop()
                if is_alone:  # what is on its disk is all there is, and nobody else to ask
                    del self.committed.setdefault((partition.topic_id, partition.partition), [])[len(log) :]
        command = RegisterNode(
            node_id=node_id,
            directory_id=self.disks.setdefault(node_id, f"{node_id}-first"),
            endpoints=(),
            rack="ab"[node_id % 2],
            has_lost_writes=has_lost_writes,
            doubtful=self.damage(node_id) if is_damaged and not is_wiped and not has_lost_writes else (),
        )
        self.obey(command)
        self.running[node_id] = self.metadata.nodes[node_id].epoch
        self.silent.discard(node_id)

    def is_last_sound(self, node_id: int) -> bool:
        """Whether all others that should have everything of a partition are doubtful."""
        for _, partition in self.partitions():
            members = {*partition.in_sync, *partition.eligible}
            doubtful = {doubt.node_id for doubt in partition.doubtful}
            if node_id in members and members - {node_id} and members - {node_id} <= doubtful:
                return True
        return False

    @rule(node_id=nodes)
    def crash(self, node_id: int) -> None:
        self.running.pop(node_id, None)

    @rule(gone=st.sets(nodes, min_size=1, max_size=2))
    def lose(self, gone: set[int]) -> None:
        """Nodes die, and are given up on one after the other."""
        for node_id in sorted(gone):
            self.crash(node_id)
            self.expire({node_id})

    @rule(node_id=nodes, has_lost_writes=st.booleans(), is_wiped=st.booleans(), is_damaged=st.booleans())
    def come_back(self, node_id: int, has_lost_writes: bool, is_wiped: bool, is_damaged: bool) -> None:
        self.start(node_id, has_lost_writes, is_wiped, is_damaged)
        self.beat(node_id)

    @rule()
    def catch_up(self) -> None:
        """Whoever can be in sync is."""
        for node_id in NODES:
            self.fetch(node_id)
        for topic, partition in self.partitions():
            living = {node_id for node_id in self.running if not self.metadata.nodes[node_id].is_fenced}
            self.change_in_sync(topic.name, partition.partition, living, is_late=False)

    @rule(gone=st.sets(nodes, min_size=1))
    def expire(self, gone: set[int]) -> None:
        draft = self.draft()
        fence(draft, [node_id for node_id in sorted(gone) if node_id in self.metadata.nodes])
        self.commit(draft.records())

    @rule(node_id=nodes)
    def beat(self, node_id: int) -> None:
        node = self.metadata.nodes.get(node_id)
        if node is None or self.running.get(node_id) != node.epoch or node_id in self.leaving:
            return
        self.silent.discard(node_id)
        draft = self.draft()
        unfence(draft, node_id)
        self.commit(draft.records())

    @rule(node_id=nodes)
    def leave(self, node_id: int) -> None:
        node = self.metadata.nodes.get(node_id)
        if node is None or self.running.get(node_id) != node.epoch or node.is_fenced:
            return
        self.leaving.add(node_id)
        draft = self.draft()
        step_aside(draft, node_id)
        self.commit(draft.records())
        draft = self.draft()
        if not is_needed(draft, node_id):
            fence(draft, [node_id])
            self.commit(draft.records())

    @rule()
    def another_controller(self) -> None:
        self.silent = set(self.metadata.nodes)
        self.leaving.clear()

    @rule(node_id=nodes, is_draining=st.booleans(), with_replicas=st.booleans())
    def drain(self, node_id: int, is_draining: bool, with_replicas: bool) -> None:
        self.obey(DrainNode(node_id=node_id, is_draining=is_draining, with_replicas=with_replicas))

    @rule(node_id=nodes, is_forced=st.booleans())
    def remove(self, node_id: int, is_forced: bool) -> None:
        if self.is_last_sound(node_id):
            return
        self.obey(RemoveNode(node_id=node_id, is_forced=is_forced))
        if node_id not in self.metadata.nodes:
            self.running.pop(node_id, None)
            assert not [partition for _, partition in self.partitions() if node_id in partition.replicas]

    # -- data ---------------------------------------------------------------------------------------------------------

    @rule(slow=st.sets(nodes, max_size=2))
    def produce(self, slow: set[int]) -> None:
        """Every leader gets a record, and everybody who is not slow copies it."""
        for _, partition in self.partitions():
            if self.is_led(partition):
                self.written += 1
                self.log(partition, partition.leader).append(self.written)
                self.epoch_of[self.written] = partition.leader_epoch
        for node_id in NODES:
            if node_id not in slow:
                self.fetch(node_id)

    @rule(node_id=nodes)
    def fetch(self, node_id: int) -> None:
        """A node copies from every leader that it follows."""
        for _, partition in self.partitions():
            if node_id in partition.replicas and node_id in self.running and self.is_led(partition):
                self.log(partition, node_id)[:] = self.log(partition, partition.leader)
        self.advance()

    @rule(name=topics, index=indexes, kept=st.sets(nodes), is_late=st.booleans())
    def change_in_sync(self, name: str, index: int, kept: set[int], is_late: bool) -> None:
        partition = self.find(name, index)
        if partition is None or not self.is_led(partition):
            return
        leader = partition.leader
        full = self.log(partition, leader)
        members = [
            node_id
            for node_id in partition.replicas
            if node_id == leader or (node_id in kept and self.log(partition, node_id) == full)
        ]
        change = InSyncChange(
            topic_id=partition.topic_id,
            partition=index,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            in_sync=tuple((member, self.metadata.nodes[member].epoch) for member in members),
        )
        command = ChangeInSync(node_id=leader, epoch=self.metadata.nodes[leader].epoch, changes=(change,))
        self.earlier.append(command)
        if is_late:
            return  # it may arrive at any time, or never
        answer = self.obey(command)
        assert isinstance(answer, Outcomes)
        (outcome,) = answer.outcomes
        is_ineligible = any(self.metadata.nodes[member].is_fenced for member in members)
        assert outcome.error == (IneligibleReplica.__name__ if is_ineligible else None)

    @precondition(lambda self: self.earlier)
    @rule(data=st.data())
    def change_in_sync_late(self, data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(self.earlier[-3:]))
        (change,) = command.changes
        topic = self.metadata.topic_by_id(change.topic_id)
        answer = self.obey(command)
        if answer is None or topic is None:
            return
        assert isinstance(answer, Outcomes)
        now = topic.partitions[change.partition]
        if answer.outcomes[0].error is None and now.partition_epoch != change.partition_epoch:
            assert now.partition_epoch == change.partition_epoch + 1

    def find(self, name: str, index: int) -> PartitionAssigned | None:
        topic = self.metadata.topics.get(name)
        return topic.partitions[index] if topic is not None and index < len(topic.partitions) else None

    # -- leaders and moves --------------------------------------------------------------------------------------------

    @rule(name=topics, index=indexes, replicas=st.one_of(st.none(), st.lists(nodes, min_size=1, unique=True)))
    def reassign(self, name: str, index: int, replicas: list[int] | None) -> None:
        move = Move(topic=name, partition=index, replicas=None if replicas is None else tuple(replicas))
        answer = self.obey(Reassign(moves=(move,)))
        partition = self.find(name, index)
        assert isinstance(answer, Outcomes)
        if partition is not None and replicas is not None and answer.outcomes[0].error is None:
            target = [replica for replica in partition.replicas if replica not in partition.removing]
            assert target == replicas

    @rule(name=st.one_of(st.none(), topics), index=indexes, is_unclean=st.booleans())
    def elect(self, name: str | None, index: int, is_unclean: bool) -> None:
        places = None if name is None else ((name, index),)
        answer = self.obey(ElectLeaders(partitions=places, is_unclean=is_unclean))
        assert isinstance(answer, Outcomes)
        for outcome in answer.outcomes:
            if outcome.error is None:
                partition = self.metadata.partition(outcome.topic, outcome.partition)
                assert partition == outcome.assigned
                assert partition.leader != NO_LEADER
                assert is_unclean or partition.leader == partition.replicas[0]

    @rule()
    def give_back(self) -> None:
        draft = self.draft()
        give_back_leaders(draft)
        draft.rejoin_companions()
        self.commit(draft.records())
        again = self.draft()
        give_back_leaders(again)
        again.rejoin_companions()
        assert again.records() == []
        for topic, partition in self.partitions():
            parent = queue_parent(topic.name)
            if parent is not None:
                self.check_together(partition, self.metadata.partition(parent, partition.partition))

    def check_together(self, companion: PartitionAssigned, parent: PartitionAssigned) -> None:
        """After the upkeep, a companion is where its parent is, or cannot be yet."""
        stays = {*target_of(parent), *(node for node in companion.replicas if node not in companion.adding)}
        if stays & set(companion.in_sync):
            assert target_of(companion) == target_of(parent)
        doubtful = {doubt.node_id for doubt in companion.doubtful}
        can_lead = parent.leader in companion.in_sync and parent.leader not in doubtful
        if can_lead and self.draft().is_steady(parent.leader):
            assert companion.leader == parent.leader

    @rule()
    def raise_internal(self) -> None:
        draft = self.draft()
        for move in raise_internal_topics(draft):
            start_move(draft, move)
        self.commit(draft.records())

    @rule()
    def rebalance(self) -> None:
        planned = self.obey(Rebalance(is_only_planned=True))
        assert self.obey(Rebalance()) == planned

    def teardown(self) -> None:
        rebuilt = ClusterMetadata()
        for record in self.metadata.to_records():
            rebuilt.apply(record)
        assert rebuilt.to_records() == self.metadata.to_records()

    # -- laws ---------------------------------------------------------------------------------------------------------

    @invariant()
    def partitions_are_sound(self) -> None:
        for topic, partition in self.partitions():
            replicas, in_sync = set(partition.replicas), set(partition.in_sync)
            assert len(replicas) == len(partition.replicas) > 0
            assert in_sync <= replicas
            assert set(partition.eligible) <= replicas - in_sync
            assert set(partition.adding) <= replicas
            assert set(partition.removing) <= replicas
            assert not set(partition.adding) & set(partition.removing)
            assert replicas - set(partition.removing), "something stays"
            assert replicas <= self.metadata.nodes.keys()
            if partition.leader != NO_LEADER:
                assert partition.leader in in_sync
                assert not self.metadata.nodes[partition.leader].is_fenced
            else:
                members = in_sync | set(partition.eligible)
                doubtful = {doubt.node_id for doubt in partition.doubtful}
                living = {node_id for node_id in members if not self.metadata.nodes[node_id].is_fenced}
                assert living <= doubtful <= members, "somebody could lead"
                assert 2 * len(living - self.silent) <= len(members), "enough are there to tell who has most"
            least = resolve(DEFAULTS, topic.configs, topic.replication_factor).min_insync_replicas
            if partition.eligible:
                assert len(in_sync) < least, "eligible only where nothing can be committed"

    @invariant()
    def companions_are_as_large_and_as_safe_as_their_parents(self) -> None:
        for topic in self.metadata.topics.values():
            name = queue_parent(topic.name)
            if name is not None:
                parent = self.metadata.topics[name]
                assert len(topic.partitions) == len(parent.partitions)
                key = "min.insync.replicas"
                assert topic.configs.get(key) == parent.configs.get(key)

    @invariant()
    def everything_committed_is_where_it_should_be(self) -> None:
        for _, partition in self.partitions():
            committed = self.committed.get((partition.topic_id, partition.partition), [])
            doubtful = {doubt.node_id for doubt in partition.doubtful}  # these say themselves that they may lack some
            for node_id in {*partition.in_sync, *partition.eligible} - doubtful:
                log = self.log(partition, node_id)
                assert log[: len(committed)] == committed, f"node {node_id} lacks what was committed"


TestControllerModel = ControllerModel.TestCase
TestControllerModel.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
