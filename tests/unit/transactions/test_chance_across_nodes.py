"""Transactions of several producers while leaders and coordinators move and links break, by chance.

At the end every log must tell the same of each transaction: its records, then its end as it was decided, then the next
one. Nothing may be left open, and nothing may come behind the end it belongs before.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.unit.transactions.nodes import Cluster, play, tales, until

from penstock.errors import PenstockError
from penstock.features.transactions.messages import AddToTransaction
from penstock.machines.messages import ProducerIdentity
from penstock.model import TRANSACTIONS_TOPIC

PLACES = [("t", 0), ("t", 1), ("t", 2)]
TRANSACTIONS = 6


class Writer:
    """A producer that runs one transaction after the other, in the first protocol or the second."""

    def __init__(self, cluster: Cluster, name: str, chance: Random, *, is_second: bool) -> None:
        self.cluster = cluster
        self.name = name
        self.chance = chance
        self.is_second = is_second
        self.decided: dict[str, bool] = {}  # by transaction, whether it was committed
        self.written: dict[tuple[str, int], list[str]] = {}
        self._sequences: dict[tuple[str, int], tuple[int, int]] = {}  # epoch and the next number

    async def persist(self, step: object) -> object:
        """Do something until it works: whatever is refused here is refused for now."""
        while True:
            try:
                return await step()  # type: ignore[operator]
            except (PenstockError, ValueError):  # nobody leads at this moment, or somebody else does
                await asyncio.sleep(0.005)

    def coordinator(self) -> object:
        return self.cluster.leader(TRANSACTIONS_TOPIC, 0).transactions

    async def run(self) -> None:
        producer = await self.persist(lambda: self.coordinator().init(self.name, 60_000))  # type: ignore[attr-defined]
        assert isinstance(producer, ProducerIdentity)
        for number in range(TRANSACTIONS):
            which = f"{self.name}{number}"
            for where in self.chance.sample(PLACES, self.chance.randint(1, 3)):
                await self.persist(lambda where=where, which=which, who=producer: self.write(where, which, who))
            is_commit = self.chance.random() < 0.5
            self.decided[which] = is_commit
            producer = await self.persist(
                lambda who=producer, is_commit=is_commit: self.coordinator().end(  # type: ignore[attr-defined]
                    self.name, who, is_commit=is_commit, bumps=self.is_second
                )
            )

    async def write(self, where: tuple[str, int], which: str, producer: ProducerIdentity) -> None:
        if not self.is_second:
            await self.coordinator().ask(self.name, AddToTransaction(producer, frozenset({where})))  # type: ignore[attr-defined]
        node = self.cluster.leader(*where)

        def append() -> None:
            epoch, sequence = self._sequences.get(where, (-1, 0))
            sequence = sequence if epoch == producer.epoch else 0
            if not self.cluster.is_led(node, where):
                return
            self.cluster.write(where, producer, which, sequence=sequence)
            self._sequences[where] = (producer.epoch, sequence + 1)
            self.written.setdefault(where, []).append(which)

        verdict = await node.admit(self.name, producer, where, adds=self.is_second, then=append)
        if isinstance(verdict, PenstockError):
            raise verdict
        assert verdict == frozenset(), "what was added is there"
        if self.written.get(where, [])[-1:] != [which]:
            raise ValueError("the leader changed")


async def disturb(cluster: Cluster, chance: Random) -> None:
    while True:
        await asyncio.sleep(chance.random() * 0.02)
        what = chance.randrange(5)
        if what == 0:
            one, other = chance.sample([1, 2, 3], 2)
            cluster.exchange.cut(one, other)
        elif what == 1:
            cluster.exchange.heal()
        elif what == 2:
            cluster.move(TRANSACTIONS_TOPIC, 0, chance.randint(1, 3))
        elif what == 3:
            cluster.move("t", chance.randrange(3), chance.randint(1, 3))
        else:
            node = cluster.nodes[chance.randint(1, 3)]
            if node.backlog is None and chance.random() < 0.3:
                node.backlog = []
                asyncio.get_running_loop().call_later(0.02, node.catch_up)


@pytest.mark.parametrize("seed", range(12))
def test_every_log_tells_of_each_transaction_from_its_beginning_to_its_end(seed: int) -> None:
    async def story(cluster: Cluster) -> None:
        chance = Random(seed)
        writers = [
            Writer(cluster, name, Random(chance.random()), is_second=is_second)
            for name, is_second in (("a", True), ("b", True), ("c", False), ("d", False))
        ]
        disturbance = asyncio.ensure_future(disturb(cluster, chance))
        await asyncio.gather(*(writer.run() for writer in writers))
        disturbance.cancel()
        await asyncio.sleep(0.03)
        cluster.exchange.heal()
        await until(lambda: not any(cluster.partition(*where).transactions() for where in PLACES), 20)
        for where in PLACES:
            check(cluster, where, writers)

    play(story)


def check(cluster: Cluster, where: tuple[str, int], writers: list[Writer]) -> None:
    owners = {which: writer for writer in writers for which in writer.decided}
    open_now: dict[str, list[str]] = {}  # by producer id, the transactions that it has records of
    seen: dict[str, list[str]] = {}
    for tale in tales(cluster.partition(*where)):
        producer_id = tale.split("/")[0]
        if ": " in tale:
            which = tale.split(": ")[1]
            open_now.setdefault(producer_id, []).append(which)
            seen.setdefault(owners[which].name, []).append(which)
            continue
        for which in open_now.pop(producer_id, []):
            assert owners[which].decided[which] == tale.endswith("commits"), f"{which} in {where}"
    assert open_now == {}
    for writer in writers:
        assert seen.get(writer.name, []) == writer.written.get(where, [])
