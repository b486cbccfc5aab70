"""A coordinator killed between any two steps of a join, a commit or the end of a transaction.

The node kills itself at one chosen step and is started again, and the application goes on. Whatever the step: every
input is turned into its result exactly once. The everyday run takes a few steps of each moment, the long one all of
them until the node outlives the scenario.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.acceptance.conftest import NodeMaker
from tests.support.application import ROOT, Application, read_results
from tests.support.clients.confluent import ConfluentClient
from tests.support.dying_node import MOMENTS
from tests.support.node import Node
from tests.support.transformer import transform

INPUTS = 4
PARTITIONS = 2
STEPS_MAX = 80
_UNARMED = {"PYTHONPATH": str(ROOT)}


class Caretaker:
    """Starts the node again, unarmed, whenever it has died."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.deaths = 0

    def __enter__(self) -> Caretaker:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.01):
            if not self._node.is_running:
                self.deaths += 1
                self._node.environment = _UNARMED
                self._node.restart()


def play(node: Node, directory: Path, step: int, moment: str) -> bool:
    """The scenario with a node that dies at one step; whether it did."""
    source, sink = f"source-{moment}-{step}", f"sink-{moment}-{step}"
    node.environment = _UNARMED
    node.start()
    client = ConfluentClient(node.bootstrap)
    for topic in (source, sink):
        client.create_topic(topic, partitions=PARTITIONS)
    feed = Producer({"bootstrap.servers": node.bootstrap})
    inputs = [b"%d" % number for number in range(INPUTS)]
    for number, value in enumerate(inputs):
        feed.produce(source, value=value, partition=number % PARTITIONS)
    assert feed.flush(60) == 0
    node.stop()
    node.environment = {"DIE_AT_STEP": str(step), "DIE_WHEN": moment, **_UNARMED}
    node.start()
    app = Application(directory, node, source, sink, messages_at_once=1, aborted_share=0.3)
    try:
        with Caretaker(node) as caretaker:
            found = read_results(node, sink, PARTITIONS, INPUTS, app)
    finally:
        app.kill()
    assert sorted(found) == sorted(map(transform, inputs)), f"step {step}, {moment}"
    node.stop()
    return caretaker.deaths > 0


def _dying(make_node: NodeMaker) -> Node:
    node = make_node(groups__initial_delay_ms="0s")
    node.module = "tests.support.dying_node"
    return node


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_coordinator_that_dies_at_a_step(make_node: NodeMaker, tmp_path: Path, moment: str) -> None:
    node = _dying(make_node)
    assert all(play(node, tmp_path, step, moment) for step in (5, 10 + MOMENTS.index(moment)))


@pytest.mark.soak
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_coordinator_that_dies_at_any_step(make_node: NodeMaker, tmp_path: Path, moment: str) -> None:
    node = _dying(make_node)
    steps = 0
    for step in range(1, STEPS_MAX):
        if not play(node, tmp_path, step, moment):
            break
        steps = step
    print(f"{moment}: died at each of {steps} steps")
    assert steps > 20, "the scenario should have that many steps"
