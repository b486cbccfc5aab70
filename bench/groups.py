"""The workloads about consumer groups: how long a large group takes to settle, and whether many groups stay quiet.

A group is settled when every member has a share of one and the same generation, and the shares together are all
partitions, each once. Anything else that is still so at the time limit is an error, and leaves no figure.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from bench.client import LoadError, Numbers
from bench.members import Link, Manner, Member, await_coordinator
from bench.summary import median, percentile
from bench.targets import Node
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import groups as wire

# Members hear of a rebalance at their next heartbeat, so with a client's usual 3 s the figure would be that.
JOIN_HEARTBEAT_S = 0.1
HEARTBEAT_S = 3.0
# A quarter of the usual session: a coordinator that falls behind with heartbeats is found out sooner.
SESSION_MS = 10_000


@dataclass(frozen=True, slots=True)
class Crowd:
    """A group and its members."""

    port: int
    name: str
    manner: Manner
    members: list[Member]
    moved: asyncio.Event

    @classmethod
    def of(cls, port: int, name: str, manner: Manner) -> Crowd:
        return cls(port, name, manner, [], asyncio.Event())

    async def add(self, *, phase: float) -> float:
        """One more member; the time of its first request."""
        member = Member(self.port, self.name, self.manner, phase, self.moved.set)
        self.members.append(member)
        return await member.start()

    async def settle(self, limit_s: float) -> float:
        """Wait until the group is settled; the time at which the last member got its share."""
        deadline = time.monotonic() + limit_s
        while not self.is_settled:
            self.moved.clear()
            try:
                async with asyncio.timeout(deadline - time.monotonic()):
                    await self.moved.wait()
            except TimeoutError:
                raise LoadError(f"{self.name} is not settled after {limit_s:.0f} s") from None
            for member in self.members:
                member.check()
        self._check_shares()
        return max(member.assigned_at for member in self.members)

    @property
    def is_settled(self) -> bool:
        return len({member.generation for member in self.members}) == 1 and self.generation >= 0

    @property
    def generation(self) -> int:
        return max(member.generation for member in self.members)

    def _check_shares(self) -> None:
        given = sorted(partition for member in self.members for partition in member.share)
        if given != list(range(self.manner.partitions)):
            raise LoadError(f"{self.name}: the shares of generation {self.generation} are not every partition once")

    async def remove(self, leaving: list[Member]) -> None:
        """Some members fall silent and leave."""
        for member in leaving:
            await member.stop()
            self.members.remove(member)
        link = await Link.open(self.port)
        identities = tuple(wire.MemberIdentity(member_id=member.id, group_instance_id=None) for member in leaving)
        left = await link.ask(wire.LeaveGroupRequest(group_id=self.name, members=identities), wire.LeaveGroupResponse)
        link.close()
        if left.error_code != ErrorCode.NONE:
            raise LoadError(f"leaving {self.name} failed with error {left.error_code}")


async def time_joins(node: Node, manner: Manner, *, members: int, joins: int, limit_s: float) -> Numbers:
    """How long one more member in a settled group takes until all of them have their new shares."""
    crowd = Crowd.of(node.kafka_port, f"{manner.topic}-group", manner)
    await await_coordinator(node.kafka_port, crowd.name, limit_s)
    for place in range(members):
        await crowd.add(phase=place / members)
    await crowd.settle(limit_s)
    took_ms = []
    for turn in range(joins + 1):
        # The newcomer's time in the others' heartbeat interval is different in each turn.
        await asyncio.sleep(manner.heartbeat_s * (1 + turn / (joins + 1)))
        began = await crowd.add(phase=turn / (joins + 1))
        took_ms.append((await crowd.settle(limit_s) - began) * 1000)
        together = crowd.generation
        await crowd.remove([crowd.members[-1]])
        await _settle_after(crowd, together, limit_s)
    await crowd.remove(list(crowd.members))
    measured = took_ms[1:]  # the first turn warms up
    return {"p50_ms": median(measured), "max_ms": max(measured), "joins": len(measured), "first_ms": took_ms[0]}


async def _settle_after(crowd: Crowd, generation: int, limit_s: float) -> None:
    """Wait until the group is settled in a later generation."""
    deadline = time.monotonic() + limit_s
    while crowd.generation == generation:
        if time.monotonic() > deadline:
            raise LoadError(f"{crowd.name} did not notice that a member left")
        await asyncio.sleep(0.01)
    await crowd.settle(limit_s)


async def watch_many(
    node: Node, manner: Manner, *, groups: int, members: int, steady_s: float, limit_s: float
) -> Numbers:
    """Whether many settled groups stay as they are, and what that costs."""
    crowds = [Crowd.of(node.kafka_port, f"{manner.topic}-{at}", manner) for at in range(groups)]
    await await_coordinator(node.kafka_port, crowds[0].name, limit_s)
    began = time.monotonic()
    for place in range(members):
        for at, crowd in enumerate(crowds):
            await crowd.add(phase=(place * groups + at) / (groups * members))
    settled_at = max([await crowd.settle(limit_s) for crowd in crowds])

    everybody = [member for crowd in crowds for member in crowd.members]
    generations = [crowd.generation for crowd in crowds]
    evictions = sum(member.evictions for member in everybody)
    for member in everybody:
        member.heartbeats_ms.clear()
    cpu_before, at_before = node.process.cpu_seconds(), time.monotonic()
    own_before = time.process_time()
    await asyncio.sleep(steady_s)
    cpu_s, took_s = node.process.cpu_seconds() - cpu_before, time.monotonic() - at_before
    own_s = time.process_time() - own_before
    heartbeats = [each for member in everybody for each in member.heartbeats_ms]
    rounds = sum(crowd.generation - before for crowd, before in zip(crowds, generations, strict=True))
    late_evictions = sum(member.evictions for member in everybody) - evictions
    for member in everybody:
        member.check()
    await asyncio.gather(*(crowd.remove(list(crowd.members)) for crowd in crowds))
    return {
        "settle_s": settled_at - began,
        "rebalances": rounds,
        "evictions": late_evictions,
        "heartbeats": len(heartbeats),
        "p50_ms": percentile(heartbeats, 0.50),
        "p99_ms": percentile(heartbeats, 0.99),
        "max_ms": max(heartbeats),
        "cpu_percent": cpu_s / took_s * 100,
        "client_cpu_percent": own_s / took_s * 100,
    }
