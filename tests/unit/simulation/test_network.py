"""Simulated peers: the real frames and handlers on connections that keep order, stall and break."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
import pytest
from sim.cluster.network import SimulatedNetwork, Weather
from sim.cluster.peers import SimulatedPeers

from penstock.errors import NotLeader, PeerUnavailable
from penstock.network.port import Method, Nothing, Reply
from penstock.testing.clock import SimulatedClock
from penstock.testing.loop import Life, simulated_loop


class Number(msgspec.Struct, frozen=True):
    value: int


DOUBLE = Method("toy.double", Number, Number)
NOTE = Method("toy.note", Number, Nothing)


class Toy:
    """Two or three processes that know each other."""

    def __init__(self, loop, nodes: int = 2, weather: Weather | None = None) -> None:
        self.network = SimulatedNetwork(loop, Random(1), weather)
        self.lives = {node_id: Life(f"node {node_id}") for node_id in range(1, nodes + 1)}
        self.noted: list[int] = []
        self.peers = {
            node_id: SimulatedPeers(self.network, life, node_id, (f"node-{node_id}", 1), SimulatedClock(loop))
            for node_id, life in self.lives.items()
        }
        for peers in self.peers.values():
            for node_id in self.peers:
                peers.introduce(node_id, f"node-{node_id}", 1)
            peers.serve(DOUBLE, lambda _, number, body: Reply(Number(number.value * 2), (bytes(body), b"!")))
            peers.serve(NOTE, lambda _, number, __: self.noted.append(number.value) or Nothing())


def run(program, weather: Weather | None = None, nodes: int = 2):
    with simulated_loop(Random(1)) as loop:
        return loop.run_until_complete(started(loop, program, weather, nodes))


async def started(loop, program, weather: Weather | None, nodes: int):
    toy = Toy(loop, nodes, weather)
    for peers in toy.peers.values():
        await peers.start()
    return await program(toy)


def test_a_call_is_answered_with_the_bytes_behind_it():
    async def program(toy: Toy) -> None:
        reply, body = await toy.peers[1].call(2, DOUBLE, Number(21), (b"raw",))
        assert reply == Number(42)
        assert bytes(body) == b"raw!"

    run(program)


def test_an_error_is_raised_to_the_caller():
    async def program(toy: Toy) -> None:
        def refuse(*_):
            raise NotLeader("not me")

        toy.peers[2].serve(DOUBLE, refuse)
        with pytest.raises(NotLeader, match="not me"):
            await toy.peers[1].call(2, DOUBLE, Number(1))

    run(program)


def test_what_is_told_keeps_its_order_and_comes_once():
    async def program(toy: Toy) -> None:
        await toy.peers[1].call(2, DOUBLE, Number(1))
        for value in range(100):
            toy.peers[1].tell(2, NOTE, Number(value))
        await asyncio.sleep(5)
        assert toy.noted == list(range(100))

    run(program, Weather(delay_max_s=0.5, late=0.1))


def test_a_cut_way_holds_what_was_sent_until_it_is_open_again():
    async def program(toy: Toy) -> None:
        await toy.peers[1].call(2, DOUBLE, Number(1))
        toy.network.cut(1, 2)
        toy.peers[1].tell(2, NOTE, Number(7))
        await asyncio.sleep(0.4)
        assert toy.noted == []
        toy.network.heal()
        await asyncio.sleep(0.1)
        assert toy.noted == [7]

    run(program)


def test_a_way_that_is_cut_for_long_breaks_the_connection():
    async def program(toy: Toy) -> None:
        lost: list[int] = []
        toy.peers[1].on_lost(lost.append)
        await toy.peers[1].call(2, DOUBLE, Number(1))
        toy.network.split([1], [2])
        with pytest.raises(PeerUnavailable):
            await toy.peers[1].call(2, DOUBLE, Number(2), timeout_s=60)
        assert lost == [2]
        assert not toy.peers[1].is_connected(2)
        toy.network.heal()
        assert (await toy.peers[1].call(2, DOUBLE, Number(2))).reply == Number(4)

    run(program)


def test_a_call_times_out_in_virtual_time():
    async def program(toy: Toy) -> float:
        toy.peers[2].serve(DOUBLE, lambda *_: asyncio.Event().wait())
        loop = asyncio.get_running_loop()
        with pytest.raises(PeerUnavailable):
            await toy.peers[1].call(2, DOUBLE, Number(1), timeout_s=30)
        return loop.time()

    assert run(program) == pytest.approx(30)


def test_the_calls_to_a_killed_process_fail_and_the_next_one_refuses():
    async def program(toy: Toy) -> None:
        toy.peers[2].serve(DOUBLE, lambda *_: asyncio.Event().wait())
        asking = asyncio.ensure_future(toy.peers[1].call(2, DOUBLE, Number(1)))
        await asyncio.sleep(1)
        toy.lives[2].end()
        toy.network.leave(toy.peers[2], is_silent=False)
        with pytest.raises(PeerUnavailable, match="broke"):
            await asking
        with pytest.raises(PeerUnavailable, match="refused"):
            await toy.peers[1].call(2, DOUBLE, Number(1))

    run(program)


def test_a_lost_message_takes_its_connection_with_it():
    async def program(toy: Toy) -> None:
        failed = 0
        for value in range(200):
            try:
                await toy.peers[1].call(2, DOUBLE, Number(value))
            except PeerUnavailable:
                failed += 1
        assert 0 < failed == toy.network.breaks < 100

    run(program, Weather(broken=0.05))
