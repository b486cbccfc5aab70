"""Queues across nodes: every node serves every topic, and leases and acks outlive their leaders."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.queue_house import values
from tests.support.queue_nodes import NODES, QueueNodes, until
from tests.support.virtual_time import run

from penstock.broker.broker import Broker
from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.features.queues.leases import LeasedRecord


async def take(broker: Broker, max_messages: int = 100, **options: Any) -> list[LeasedRecord]:
    leases = await broker.queues.receive("orders", "workers", consumer="ann", max_messages=max_messages, **options)
    return [message for lease in leases for message in lease.messages()]


async def ack(broker: Broker, *messages: LeasedRecord) -> list[ReceiptOutcome]:
    verdicts = await broker.queues.ack("workers", [message.receipt for message in messages])
    assert [verdict.error for verdict in verdicts if verdict.error is not None] == []
    return [verdict.fate for verdict in verdicts]


def test_every_node_hands_out_and_settles_whatever_it_leads() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            await nodes.topic()
            for partition in range(3):
                await nodes.put(f"a{partition}", f"b{partition}", partition=partition)
            seen: list[str] = []
            for node_id in NODES:
                taken = await take(nodes.brokers[node_id], 2, wait_ms=5_000)
                seen += values(taken)
                others = nodes.brokers[node_id % 3 + 1]
                assert set(await ack(others, *taken)) == {ReceiptOutcome.DONE}
            assert sorted(seen) == ["a0", "a1", "a2", "b0", "b1", "b2"]
            for broker in nodes.brokers.values():
                (stats,) = await broker.queues.stats("orders", "workers")
                assert [each.committed for each in stats.partitions] == [2, 2, 2]
                assert await broker.queues.groups("orders") == ["workers"]

    run(story)


def test_a_wait_at_another_node_hears_of_messages_and_takes_none_when_it_is_cancelled() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            await nodes.topic(partitions=1)
            await nodes.put("first")
            leader_id = nodes.leader("orders", 0).config.node_id
            other, third = [nodes.brokers[node_id] for node_id in NODES if node_id != leader_id]
            assert values(await take(other, wait_ms=5_000)) == ["first"]
            waiting = asyncio.ensure_future(take(other, wait_ms=20_000))
            await asyncio.sleep(0.2)
            began = asyncio.get_running_loop().time()
            await nodes.put("second")
            assert values(await waiting) == ["second"]
            assert asyncio.get_running_loop().time() - began < 2
            gone = asyncio.ensure_future(take(other, wait_ms=20_000))
            await asyncio.sleep(0.2)
            gone.cancel()
            await asyncio.gather(gone, return_exceptions=True)
            await nodes.put("third")
            taken = await take(third, wait_ms=5_000)
            assert values(taken) == ["third"]
            assert taken[0].delivery_count == 1

    run(story)


def test_leases_and_acks_survive_their_leader() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            await nodes.topic(partitions=1, min_insync_replicas="2")
            await nodes.put(*"abcd")
            taken = await take(nodes.brokers[1], 3, wait_ms=5_000)
            await ack(nodes.brokers[1], taken[0])
            leader_id = nodes.queue_leader("orders", 0).config.node_id
            nodes.cut_off(leader_id)
            left = [nodes.brokers[node_id] for node_id in NODES if node_id != leader_id]
            await until(lambda: all(each.leader_of("__queue.orders", 0) not in {-1, leader_id} for each in left))
            again = await take(left[0], wait_ms=10_000)
            assert values(again) == ["d"], "what is leased stays leased"
            assert await ack(left[1], *taken) == [
                ReceiptOutcome.ALREADY_ACKED,
                ReceiptOutcome.DONE,
                ReceiptOutcome.DONE,
            ]
            assert await ack(left[0], *again) == [ReceiptOutcome.DONE]
            nodes.exchange.heal()
            await until(lambda: nodes.brokers[leader_id].leader_of("__queue.orders", 0) != leader_id)
            (stats,) = await nodes.brokers[leader_id].queues.stats("orders", "workers")
            assert stats.partitions[0].committed == 4

    run(story)


def test_a_wait_outlives_a_leader_that_stops() -> None:
    async def story() -> None:
        async with QueueNodes() as nodes:
            await nodes.topic(partitions=1)
            await nodes.put("a")
            await take(nodes.brokers[1], wait_ms=5_000)
            leader_id = nodes.queue_leader("orders", 0).config.node_id
            other_id = next(node_id for node_id in NODES if node_id != leader_id)
            waiting = asyncio.ensure_future(take(nodes.brokers[other_id], wait_ms=25_000))
            await asyncio.sleep(0.2)
            await nodes.stop(leader_id)
            await nodes.put("b")
            assert values(await waiting) == ["b"]

    run(story)
