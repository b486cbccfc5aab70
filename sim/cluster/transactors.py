"""Clients that write in transactions: some messages here, some there, all of them visible or none."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from penstock.broker.broker import Broker
from penstock.errors import DuplicateSequence, PenstockError, TransactionAbortable
from penstock.features.transactions.messages import Where
from penstock.machines.leaders import shard_of
from penstock.machines.messages import ProducerIdentity, Rejected
from penstock.model import TRANSACTIONS_TOPIC
from penstock.partitions.partition import Appended
from penstock.records import Record, encode_batch
from sim.cluster.clients import Client, committed
from sim.cluster.history import Place, Sent, State
from sim.cluster.queue_shape import key_of
from sim.cluster.world import Unreachable

if TYPE_CHECKING:
    from sim.cluster.simulation import Simulation

_TIMEOUT_MS: Final = 20_000
_TRIES: Final = 6


class TransactionalProducer(Client):
    """One transaction after the other, most of them committed. What cannot be written is aborted."""

    def __init__(self, simulation: Simulation, name: str, places: list[Place]) -> None:
        super().__init__(simulation, name)
        self._places = places
        self._identity: ProducerIdentity | None = None
        self._sequences: dict[Place, int] = {}
        self._numbers = dict.fromkeys(places, 0)
        self._count = 0

    @property
    def shard(self) -> Place:
        return TRANSACTIONS_TOPIC, shard_of(self.name, self.simulation.shape.transactions_partitions)

    async def run(self) -> None:
        while not self.simulation.is_over:
            await self.pause(0.3)
            await self.transact()
        if self._identity is None:
            await self._begin_anew()  # so that nothing is left open

    async def transact(self) -> None:
        if self._identity is None:
            await self._begin_anew()
        self._count += 1
        name = f"{self.name}#{self._count}"
        try:
            for place in self.random.sample(self._places, self.random.randint(1, len(self._places))):
                await self._write(name, place)
                await self.pause(0.05)
            is_commit = self.random.random() < 0.75
        except (PenstockError, Unreachable) as error:
            self.history.note(f"{name} gives up: {type(error).__name__}")
            is_commit = False
        await self._end(name, is_commit=is_commit)

    async def open_one(self, name: str, place: Place) -> None:
        """Begin a transaction with a message in it, and leave it open: the next one begins with its end."""
        await self._begin_anew()
        await self._write(name, place)
        self._identity = None

    async def _begin_anew(self) -> None:
        """Be somebody new: whatever was open is aborted."""

        async def work(broker: Broker) -> ProducerIdentity:
            return await broker.transactions.init(self.name, _TIMEOUT_MS)

        self._identity = await self.insist("begins", lambda: self.ask_leader(self.shard, work))
        self._sequences.clear()

    async def _write(self, name: str, place: Place) -> None:
        number = self._numbers[place]
        self._numbers[place] += 1
        sequence = self._sequences.get(place, 0)
        value = f"{name}/{number}@{place[1]}".encode()
        self.history.send(value, Sent(self.name, number, place, name))
        message = (key_of(self.name, number), value)
        identity = self._identity
        assert identity is not None
        for tries_left in reversed(range(_TRIES)):
            try:
                await self.ask_leader(
                    place, partial(self._append, place=place, identity=identity, sequence=sequence, message=message)
                )
            except (PenstockError, Unreachable) as error:
                is_worth_it = isinstance(error, Unreachable) or error.retriable
                if not tries_left or not is_worth_it:
                    raise
                await self.pause(0.3)
            else:
                self._sequences[place] = sequence + 1
                return

    async def _append(
        self,
        broker: Broker,
        *,
        place: Place,
        identity: ProducerIdentity,
        sequence: int,
        message: tuple[bytes | None, bytes],
    ) -> None:
        now_ms = broker.clock.now_ms()
        batch = memoryview(
            encode_batch(
                [Record(0, now_ms, *message)],
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=sequence,
                is_transactional=True,
            )
        )
        partition = broker.partition(*place)
        partition.check_in_sync()
        appending: asyncio.Future[Appended | None] = asyncio.get_running_loop().create_future()

        def append(missing: frozenset[Where] | Rejected) -> None:
            if appending.done():
                return
            try:
                if isinstance(missing, Rejected):
                    raise missing.error
                if missing:
                    raise TransactionAbortable("not in the transaction")
                appending.set_result(partition.append_from_client(batch, now_ms, is_durable=broker.syncs_before_ack))
            except DuplicateSequence:
                appending.set_result(None)
            except PenstockError as error:
                appending.set_exception(error)

        if partition.lacks_transaction(batch):
            broker.transactions.admit(self.name, identity, frozenset({place}), append, adds=True)
        else:
            append(frozenset())
        appended = await appending
        if appended is not None:
            await committed(self.simulation, partition, appended)

    async def _end(self, name: str, *, is_commit: bool) -> None:
        fate = self.history.transactions.get(name)
        identity = self._identity
        assert identity is not None
        if fate is not None and is_commit:
            fate.state = State.ENDING

        async def work(broker: Broker) -> ProducerIdentity:
            return await broker.transactions.end(self.name, identity, is_commit=is_commit, bumps=True)

        for _ in range(_TRIES):
            try:
                self._identity = await self.ask_leader(self.shard, work)
            except Unreachable:
                await self.pause(0.3)
            except PenstockError as error:
                self.history.note(f"{name} cannot end: {type(error).__name__}")
                if not error.retriable:
                    break
                await self.pause(0.3)
            else:
                self._sequences.clear()
                self._settle(name, State.COMMITTED if is_commit else State.ABORTED)
                return
        self._identity = None
        await self._begin_anew()
        if not is_commit:
            self._settle(name, State.ABORTED)

    def _settle(self, name: str, state: State) -> None:
        fate = self.history.transactions.get(name)
        self.history.note(f"{name} is {state.value}")
        if fate is not None:
            self.history.acked += 1
            fate.state = state
