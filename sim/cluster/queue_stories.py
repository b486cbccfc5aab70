"""Stories of queues: the order of events in which a missing rule loses a message, or delivers it when it must not.

There is one partition with three replicas, led by node 1, and so are its queues. Workers ask the node that a story
names. At the end of each story all that is left is worked off, and everything is accounted for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Final

from penstock.consensus.commands import ConfigureTopic, DrainNode
from penstock.errors import PenstockError
from penstock.testing.loop import SimulatedLoop
from sim.cluster.ledger import Delivery
from sim.cluster.queue_shape import KEYED, PLAIN, QueueShape
from sim.cluster.seeds import live_through
from sim.cluster.simulation import Shape
from sim.cluster.stage import OF_THREE, PATIENCE_S, PLACE, BrokenPromise, Stage
from sim.cluster.transactors import TransactionalProducer
from sim.cluster.workers import Worker
from sim.cluster.world import Unreachable

_QUEUE: Final = QueueShape(groups=(PLAIN,), workers=0, tries=3, visibility_timeout_ms=3_000)
_OF_PLAIN: Final = replace(OF_THREE, queue=_QUEUE)
_OF_KEYED: Final = replace(OF_THREE, queue=replace(_QUEUE, groups=(KEYED,)))
_OF_BOTH: Final = replace(OF_THREE, queue=replace(_QUEUE, groups=(PLAIN, KEYED)))
_OF_TRANSACTIONS: Final = replace(OF_THREE, queue=replace(_QUEUE, has_transactions=True))
# Followers sync all that they copy; only a node that is alone shows what a leader does not.
_OF_ONE: Final = replace(_OF_PLAIN, nodes=1, replication_factor=1, min_insync_replicas=1, assignment=((1,),))
_DEAD: Final = f"{PLACE[0]}.dlq"


class QueueStage(Stage):
    """A cluster with workers that do what a story says."""

    def __init__(self, loop: SimulatedLoop, script: Script, shape: Shape) -> None:
        super().__init__(loop, self._told, shape)
        self._story = script

    async def _told(self, _: Stage) -> None:
        self._make_readers()
        await self._story(self)

    def worker(self, name: str, group: str = PLAIN, at: int = 1) -> Worker:
        assert self.shape.queue is not None
        worker = Worker(self, name, PLACE[0], group, self.shape.queue)
        worker.at = at
        return worker

    async def take(self, worker: Worker, most: int, timeout_ms: int = 20_000) -> list[Delivery]:
        """Messages, once there are any."""
        while True:
            await self.look()
            try:
                found = await worker.receive(most, visibility_timeout_ms=timeout_ms)
            except (PenstockError, Unreachable):
                continue
            if found:
                return found

    async def try_to_take(self, worker: Worker, most: int, timeout_ms: int = 20_000) -> list[Delivery]:
        """Messages, if there are any now."""
        await self.look()
        try:
            return await worker.receive(most, visibility_timeout_ms=timeout_ms)
        except (PenstockError, Unreachable):
            return []

    async def settle(self, worker: Worker, verb: str, deliveries: Sequence[Delivery], **details: int) -> None:
        while not await worker.settle(verb, deliveries, **details):
            await self.look()

    async def power_fails_everywhere(self) -> None:
        for node in self.nodes.values():
            node.cut_power()
        for node in self.nodes.values():
            node.start()
        await self.until(self.not_ready, PATIENCE_S, "the nodes do not come back")

    async def leader_dies(self, node_id: int, *, then: int) -> None:
        """The one that leads is killed, and another one takes over."""
        self.nodes[node_id].kill()
        await self.led_by(then)


Script = Callable[[QueueStage], Awaitable[None]]


async def _untold_lease(stage: QueueStage) -> None:
    """A leader is cut off from its followers: what it leases then nobody else knows, so it may not tell of it."""
    await stage.controlled_by(2)
    await stage.write(4)
    ann, bob = stage.worker("ann", at=1), stage.worker("bob", at=2)
    stage.cut_off(1, 2, 3)
    await stage.try_to_take(ann, 2)
    await stage.led_by(2)
    await stage.take(bob, 2)
    stage.network.heal()
    await stage.in_sync(1, 2, 3)


async def inherit(stage: QueueStage) -> None:
    """Everything that can be known of a message is known to the next leader: acked, leased, waiting, extended."""
    await stage.controlled_by(2)
    await stage.write(12)
    ann, bob = stage.worker("ann", at=1), stage.worker("bob", at=2)
    found = await stage.take(ann, 10)
    await stage.settle(ann, "ack", [found[0], *found[3:6]])
    await stage.settle(ann, "nack", found[6:8], delay_ms=500)
    await stage.settle(ann, "release", found[8:9])
    (short,) = await stage.take(ann, 1, timeout_ms=400)
    await stage.settle(ann, "extend", [short], visibility_timeout_ms=15_000)
    await stage.leader_dies(1, then=2)
    await stage.take(bob, 1)
    await stage.look_for(1.0)
    await stage.try_to_take(bob, 5)
    await stage.settle(bob, "ack", [found[1]])
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)
    await stage.settle(bob, "ack", [short])


async def _extension(stage: QueueStage) -> None:
    """A lease that was extended lasts, and no other worker gets the message meanwhile."""
    await stage.write(2)
    ann, bob = stage.worker("ann"), stage.worker("bob")
    found = await stage.take(ann, 2, timeout_ms=500)
    await stage.settle(ann, "extend", found, visibility_timeout_ms=5_000)
    for _ in range(4):
        await stage.look_for(0.5)
        await stage.try_to_take(bob, 2)
    await stage.settle(ann, "ack", found)


async def _stale_receipt(stage: QueueStage) -> None:
    """A worker is too late: another one has its message by now, and only that one can say what became of it."""
    await stage.write(2)
    ann, bob = stage.worker("ann"), stage.worker("bob")
    late = await stage.take(ann, 2, timeout_ms=300)
    await stage.look_for(0.6)
    found = await stage.take(bob, 2)
    await stage.settle(ann, "ack", late[:1])
    await stage.settle(ann, "nack", late[1:])
    await stage.settle(bob, "extend", found, visibility_timeout_ms=10_000)
    await stage.settle(bob, "ack", found)


async def _open_transaction(stage: QueueStage) -> None:
    """What is written in a transaction is delivered when that is committed, and never if it is aborted."""
    await stage.write(1)
    writer, bob = TransactionalProducer(stage, "writer", [PLACE]), stage.worker("bob")
    await writer.open_one("first", PLACE)
    await stage.write(1)
    await stage.try_to_take(bob, 5)
    await writer.transact()
    await stage.try_to_take(bob, 5)


async def _power(stage: QueueStage) -> None:
    """What was acked stays so when the power fails right after, time after time."""
    await stage.write(9)
    ann = stage.worker("ann")
    for _ in range(8):
        await stage.settle(ann, "ack", await stage.take(ann, 1))
        await stage.power_fails_everywhere()


async def _jump(stage: QueueStage) -> None:
    """The clock of the leader jumps by an hour: no lease ends because of that."""
    await stage.write(3)
    ann, bob = stage.worker("ann"), stage.worker("bob")
    found = await stage.take(ann, 2)
    stage.nodes[1].clock.skew_ms += 3_600_000
    stage.history.count_fault("clock", "node 1")
    await stage.try_to_take(bob, 1, timeout_ms=300)
    await stage.look_for(0.5)  # that one ends, and time is looked at because of it
    await stage.try_to_take(bob, 3)
    await stage.settle(ann, "ack", found)


async def _long_companion(stage: QueueStage) -> None:
    """So much happens that snapshots are written and the log is cut; whoever takes over knows all of it anyway."""
    await stage.controlled_by(2)
    await stage.write(10)
    ann, kate = stage.worker("ann", at=1), stage.worker("kate", KEYED, at=1)
    held = await stage.take(ann, 5, timeout_ms=40_000)
    await stage.settle(ann, "ack", held[1:2])  # ahead of one that is not done
    await stage.settle(ann, "nack", held[2:3], delay_ms=8_000)
    of_key = await stage.take(kate, 2, timeout_ms=40_000)
    await stage.settle(kate, "nack", of_key[:1], delay_ms=8_000)
    for _ in range(30):  # these are worth snapshots
        await stage.settle(ann, "extend", held[3:], visibility_timeout_ms=40_000)
    for _ in range(12):
        await stage.settle(kate, "extend", of_key[1:], visibility_timeout_ms=40_000)
    await stage.look_for(2.5)
    for _ in range(30):
        await stage.settle(ann, "extend", held[3:], visibility_timeout_ms=40_000)
    await stage.look_for(2.5)  # the log is cut in the meantime
    await stage.leader_dies(1, then=2)
    bob, carl = stage.worker("bob", at=2), stage.worker("carl", KEYED, at=2)
    await stage.try_to_take(carl, 10)
    for _ in range(4):
        await stage.try_to_take(bob, 10)
        await stage.look_for(1.0)
    await stage.settle(bob, "ack", held[3:])
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)


async def _failing_key(stage: QueueStage) -> None:
    """A message that fails holds back all others of its key, wherever that is decided."""
    await stage.controlled_by(2)
    await stage.write(12)
    ann, bob = stage.worker("ann", KEYED, at=1), stage.worker("bob", KEYED, at=2)
    found = await stage.take(ann, 3)
    await stage.settle(ann, "nack", found[:1], delay_ms=1_500)
    await stage.settle(ann, "ack", found[1:2])
    await stage.try_to_take(ann, 10)
    await stage.leader_dies(1, then=2)
    await stage.try_to_take(bob, 10)
    await stage.look_for(1.5)
    for delivery in await stage.try_to_take(bob, 10):
        await stage.settle(bob, "ack", [delivery])
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)


async def _unwritten_letter(stage: QueueStage) -> None:
    """A message is rejected, and whoever leads dies before its dead letter is written."""
    await stage.controlled_by(2)
    await stage.write(6)
    ann = stage.worker("ann", at=1)
    (first,) = await stage.take(ann, 1)
    await stage.settle(ann, "reject", [first])
    await stage.wait_for(lambda: dead_letters(stage) == 1, "the first dead letter is not written")
    (second,) = await stage.take(ann, 1)
    # With two replicas messages go on, and dead letters have to wait for the third.
    await stage.order(ConfigureTopic(name=_DEAD, changes={"min.insync.replicas": "3"}))
    stage.nodes[3].kill()
    await stage.in_sync(1, 2)
    await stage.settle(ann, "reject", [second])
    await stage.look_for(1.0)
    stage.nodes[1].kill()
    stage.nodes[3].start()
    await stage.led_by(2)
    stage.nodes[1].start()
    await stage.in_sync(1, 2, 3)
    await stage.wait_for(lambda: dead_letters(stage) == 2, "the second dead letter is not written")


async def _unconfirmed_letter(stage: QueueStage) -> None:
    """A dead letter is written, and whoever leads dies before it has noted that: it is not written again."""
    await stage.controlled_by(2)
    await stage.write(6)
    ann = stage.worker("ann", at=1)
    found = await stage.take(ann, 3)
    for _ in range(3):
        before = dead_letters(stage)
        await stage.settle(ann, "reject", [found.pop()])
        while dead_letters(stage) == before:
            await stage.look()
        leader = stage.assigned().leader
        stage.nodes[leader].kill()
        await stage.wait_for(lambda: stage.assigned().leader != leader, "nobody takes over")  # noqa: B023
        await stage.led_by(stage.assigned().leader)
        ann.at = stage.assigned().leader
        stage.nodes[leader].start()
        await stage.in_sync(1, 2, 3)


async def _transactions(stage: QueueStage) -> None:
    """Acks in transactions: committed, aborted, held beyond the end of their lease, and through a change of leaders."""
    await stage.controlled_by(2)
    await stage.write(12)
    ann, bob = stage.worker("ann", at=1), stage.worker("bob", at=1)
    await ann.transact(await stage.take(ann, 2), is_commit=True)
    await ann.transact(await stage.take(ann, 2), is_commit=False)
    await stage.try_to_take(bob, 1)
    held = await stage.take(ann, 2, timeout_ms=500)
    working = asyncio.ensure_future(ann.transact(held, is_commit=True, pause_s=2.0))
    await stage.look_for(0.8)
    await stage.try_to_take(bob, 3)
    await stage.bounded(working, PATIENCE_S, "a transaction does not end")
    (busy,) = await stage.take(bob, 1)
    held = await stage.take(ann, 2, timeout_ms=500)
    working = asyncio.ensure_future(ann.transact(held, is_commit=True, pause_s=6.0))
    await stage.look_for(0.4)
    for _ in range(35):  # which is worth a snapshot
        await stage.settle(bob, "extend", [busy], visibility_timeout_ms=20_000)
    await stage.order(DrainNode(node_id=1, is_draining=True, with_replicas=False))
    await stage.led_by(2)
    await stage.try_to_take(bob, 1)
    await stage.bounded(working, 2 * PATIENCE_S, "a transaction does not end")
    await stage.try_to_take(bob, 5)
    await stage.order(DrainNode(node_id=1, is_draining=False, with_replicas=False))
    await stage.in_sync(1, 2, 3)


_SHAPES: Final[dict[Script, Shape]] = {
    _power: _OF_ONE,
    _long_companion: _OF_BOTH,
    _failing_key: _OF_KEYED,
    _transactions: _OF_TRANSACTIONS,
    _open_transaction: _OF_TRANSACTIONS,
}
_SCRIPTS: Final = {
    "a leader that is cut off leases": _untold_lease,
    "a new leader knows what became of every message": inherit,
    "a lease is extended": _extension,
    "a worker acks too late": _stale_receipt,
    "messages come in transactions": _open_transaction,
    "the power fails after acks": _power,
    "the clock of a leader jumps": _jump,
    "snapshots are written and companions cut": _long_companion,
    "a key fails while leaders change": _failing_key,
    "a leader dies before a dead letter is written": _unwritten_letter,
    "a leader dies after a dead letter is written": _unconfirmed_letter,
    "acks in transactions while leaders change": _transactions,
}


def tell_queues(script: Script, shape: Shape) -> None:
    """Play a story of queues; `BrokenPromise` if it goes wrong."""
    result = live_through(1, lambda loop: QueueStage(loop, script, shape))
    if result.violations:
        told = "\n".join(result.lines[-30:])
        raise BrokenPromise(f"{result.violation}\n{told}")


def _story(script: Script) -> Callable[[], None]:
    return lambda: tell_queues(script, _SHAPES.get(script, _OF_PLAIN))


QUEUE_STORIES: Final[dict[str, Callable[[], None]]] = {name: _story(script) for name, script in _SCRIPTS.items()}


# -- dead letters ------------------------------------------------------------------------------------------------------


def dead_letters(stage: QueueStage) -> int:
    """How many dead letters there are, wherever they are led."""
    for _, broker in stage.running():
        if broker.replicas.has(_DEAD, 0) and broker.replicas.get(_DEAD, 0).is_leader:
            return broker.replicas.get(_DEAD, 0).log.end_offset
    return 0
