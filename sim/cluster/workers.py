"""Workers of queues in a simulated cluster: they receive on any node, and do all that workers do, good or bad.

Some acknowledge, some fail, reject, extend, give back or forget what they hold, and some acknowledge together with what
they publish, in one transaction. At the end one of each group works off all that is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.broker.broker import Broker
from penstock.errors import PenstockError, TransactionEnded, TransactionNotFound
from penstock.features.messages.publishing import OutgoingMessage
from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.features.queues.leases import PartitionLease, SettledReceipt
from penstock.features.queues.wire import GroupStats
from penstock.features.transactions.joint.publishing import Ticket, publish_into
from penstock.machines.leaders import shard_of
from penstock.model import TRANSACTIONS_TOPIC
from sim.cluster.clients import Client
from sim.cluster.history import Sent, State
from sim.cluster.ledger import Delivery
from sim.cluster.queue_shape import RESULTS, QueueShape
from sim.cluster.world import Unreachable

if TYPE_CHECKING:
    from sim.cluster.simulation import Simulation

_DEEDS: Final = (
    *("ack",) * 9,
    *("nack",) * 2,
    *("extend",) * 2,
    *("release", "reject", "forget"),
)
_TRANSACTION_MS: Final = 4_000
_TRIES: Final = 5
_TRIES_TO_OPEN: Final = 15  # one node of all can, and it is asked by chance
_PATIENCE_S: Final = 3.0
ResultT = TypeVar("ResultT")


class Worker(Client):
    """One consumer of a group. Every message is received, and one thing is done about it."""

    def __init__(self, simulation: Simulation, name: str, topic: str, group: str, shape: QueueShape) -> None:
        super().__init__(simulation, name)
        self.ledger = simulation.ledger
        self.topic = topic
        self.group = group
        self._shape = shape
        self._count = 0
        self.at: int | None = None  # the node that is asked; any one otherwise

    async def run(self) -> None:
        while not self.simulation.is_over:
            await self.pause(0.4)
            try:
                found = await self.receive(self.random.choice((1, 3, 10)), wait_ms=self.random.choice((0, 0, 200, 800)))
            except (PenstockError, Unreachable):
                continue
            if found:
                await self.pause(0.1)
                await self._do_something(found)

    async def _do_something(self, found: list[Delivery]) -> None:
        if self._shape.has_transactions and self.random.random() < 0.4:
            await self.transact(found, is_commit=self.random.random() < 0.7)
            return
        while found:
            share = [found.pop() for _ in range(self.random.randint(1, len(found)))]
            deed = self.random.choice(_DEEDS)
            if deed == "forget":
                continue
            if deed == "extend":
                await self.settle("extend", share, visibility_timeout_ms=self.random.choice((300, 1_500)))
                await self.pause(0.5)
                deed = "ack"
            delay = (
                {"delay_ms": self.random.choice((0, 100, 500))} if deed == "nack" and self.random.random() < 0.5 else {}
            )
            is_answered = await self.settle(deed, share, **delay)
            if not is_answered and deed == "ack" and self.random.random() < 0.7:
                await self.settle("ack", share)

    async def ask_anybody(self, work: Callable[[Broker], Awaitable[ResultT]]) -> ResultT:
        if self.at is None:
            return await super().ask_anybody(work)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await self.simulation.nodes[self.at].ask(work)
        except TimeoutError:
            raise Unreachable(f"node {self.at} did not answer") from None

    # -- calls --------------------------------------------------------------------------------------------------------

    async def receive(self, most: int, *, wait_ms: int = 0, visibility_timeout_ms: int | None = None) -> list[Delivery]:
        """Messages, noted as received."""
        asked_s = self.ledger.now_s()
        epochs = {place: self.ledger.epoch(place) for place in self.simulation.shape.places}
        if visibility_timeout_ms is None and self.random.random() < 0.3:
            visibility_timeout_ms = self.random.choice((200, 700, 2_000))

        async def work(broker: Broker) -> list[PartitionLease]:
            return await broker.queues.receive(
                self.topic,
                self.group,
                consumer=self.name,
                max_messages=most,
                wait_ms=wait_ms,
                visibility_timeout_ms=visibility_timeout_ms,
            )

        leases = await self.ask_anybody(work)
        timeout_ms = visibility_timeout_ms or self._shape.visibility_timeout_ms
        found = self.ledger.deliver(self.group, leases, asked_s, timeout_ms, epochs.__getitem__)
        if found:
            told = [f"{each.place[1]}:{each.offset}#{each.lease}x{each.count}" for each in found]
            self.history.note(f"{self.name} of {self.group} receives {told} until {found[0].until_s:.3f}")
        return found

    async def settle(
        self,
        verb: str,
        deliveries: Sequence[Delivery],
        *,
        delay_ms: int | None = None,
        visibility_timeout_ms: int = 0,
    ) -> bool:
        """Say what became of messages; whether there was an answer for each."""
        details = {"delay_ms": delay_ms} if verb == "nack" else {}
        if verb == "extend":
            details = {"visibility_timeout_ms": visibility_timeout_ms}
        receipts = [delivery.receipt for delivery in deliveries]
        asked_s = self.ledger.now_s()
        self.ledger.ask(verb, deliveries, timeout_ms=visibility_timeout_ms)

        async def work(broker: Broker) -> list[SettledReceipt]:
            settled: list[SettledReceipt] = await getattr(broker.queues, verb)(self.group, receipts, **details)
            return settled

        try:
            verdicts = await self.ask_anybody(work)
        except (PenstockError, Unreachable) as error:
            self.history.note(f"{self.name} {verb} {_told(deliveries)}: {type(error).__name__}")
            self.ledger.tell_nothing(verb, deliveries)
            return False
        self._note(verb, deliveries, verdicts)
        for delivery, verdict in zip(deliveries, verdicts, strict=True):
            if verdict.error is not None:
                self.ledger.tell_nothing(verb, [delivery])
            else:
                self.ledger.tell(verb, delivery, verdict.fate, asked_s, timeout_ms=visibility_timeout_ms)
        return all(verdict.error is None for verdict in verdicts)

    def _note(self, verb: str, deliveries: Sequence[Delivery], verdicts: Sequence[SettledReceipt]) -> None:
        fates = [type(verdict.error).__name__ if verdict.error else verdict.fate.value for verdict in verdicts]
        self.history.note(f"{self.name} {verb} {_told(deliveries)}: {fates}")

    # -- transactions -------------------------------------------------------------------------------------------------

    async def transact(self, deliveries: Sequence[Delivery], *, is_commit: bool, pause_s: float = 0.2) -> None:
        """Publish one result for these messages and ack them, both or neither."""
        name = await self._open()
        if name is None:
            return
        place = (TRANSACTIONS_TOPIC, shard_of(name, self.simulation.shape.transactions_partitions))
        self.ledger.enter(name, deliveries)
        try:
            await self._publish(name, place)
            is_whole = await self._ack_in(name, deliveries)
        except (PenstockError, Unreachable) as error:
            self.history.note(f"{self.name} gives {name} up: {type(error).__name__}")
            is_whole = False
        await self.pause(pause_s)
        await self._end(name, place, is_commit=is_commit and is_whole)

    async def _open(self) -> str | None:
        """Open a transaction, which not every node can; nothing if none can now."""
        for _ in range(_TRIES_TO_OPEN):
            try:
                return (await super().ask_anybody(lambda broker: broker.joint.open(_TRANSACTION_MS))).id
            except (PenstockError, Unreachable):
                await self.pause(0.02)
        return None

    async def _publish(self, name: str, place: tuple[str, int]) -> None:
        value = f"{self.name}/{self._count}/{name}".encode()
        self.history.send(value, Sent(self.name, self._count, RESULTS, name))
        self._count += 1
        message = OutgoingMessage(value=value, partition=RESULTS[1])

        async def work(broker: Broker) -> None:
            for outcome in await publish_into(broker.ports, broker.joint, Ticket(name), RESULTS[0], [message]):
                if isinstance(outcome, PenstockError):
                    raise outcome

        await self.ask_leader(place, work)

    async def _ack_in(self, name: str, deliveries: Sequence[Delivery]) -> bool:
        receipts = [delivery.receipt for delivery in deliveries]

        async def work(broker: Broker) -> list[SettledReceipt]:
            return await broker.queues.ack(self.group, receipts, transaction=name)

        verdicts = await self.ask_anybody(work)
        self._note(f"acks in {name}", deliveries, verdicts)
        return all(verdict.error is None and verdict.fate is ReceiptOutcome.DONE for verdict in verdicts)

    async def _end(self, name: str, place: tuple[str, int], *, is_commit: bool) -> None:
        fate = self.history.transactions[name]
        if is_commit:
            fate.state = State.ENDING
            self.ledger.ask_commit(name)

        async def work(broker: Broker) -> None:
            await (broker.joint.commit(name) if is_commit else broker.joint.abort(name))

        for _ in range(_TRIES):
            try:
                await self.ask_leader(place, work)
            except (PenstockError, Unreachable) as error:
                self.history.note(f"{self.name} cannot end {name}: {type(error).__name__}")
                if isinstance(error, (TransactionEnded, TransactionNotFound)):
                    return  # its time was over, and it was aborted; nothing more is known
                await self.pause(0.3)
            else:
                fate.state = State.COMMITTED if is_commit else State.ABORTED
                self.history.note(f"{self.name} has ended {name}: {fate.state.value}")
                if is_commit:
                    self.ledger.tell_committed(name)
                return

    # -- the end ------------------------------------------------------------------------------------------------------

    async def work_off(self) -> None:
        """Ack all that is left, until nothing is."""
        while not await self.insist("looks", self._is_done):
            try:
                found = await self.receive(100, wait_ms=200, visibility_timeout_ms=1_000)
            except (PenstockError, Unreachable):
                continue
            if found:
                await self.settle("ack", found)

    async def _is_done(self) -> bool:
        stats = await self.ask_anybody(partial(_stats_of, topic=self.topic, group=self.group))
        places = [place for place in self.simulation.shape.places if place[0] == self.topic]
        return len(stats.partitions) == len(places) and all(each.committed >= each.end for each in stats.partitions)


async def _stats_of(broker: Broker, *, topic: str, group: str) -> GroupStats:
    (stats,) = await broker.queues.stats(topic, group)
    return stats


async def declare(broker: Broker, *, topic: str, group: str, shape: QueueShape) -> None:
    """Have a group begin, with its own settings."""
    await broker.queues.declare(topic, group, settings=shape.settings(group))


def _told(deliveries: Sequence[Delivery]) -> str:
    return ", ".join(f"{each.place[1]}:{each.offset}#{each.lease}" for each in deliveries)
