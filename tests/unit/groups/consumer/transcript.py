"""Stories of groups of the new protocol. To the words of classic stories (``tests.unit.groups.transcript``) come:

    topic orders 6 · topic orders gone     what topics there are
    pulse A                                a heartbeat; the first one joins, later ones tell what changed
    pulse A wants=orders,bills regex=o.* by=range instance=i1 rack=r1 rebalance=60s id=x
    pulse A holds                          A has not let go of anything yet, and says what it has
    pulse A silent                         A says nothing about what it has
    pulse A full                           A says everything again, as after an answer that got lost
    pulse A~3                              A speaks with epoch 3
    pulse A as=B                           A speaks with B's member id
    lost A …                               as ``pulse``, but A does not hear the answer
    quit A · quit A for-now                A leaves; a static member may leave for now
    read A orders/0                        A asks for an offset; ``A~3`` with epoch 3, ``nobody`` is no member

A member does at once what an answer tells it, unless it ``holds``.
"""

from __future__ import annotations

from typing import Any

from tests.unit.groups.consumer.topics import MemoryTopics
from tests.unit.groups.transcript import GROUP, Client, Transcript, milliseconds, subscription

from penstock.errors import PenstockError
from penstock.features.groups.client_metadata import read_assignment, write_assignment
from penstock.features.groups.consumer.assignors import Place
from penstock.features.groups.consumer.group import ConsumerGroup
from penstock.features.groups.consumer.ledger import load_current
from penstock.features.groups.consumer.messages import Beat, ConsumerHeartbeat
from penstock.features.groups.consumer.records import (
    ConsumerGroupKey,
    ConsumerMemberKey,
    CurrentKey,
    StoredConsumer,
    StoredConsumerGroup,
    StoredCurrent,
    StoredTarget,
    TargetKey,
)
from penstock.features.groups.coordinator import GroupShard
from penstock.features.groups.messages import SyncedGroup, SyncGroup
from penstock.features.groups.records import GroupKey, StoredGroup
from penstock.machines.messages import Rejected


def shown(places: Any) -> str:
    """Partitions as people read them: ``orders/0,1 bills/2``."""
    found: dict[str, list[int]] = {}
    for topic_id, index in sorted(places):
        found.setdefault(topic_id.removesuffix("#0"), []).append(index)
    return " ".join(f"{topic}/{','.join(map(str, indexes))}" for topic, indexes in found.items()) or "nothing"


