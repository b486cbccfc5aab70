"""Random histories: nodes die, lose power or their disks, links break, the controller is silent; nothing acked is lost.

A dumb twin keeps what was acknowledged, and what any reader has ever seen at each offset.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial

import pytest
from tests.unit.replication.stage import Node, Stage, tell, values_of

from penstock.config.settings import Fsync
from penstock.consensus.records import NO_LEADER
from penstock.errors import PenstockError

STEPS = 60


class Swarm:
    """One random history on one partition."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.random = stage.random
        self.written = 0
        self.seen: list[bytes] = []  # what readers saw, by offset
        self.watermarks: dict[tuple[int, int, int], int] = {}  # by node, life and leader epoch
        kinds = ["kill", "power", "cut", "silence", "deaf", "slow", "zombie"]
        self.kinds = [kind for kind in kinds if self.random.random() < 0.6] or ["kill"]

    async def run(self) -> None:
        await self.stage.start()
        await self.stage.create(min_insync_replicas=str(self.random.choice((1, 2, 2, 3))), segment_bytes="2048")
        for _ in range(STEPS):
            self.write()
            await asyncio.sleep(self.random.random() * 0.05)
            self.look()
            if self.random.random() < 0.25:
                await self.disturb(self.random.choice(self.kinds))
        await self.mend()
        self.look()
        self.stage.check_acked()
        self.stage.check_agreement()
        whole = values_of(self.stage.leader().partition())
        for node in self.stage.nodes.values():
            assert values_of(node.partition()) == whole

    def write(self) -> None:
        leaders = [node for node in self.stage.nodes.values() if node.is_up and self._leads(node)]
        for node in leaders:
            for _ in range(self.random.randint(0, 4)):
                self.written += 1
                with contextlib.suppress(PenstockError):
                    self.stage.write(b"%d" % self.written, node=node, is_all=self.random.random() < 0.8)

    def _leads(self, node: Node) -> bool:
        return node.replicas.has("t", 0) and node.partition().is_leader

    def look(self) -> None:
        """Read as consumers do: from leaders, committed records only. Nobody ever sees two things at one offset."""
        for node in self.stage.nodes.values():
            if not node.is_up or not node.replicas.has("t", 0):
                continue
            partition = node.partition()
            found = values_of(partition, is_committed=True)
            shared = min(len(found), len(self.seen))
            assert found[:shared] == self.seen[:shared], "two readers saw different records"
            if len(found) > len(self.seen):
                self.seen = found
            if partition.is_leader:
                key = (node.id, id(node.life), partition.leader_epoch)
                assert partition.high_watermark >= self.watermarks.get(key, 0), "a leader's watermark went back"
                self.watermarks[key] = partition.high_watermark

    async def disturb(self, kind: str) -> None:
        stage, random = self.stage, self.random
        node = stage.nodes[random.choice(sorted(stage.nodes))]
        match kind:
            case "kill" | "power" if node.is_up:
                node.end(keeps_unsynced=kind == "kill")
                if random.random() < 0.7:
                    stage.fence(node.id)
            case "kill" | "power":
                await self.bring_back(node)
            case "cut":
                other = random.choice(sorted(set(stage.nodes) - {node.id}))
                stage.exchange.cut(node.id, other, is_noticed=random.random() < 0.7, is_one_way=random.random() < 0.3)
                stage.loop.call_later(random.random(), stage.exchange.heal)
            case "silence":
                node.has_controller = not node.has_controller
                if node.has_controller and node.is_up:
                    assert node.life is not None
                    node.life.run(node.catch_up)
            case "deaf":
                node.loses_answers = not node.loses_answers
            case "slow":
                node.spindle.sync_max_s = random.choice((0.002, 0.1, 3.0))
            case "zombie" if node.is_up:
                node.has_controller = False
                stage.fence(node.id)
                stage.loop.call_later(random.random() * 2, partial(self.hear_again, node))

    def hear_again(self, node: Node) -> None:
        node.has_controller = True
        if node.is_up and self.stage.metadata.nodes[node.id].epoch == node.replicas.node_epoch:
            self.stage.draft(lambda draft: draft.change_node(node.id, is_fenced=False))
            assert node.life is not None
            node.life.run(node.catch_up)

    async def bring_back(self, node: Node) -> None:
        node.has_controller = True
        node.open()
        await self.stage.admit(node.id)

    async def mend(self) -> None:
        stage = self.stage
        stage.exchange.heal()
        await asyncio.sleep(3)
        stage.exchange.heal()
        for node in stage.nodes.values():
            node.has_controller, node.loses_answers = True, False
            node.spindle.sync_max_s = 0.002
            if not node.is_up:
                await self.bring_back(node)
            else:
                assert node.life is not None
                node.life.run(node.catch_up)
        for node in stage.nodes.values():
            if stage.metadata.nodes[node.id].is_fenced:
                stage.draft(lambda draft, node=node: draft.change_node(node.id, is_fenced=False))  # type: ignore[misc]
        stage.draft(lambda draft: draft.settle_all(draft.partitions()))
        await stage.until(lambda: stage.assigned().leader != NO_LEADER)
        await stage.in_sync(3)
        await stage.until(lambda: stage.leader().partition().is_watermark_known)
        leader = stage.leader().partition()
        await stage.until(lambda: leader.high_watermark == leader.log.end_offset)
        await stage.until(
            lambda: all(node.partition().high_watermark == leader.high_watermark for node in stage.nodes.values())
        )


@pytest.mark.parametrize("seed", range(40))
def test_nothing_acknowledged_is_lost_whatever_happens(seed: int) -> None:
    tell(lambda stage: Swarm(stage).run(), seed=seed, fsync=Fsync.EVERY)
