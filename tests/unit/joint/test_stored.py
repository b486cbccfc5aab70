"""What partitions hold of a writer's messages, told by whoever leads them."""

from __future__ import annotations

import pytest
from tests.unit.transactions.nodes import Cluster, play

from penstock.errors import FencedLeaderEpoch, LeaderNotAvailable, PeerUnavailable
from penstock.features.transactions.joint.coordinator import NumberedSearch, Search
from penstock.machines.leaders import Leaders
from penstock.machines.messages import ProducerIdentity

WRITER = ProducerIdentity(7, 0)


def holdings_of(cluster: Cluster) -> dict[int, NumberedSearch]:
    found = {}
    for node in cluster.nodes.values():
        found[node.id] = NumberedSearch(node.find, Leaders(node.id, node.metadata, node.peers, node.clock))
        found[node.id].serve()
    return found


def test_a_partition_tells_the_same_here_and_elsewhere() -> None:
    async def story(cluster: Cluster) -> None:
        holdings = holdings_of(cluster)
        cluster.write(("t", 1), ProducerIdentity(8, 0), "other")
        cluster.write(("t", 1), WRITER, "a", "b", "c")
        cluster.write(("t", 1), WRITER, "d", sequence=3)
        search = Search(producer_id=7, epoch=0, base=1, count=2, start=0)
        for node_id in (1, 2, 3):
            holding = await holdings[node_id].search("t", 1, search)
            assert [offset for offset, _ in holding.found] == [2, 3]
            assert (holding.last_sequence, holding.end_offset) == (3, 5)
            nothing = await holdings[node_id].search("t", 0, search)
            assert (nothing.last_sequence, nothing.end_offset, nothing.found) == (-1, 0, ())
        glance = Search(producer_id=7, epoch=0)
        assert holdings[1].glance("t", 1, glance) is None
        at_once = holdings[2].glance("t", 1, glance)
        assert at_once is not None
        assert at_once.last_sequence == 3

    play(story)


def test_only_who_leads_is_believed() -> None:
    async def story(cluster: Cluster) -> None:
        holdings = holdings_of(cluster)
        search = Search(producer_id=7, epoch=0)
        cluster.nodes[1].backlog = []
        cluster.move("t", 1, 3)
        cluster.move("t", 1, 2)
        with pytest.raises(FencedLeaderEpoch):
            await holdings[1].search("t", 1, search)
        cluster.nodes[1].catch_up()
        await holdings[1].search("t", 1, search)
        cluster.exchange.cut(1, 2)
        with pytest.raises(PeerUnavailable):
            await holdings[1].search("t", 1, search)
        cluster.orphan("t", 1)
        with pytest.raises(LeaderNotAvailable):
            await holdings[1].search("t", 1, search)

    play(story)