class Consumer:
    """What a member of the new protocol remembers."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.id = name.lower()
        self.epoch = 0
        self.instance: str | None = None
        self.has: frozenset[Place] = frozenset()
        self.told: frozenset[Place] = frozenset()
        self.wishes: dict[str, str] = {"wants": "orders"}


class ConsumerTranscript(Transcript):
    """Plays a scenario line by line."""

    def __init__(self) -> None:
        self.topics = MemoryTopics()
        self.consumers: dict[str, Consumer] = {}
        self.owned: dict[str, frozenset[tuple[str, int]]] = {}  # by classic members
        super().__init__()

    def _start(self) -> GroupShard:
        now = lambda: self.now_ms  # noqa: E731
        shard = GroupShard(self.journal, self.config, now, now, lambda work: work(), self.topics)
        shard.open(shard.read_log())
        return shard

    def do_topic(self, name: str, partitions: str) -> None:
        if partitions == "gone":
            self.topics.delete(name)
        else:
            self.topics.put(name, int(partitions))

    # -- members of the new protocol ----------------------------------------------------------------------------------

    def do_pulse(self, word: str, *options: str) -> None:
        self._pulse(word, options, hears=True)

    def do_lost(self, word: str, *options: str) -> None:
        self._pulse(word, options, hears=False)

    def _pulse(self, word: str, options: tuple[str, ...], *, hears: bool) -> None:
        name, _, epoch = word.partition("~")
        consumer = self.consumers.setdefault(name, Consumer(name))
        chosen = dict(option.split("=", 1) for option in options if "=" in option)
        consumer.instance = chosen.pop("instance", consumer.instance)
        consumer.id = chosen.pop("id", consumer.id)
        speaker = self.consumers[chosen.pop("as")].id if "as" in chosen else consumer.id
        spoken = int(epoch) if epoch else consumer.epoch
        is_joining, is_full = spoken == 0, spoken == 0 or "full" in options
        has_news = bool(chosen)
        if "regex" in chosen and "wants" not in chosen and is_joining:
            consumer.wishes.pop("wants", None)
        consumer.wishes |= chosen
        wishes = consumer.wishes if is_full else chosen
        if "holds" not in options and "silent" not in options and consumer.has != consumer.told:
            consumer.has, has_news = consumer.told, True
        owned: frozenset[Place] | None = consumer.has if has_news or is_full or "holds" in options else None
        request = ConsumerHeartbeat(
            member_id=speaker,
            epoch=spoken,
            client_id=name,
            client_host="/here",
            instance_id=consumer.instance,
            rack_id=wishes.get("rack"),
            rebalance_timeout_ms=milliseconds(wishes.get("rebalance", "60s"))
            if is_full or "rebalance" in wishes
            else -1,
            topics=tuple(each for each in wishes["wants"].split(",") if each) if "wants" in wishes else None,
            regex=wishes.get("regex"),
            assignor=wishes.get("by"),
            owned=frozenset() if is_joining and not consumer.has else owned,
        )
        self._tell(consumer, request, hears=hears)

    def do_quit(self, word: str, *options: str) -> None:
        consumer = self.consumers[word]
        epoch = -2 if "for-now" in options else -1
        request = ConsumerHeartbeat(
            member_id=consumer.id, epoch=epoch, client_id=word, client_host="/here", instance_id=consumer.instance
        )
        self._tell(consumer, request, hears=True)
        consumer.epoch, consumer.has, consumer.told = 0, frozenset(), frozenset()

    def _tell(self, consumer: Consumer, request: ConsumerHeartbeat, *, hears: bool) -> None:
        def reply(answer: Beat | Rejected) -> None:
            self._note_records()
            if isinstance(answer, Rejected):
                self.out.append(f"{consumer.name}: refused: {answer.error.code}")
                return
            if not hears:
                self.out.append(f"{consumer.name}: (does not hear it)")
                return
            consumer.epoch = answer.epoch
            news = "" if answer.assignment is None else f", has {shown(answer.assignment)}"
            consumer.told = consumer.told if answer.assignment is None else answer.assignment
            self.out.append(f"{consumer.name}: epoch {answer.epoch}{news}")

        try:
            self.shard.ask(GROUP, request, reply)
        except PenstockError as error:
            self.out.append(f"{consumer.name}: refused: {error.code}")
            if error.code in ("fenced_member_epoch", "unknown_member"):
                consumer.epoch, consumer.has, consumer.told = 0, frozenset(), frozenset()

    def do_read(self, word: str, place: str) -> None:
        name, _, epoch = word.partition("~")
        group = self.shard.machines[GROUP].group
        assert isinstance(group, ConsumerGroup)
        consumer = self.consumers.get(name)
        known = (None, -1) if consumer is None else (consumer.id, int(epoch) if epoch else consumer.epoch)
        try:
            group.check_reader(*known)
        except PenstockError as error:
            self.out.append(f"{name}: refused: {error.code}")
        else:
            self.do_fetch(place)

    # -- what classic words mean here ---------------------------------------------------------------------------------

    def _client(self, word: str) -> tuple[Client, str | None]:
        """Members of the new protocol commit in the words of classic ones."""
        client, generation = super()._client(word)
        consumer = self.consumers.get(client.name)
        if consumer is not None:
            client.id, client.generation = consumer.id, consumer.epoch
        return client, generation

    def _metadata(self, client: Client, chosen: dict[str, str]) -> bytes:
        """With what it owns: nothing, unless it is cooperative."""
        owned = self.owned.get(client.name, frozenset()) if "cooperative" in chosen.get("by", "range") else frozenset()
        topics = chosen.get("wants", "orders").split(",")
        return subscription(*topics) + write_assignment(owned)[2:-4]

    def _topic_id(self, topic: str) -> str:
        shape = self.topics.find(topic)
        return "none" if shape is None else shape.topic_id

    def do_sync(self, word: str, *words: str) -> None:
        client, generation = self._client(word)
        if words:
            super().do_sync(word, *words)
            return
        request = SyncGroup(
            identity=client.identity(generation), protocol_type="consumer", protocol=None, assignments=()
        )

        def told(answer: SyncedGroup) -> str:
            self.owned[client.name] = frozenset(read_assignment(answer.assignment))
            return f"gets {shown(self.owned[client.name])}"

        self._ask(client.name, request, told)

    # -- what came out ------------------------------------------------------------------------------------------------

    def do_describe(self) -> None:
        found = self.shard.machines.get(GROUP)
        super().do_describe()
        if found is None or not isinstance(found.group, ConsumerGroup):
            return
        ledger = found.group.ledger
        for member_id in ledger.members:
            current = ledger.current_of(member_id)
            revoking = f", gives up {shown(current.revoking)}" if current.revoking else ""
            self.out.append(
                f"{member_id}: {current.state.value} in {current.epoch}, has {shown(current.assigned)}{revoking}, "
                f"is to have {shown(ledger.target_of(member_id))}"
            )

    def _describe(self, key: Any, value: Any) -> str:
        match key, value:
            case GroupKey(), StoredGroup(leader_id=None, members=(_, *_)):
                had = [f"{each.member_id} has {shown(read_assignment(each.assignment))}" for each in value.members]
                return f"generation {value.generation} without a leader, {', '.join(had)}"
            case ConsumerGroupKey(), StoredConsumerGroup():
                return f"epoch {value.epoch}, target of {value.assignment_epoch} by {value.assignor}"
            case ConsumerGroupKey(), None:
                return "the consumer group is gone"
            case ConsumerMemberKey(), StoredConsumer():
                wishes = ",".join(value.topics) + (f" /{value.regex}/" if value.regex else "")
                kind = " by the classic protocol" if value.classic else ""
                return f"{key.member} wants {wishes or 'nothing'}{kind}"
            case ConsumerMemberKey(), None:
                return f"{key.member} is gone"
            case TargetKey(), StoredTarget():
                places = [(topic_id, index) for topic_id, indexes in value.partitions.items() for index in indexes]
                return f"{key.member} is to have {shown(places)}"
            case TargetKey(), None:
                return f"{key.member} is to have nothing more"
            case CurrentKey(), StoredCurrent():
                current = load_current(value)
                revoking = f", gives up {shown(current.revoking)}" if current.revoking else ""
                return f"{key.member} {current.state.value} in {current.epoch}, has {shown(current.assigned)}{revoking}"
            case CurrentKey(), None:
                return f"{key.member} has nothing more"
        return super()._describe(key, value)
