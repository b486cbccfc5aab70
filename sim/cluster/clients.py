"""Clients of a simulated cluster: producers, readers and committers that find their way by metadata and try again.

They use the broker's own calls on whichever node leads, as a door would for them. Every client does one thing at a
time, remembers what it was promised in the `History`, and goes on until it is told to finish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

from penstock.broker.broker import Broker
from penstock.errors import (
    DuplicateSequence,
    OffsetNotAvailable,
    OffsetOutOfRange,
    OutOfOrderSequence,
    PenstockError,
    RequestTimedOut,
)
from penstock.features.groups.messages import CommitOffsets, MemberIdentity, OffsetCommit
from penstock.machines.leaders import shard_of
from penstock.model import OFFSETS_TOPIC
from penstock.partitions.partition import Appended, Partition
from penstock.priorities import Headers
from penstock.records import Record, decode_records, encode_batch, iter_batches
from penstock.records.header import CONTROL_BIT
from sim.cluster.history import Place, Sent
from sim.cluster.queue_shape import headers_of, key_of
from sim.cluster.world import Unreachable

if TYPE_CHECKING:
    from sim.cluster.simulation import BrokerNode, Simulation

ResultT = TypeVar("ResultT")
_PAUSE_MAX_S: Final = 0.1
_PATIENCE_S: Final = (0.3, 1.0, 3.0)  # how long a client waits for an answer, by chance
_READ_BYTES: Final = 64 * 1024


class Client:
    """Somebody outside who knows the nodes and learns from any of them who leads what."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.history = simulation.history
        self.name = name
        self.random = Random(simulation.random.getrandbits(64))
        self._leaders: dict[Place, int] = {}

    async def run(self) -> None:
        raise NotImplementedError

    async def pause(self, most_s: float = _PAUSE_MAX_S) -> None:
        await asyncio.sleep(self.random.random() * most_s)

    def leader_of(self, place: Place) -> BrokerNode | None:
        """Who leads, as far as this client has heard; it asks a random node where it has not."""
        node_id = self._leaders.get(place)
        if node_id is None:
            node = self.random.choice(list(self.simulation.nodes.values()))
            if node.broker is None or not node.is_ready:
                return None
            try:
                node_id = node.broker.metadata.partition(*place).leader
            except PenstockError:
                return None
            if node_id < 0:
                return None
            self._leaders[place] = node_id
        return self.simulation.nodes.get(node_id)

    async def ask_leader(self, place: Place, work: Callable[[Broker], Awaitable[ResultT]]) -> ResultT:
        """Ask whoever leads; after any error somebody else may be asked next time."""
        node = self.leader_of(place)
        if node is None:
            raise Unreachable(f"{self.name} knows nobody who leads {place}")
        try:
            async with asyncio.timeout(self.random.choice(_PATIENCE_S)):
                return await node.ask(work)
        except TimeoutError:
            self._leaders.pop(place, None)
            raise Unreachable(f"node {node.id} did not answer {self.name}") from None
        except (PenstockError, Unreachable):
            self._leaders.pop(place, None)
            raise

    async def ask_anybody(self, work: Callable[[Broker], Awaitable[ResultT]]) -> ResultT:
        try:
            async with asyncio.timeout(_PATIENCE_S[-1]):
                return await self.random.choice(list(self.simulation.nodes.values())).ask(work)
        except TimeoutError:
            raise Unreachable("no answer") from None

    async def insist(self, what: str, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Try until it works out. Whoever heals in time lets everybody finish."""
        while True:
            try:
                return await work()
            except (PenstockError, Unreachable) as error:
                self.history.note(f"{self.name} {what}: {type(error).__name__}")
                await self.pause(0.3)


class Producer(Client):
    """Idempotent, acks=all, one batch at a time to each partition, each sent until it is acknowledged."""

    def __init__(self, simulation: Simulation, name: str, places: list[Place]) -> None:
        super().__init__(simulation, name)
        self._places = places
        self._sequences = dict.fromkeys(places, 0)
        self._producer_id = -1

    async def run(self) -> None:
        await self._begin()
        await asyncio.gather(*(self._produce_on(place) for place in self._places))

    async def _begin(self) -> None:
        if self._producer_id < 0:
            find = partial(self.ask_anybody, lambda broker: broker.topics.allocate_producer_id())
            self._producer_id = await self.insist("asks for an id", find)

    async def _produce_on(self, place: Place) -> None:
        while not self.simulation.is_over:
            await self.pause()
            await self._produce(place, self.random.choice((1, 1, 1, 3)))

    async def write_everywhere(self) -> None:
        """One more message to every partition, as proof that it can be written to."""
        await self._begin()
        for place in self._places:
            await self._produce(place, 1)

    async def _produce(self, place: Place, count: int) -> None:
        first = self._sequences[place]
        values = [f"{self.name}/{number}".encode() + b"@%d" % place[1] for number in range(first, first + count)]
        for number, value in enumerate(values, first):
            self.history.send(value, Sent(self.name, number, place))

        async def once() -> int:
            return await self.ask_leader(place, lambda broker: self._append(broker, place, first, values))

        offset = await self.insist(f"produces {first} to {place}", once)
        self._sequences[place] += count
        for delta, value in enumerate(values):
            self.history.acknowledge(value, offset + delta if offset >= 0 else -1)
        self.history.note(f"{self.name} has {first}+{count} acknowledged at {place} {offset}")

    def headers_of(self, number: int) -> Headers:
        """The headers of the nth message: what lanes and fairness go by, where there are any."""
        queue = self.simulation.shape.queue
        return headers_of(self.name, number) if queue is not None and queue.has_shares else ()

    async def _append(self, broker: Broker, place: Place, sequence: int, values: list[bytes]) -> int:
        now_ms = broker.clock.now_ms()
        records = [
            Record(delta, now_ms, key_of(self.name, sequence + delta), value, self.headers_of(sequence + delta))
            for delta, value in enumerate(values)
        ]
        batch = encode_batch(records, producer_id=self._producer_id, producer_epoch=0, base_sequence=sequence)
        partition = broker.partition(*place)
        partition.check_in_sync()
        try:
            appended = partition.append_from_client(memoryview(batch), now_ms, is_durable=broker.syncs_before_ack)
        except DuplicateSequence:
            return -1
        except OutOfOrderSequence as error:
            # One batch at a time was sent, each after the last was acknowledged: the leader lacks an earlier one.
            # It may be one that has not heard yet that others lead by now.
            if partition.leader_epoch >= self.simulation.oracles.assigned(place).leader_epoch:
                self.history.violate(
                    "no acked write is lost", f"{place} refuses {self.name}/{sequence}: {error.message}"
                )
            raise
        await committed(self.simulation, partition, appended)
        return appended.base_offset


async def committed(simulation: Simulation, partition: Partition, appended: Appended) -> None:
    """Wait as acks=all waits, and look at the promise in the moment in which it is made."""
    future: asyncio.Future[PenstockError | None] = asyncio.get_running_loop().create_future()

    def done(error: PenstockError | None) -> None:
        if error is None:
            simulation.oracles.check_acked(partition, appended.next_offset)
        if not future.done():
            future.set_result(error)

    partition.when_committed(appended.next_offset, done)
    try:
        async with asyncio.timeout(_PATIENCE_S[-1]):
            error = await future
    except TimeoutError:
        raise RequestTimedOut("not committed in time") from None
    if error is not None:
        raise error


class Reader(Client):
    """Reads partitions from their beginning, over and over, and compares what it sees with what was seen before."""

    def __init__(self, simulation: Simulation, name: str, places: list[Place], *, is_committed_only: bool) -> None:
        super().__init__(simulation, name)
        self._places = places
        self._is_committed_only = is_committed_only
        self._positions = dict.fromkeys(places, 0)
        self.seen: set[bytes] = set()

    async def run(self) -> None:
        while not self.simulation.is_over:
            await self.pause(0.2)
            place = self.random.choice(self._places)
            if self.random.random() < 0.1:
                self._positions[place] = 0
            try:
                await self.read_once(place)
            except OffsetNotAvailable:
                continue
            except OffsetOutOfRange as error:
                self.history.violate(
                    "no acked write is lost",
                    f"{self.name} has read {place} to {self._positions[place]}: {error.message}",
                )
            except (PenstockError, Unreachable):
                continue

    async def read_once(self, place: Place) -> bool:
        """Read on; False if there was nothing more."""
        position = self._positions[place]
        is_committed_only = self._is_committed_only

        async def fetch(broker: Broker) -> tuple[bytes, dict[int, list[int]]] | None:
            partition = broker.partition(*place)
            partition.check_leader()
            found = partition.read(position, _READ_BYTES, is_committed_only=is_committed_only)
            if found is None:
                return None
            aborted: dict[int, list[int]] = {}
            if is_committed_only:
                for entry in partition.aborted_in(position, found.next_offset):
                    aborted.setdefault(entry.producer_id, []).append(entry.first_offset)
            return found.read(), aborted

        found = await self.ask_leader(place, fetch)
        if found is None:
            return False
        self._positions[place] = self._look(place, position, *found)
        return True

    def _look(self, place: Place, position: int, data: bytes, aborted: dict[int, list[int]]) -> int:
        """What a consumer would hand on; where to read on."""
        aborting: set[int] = set()
        for at, header in iter_batches(data):
            last = header.base_offset + header.last_offset_delta
            producer_id = header.producer_id
            starts = aborted.get(producer_id)
            if starts and starts[0] <= last:
                starts.pop(0)
                aborting.add(producer_id)
            if header.attributes & CONTROL_BIT:
                aborting.discard(producer_id)
            elif producer_id not in aborting:
                for record in decode_records(data[at : at + header.size]):
                    if record.offset >= position:
                        self.seen.add(record.value or b"")
                        self.history.see(
                            place, record.offset, record.value or b"", is_committed_only=self._is_committed_only
                        )
            position = max(position, last + 1)
        return position


class OffsetCommitter(Client):
    """Commits ever larger offsets for a group of its own, and asks for them again."""

    def __init__(self, simulation: Simulation, name: str, place: Place) -> None:
        super().__init__(simulation, name)
        self.place = place
        self._offset = 0

    @property
    def shard(self) -> Place:
        return OFFSETS_TOPIC, shard_of(self.name, self.simulation.shape.offsets_partitions)

    async def run(self) -> None:
        while not self.simulation.is_over:
            await self.pause(0.3)
            if self.random.random() < 0.6:
                await self.insist("commits", self.commit)
            else:
                await self.insist("fetches", self.fetch)

    async def commit(self) -> None:
        self._offset += 1
        offset = self._offset
        self.history.ask_offset(self.name, self.place, offset)

        async def work(broker: Broker) -> None:
            wanted = OffsetCommit(self.place[0], self.place[1], offset, -1, "", "")
            settled = await broker.groups.ask(self.name, CommitOffsets(MemberIdentity(member_id=""), (wanted,)))
            for error in settled.refused.values():
                raise error

        await self.ask_leader(self.shard, work)
        self.history.acknowledge_offset(self.name, self.place, offset)

    async def fetch(self) -> None:
        before = self.history.offsets_acked.get((self.name, self.place), -1)

        async def work(broker: Broker) -> int:
            found = broker.groups.find(self.name)
            await broker.groups.settled(self.name)
            kept = None if found is None else found.offsets.get(self.place)
            return -1 if kept is None else kept.offset

        offset = await self.ask_leader(self.shard, work)
        self.history.see_offset(self.name, self.place, offset, before)
