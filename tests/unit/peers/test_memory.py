"""The exchange for tests behaves as sockets do."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.peers import PeerExchange
from tests.unit.peers.exchanges import ECHO, LATER, NEVER, NOTE, REFUSE, Answer, Question, Talker, node, run, until

from penstock.errors import GroupNotFound, PeerUnavailable
from penstock.network.port import Peers


def test_both_are_the_port() -> None:
    async def story() -> None:
        both: list[Peers] = [PeerExchange().join(1), node(1)]
        assert len(both) == 2

    run(story())


def test_calls_and_tells_arrive() -> None:
    async def story() -> None:
        exchange = PeerExchange()
        one, two = Talker(exchange.join(1)), Talker(exchange.join(2))
        received = await one.peers.call(2, LATER, Question("hello"), [b"a", b"b"])
        assert received.reply == Answer("hello", 1)
        assert bytes(received.body) == b"ab"
        for number in range(10):
            one.peers.tell(2, NOTE, Question(str(number)))
        assert two.noted == []
        await until(lambda: len(two.noted) == 10)
        assert [text for _, text, _ in two.noted] == [str(number) for number in range(10)]
        with pytest.raises(GroupNotFound, match="no group of that name"):
            await one.peers.call(2, REFUSE, Question(""))
        assert (await one.peers.call_address("memory", 2, ECHO, Question("who"))).reply.asked_by == 1
        assert (await one.peers.call(1, ECHO, Question("me"))).reply.asked_by == 1

    run(story())


def test_a_cut_link_carries_nothing_and_can_be_mended() -> None:
    async def story() -> None:
        exchange = PeerExchange()
        one, two = Talker(exchange.join(1)), Talker(exchange.join(2))
        heard: list[tuple[str, int]] = []
        one.peers.on_connected(lambda node_id: heard.append(("up", node_id)))
        one.peers.on_lost(lambda node_id: heard.append(("down", node_id)))
        await one.peers.call(2, ECHO, Question(""))
        waiting = asyncio.ensure_future(one.peers.call(2, NEVER, Question("")))
        await asyncio.sleep(0)
        exchange.cut(1, 2)
        with pytest.raises(PeerUnavailable):
            await waiting
        with pytest.raises(PeerUnavailable):
            await two.peers.call(1, ECHO, Question(""))
        exchange.heal()
        assert (await one.peers.call(2, ECHO, Question("again"))).reply.text == "again"
        assert heard == [("up", 2), ("down", 2), ("up", 2)]
        exchange.cut(2, 1, is_one_way=True, is_noticed=False)
        with pytest.raises(PeerUnavailable, match="did not answer"):
            await one.peers.call(2, ECHO, Question(""), timeout_s=0.01)
        assert one.peers.is_connected(2)

    run(story())


def test_a_node_that_left_is_gone_until_it_is_back() -> None:
    async def story() -> None:
        exchange = PeerExchange()
        one, two = Talker(exchange.join(1)), Talker(exchange.join(2))
        await one.peers.call(2, ECHO, Question(""))
        await two.peers.stop()
        assert not one.peers.is_connected(2)
        with pytest.raises(PeerUnavailable):
            await one.peers.call(2, ECHO, Question(""))
        Talker(exchange.join(2))
        assert (await one.peers.call(2, ECHO, Question("back"))).reply.text == "back"
        one.peers.forget(2)
        with pytest.raises(PeerUnavailable):
            await one.peers.call(2, ECHO, Question(""))

    run(story())
