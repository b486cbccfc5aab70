"""Failover: kill -9 of the leader of a partition, until the next write to it is acknowledged; many times.

One write at a time is kept going by one idempotent producer, which knows nothing of the kills. The time runs from the
kill until the answer to a write that was sent after it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message, Producer

from bench.chaos.clients.client import LOG_TOPIC
from bench.chaos.cluster import Cluster, ClusterError, wait_for
from bench.chaos.display import Display
from bench.chaos.order import Order
from bench.chaos.run import standing
from bench.chaos.watch import Watch
from bench.report import Grid
from bench.summary import percentile

GOAL_P99_S = 3.0
GIVE_UP_S = 60.0
PAUSE_S = 0.01
STEADY_ANSWERS = 20


@dataclass
class Probe:
    """A producer that writes to one partition again and again, and remembers the answers."""

    bootstrap: str
    partition: int
    login: Mapping[str, str] = field(default_factory=dict, repr=False)
    answers: list[tuple[float, float]] = field(default_factory=list)
    """When a write was sent, and when it was acknowledged."""
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._is_over = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                **self.login,
                "enable.idempotence": True,
                "linger.ms": 0,
                "message.timeout.ms": int(GIVE_UP_S * 1000),
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "topic.metadata.refresh.fast.interval.ms": 50,
                "log_level": 0,
                "error_cb": lambda _: None,
            }
        )
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while not self._is_over.is_set():
            sent_at = time.monotonic()
            self._producer.produce(
                LOG_TOPIC,
                b"x" * 100,
                partition=self.partition,
                on_delivery=lambda error, message, at=sent_at: self._answered(error, message, at),
            )
            self._producer.poll(PAUSE_S)

    def _answered(self, error: KafkaError | None, message: Message, sent_at: float) -> None:
        del message
        if error is None:
            self.answers.append((sent_at, time.monotonic()))
        else:
            self.failures.append(str(error))

    def first_after(self, moment: float) -> float | None:
        """When the first write sent after `moment` was acknowledged."""
        for sent_at, acked_at in reversed(self.answers):
            if sent_at <= moment:
                break
            first = acked_at
        else:
            return None
        return first if self.answers[-1][0] > moment else None

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()
        self._producer.flush(GIVE_UP_S)


def play(order: Order) -> int:
    chance = random.Random(order.seed)
    times: list[float] = []
    controller_times: list[float] = []
    with standing(order) as (cluster, watch), Display(order.console, order.kills) as display:
        for number in range(order.kills):
            partition = chance.randrange(4)
            try:
                took, was_controller = one_kill(cluster, watch, partition)
            except ClusterError as error:
                display.say(f"! {error}")
                break
            times.append(took)
            if was_controller:
                controller_times.append(took)
            display.update(number + 1, f"{took:.2f} s")
            display.say(f"kill {number + 1}: {took:.2f} s{' (the controller too)' if was_controller else ''}")
            if not watch.wait_until_whole(90):
                display.say("! the cluster did not become whole again")
                break
    return tell(order, times, controller_times)


def one_kill(cluster: Cluster, watch: Watch, partition: int) -> tuple[float, bool]:
    """Seconds from the kill to the next acknowledged write, and whether the controller was killed too."""
    probe = Probe(cluster.bootstrap, partition, cluster.login.kafka)
    try:
        if not wait_for(lambda: len(probe.answers) >= STEADY_ANSWERS, GIVE_UP_S, 0.01):
            raise ClusterError(f"no write to {LOG_TOPIC}-{partition} is acknowledged although all seems whole")
        view = watch.view()
        assert view is not None, "nobody answers"
        node = cluster.nodes[view.leaders[LOG_TOPIC, partition]]
        killed_at = time.monotonic()
        node.kill()
        killed_at = time.monotonic()
        deadline = killed_at + GIVE_UP_S
        while (acked_at := probe.first_after(killed_at)) is None and time.monotonic() < deadline:
            time.sleep(0.005)
    finally:
        probe.close()
    cluster.start(node)
    return (acked_at or deadline) - killed_at, view.controller == node.number


def tell(order: Order, times: list[float], controller_times: list[float]) -> int:
    p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
    lines = [
        ["kills", str(len(times))],
        ["p50", f"{p50:.2f} s"],
        ["p99", f"{p99:.2f} s"],
        ["max", f"{max(times):.2f} s"],
    ]
    if controller_times:
        lines.append(["max with the controller", f"{max(controller_times):.2f} s"])
    grid = Grid(f"Failover of {order.software.name}, {order.nodes} nodes", ["", "kill -9 to the next ack"], lines)
    order.console.print(grid.as_table())
    (order.directory / "report.md").write_text(grid.as_markdown())
    is_good = len(times) == order.kills and p99 <= GOAL_P99_S
    order.console.print(f"goal: p99 at most {GOAL_P99_S:g} s: {'reached' if is_good else 'MISSED'}")
    return 0 if is_good else 1
