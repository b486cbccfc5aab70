"""Runs workloads on a node that is up, one at a time.

Every workload gets a topic of its own and leaves nothing behind. What it sends is bounded by `BYTES_MAX`, which is
below the point where the kernel throttles writers of dirty pages on a machine with 24 GB.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from bench.ballast import Ballast
from bench.client import LoadGenerator, Numbers, Topics, log_files
from bench.limits import forget_cached
from bench.targets import Node
from bench.workloads import Workload

BYTES_MAX = 1_900_000_000


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long things may take."""

    seconds: float
    latency_s: float
    limit_s: float = 40


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs workloads on one node."""

    node: Node
    generator: LoadGenerator
    topics: Topics
    ballast: Ballast
    bounds: Bounds

    def run(self, work: Workload) -> dict[str, tuple[float, Numbers]]:
        """Row id to figure and everything the generator said; the topic is gone afterwards."""
        topic = f"bench-{work.id}"
        self.topics.create(topic, work.partitions)
        self.ballast.hold()
        os.sync()
        if work.kind in ("throughput", "catchup"):  # the others write too little to need it
            self.ballast.release()
        try:
            if work.kind == "latency":
                return self._latency(work, topic)
            if work.kind == "catchup":
                return self._catch_up(work, topic)
            return self._throughput(work, topic)
        finally:
            self.topics.delete(topic)
            self.ballast.hold()

    def warm_up(self) -> None:
        """Every path once, for the JIT and the caches: the same for all targets, not measured."""
        topic = "bench-warm-up"
        self.topics.create(topic, 8)
        try:
            sent = 0.0
            for options in ({"size": 1000}, {"size": 1000, "batch_messages": 1, "linger_ms": 0, "window": 1000}):
                sent += self._load("produce", topic, 8, count=800_000, seconds=2, **options)["messages"]
            self._load("consume", topic, 8, size=1000, count=int(sent))
            self._load("produce", topic, 8, size=1000, acks="all", count=500_000, seconds=2)
        finally:
            self.topics.delete(topic)

    def _load(self, mode: str, topic: str, partitions: int, **options: object) -> Numbers:
        before = self.node.process.cpu_seconds()
        result = self.generator.run(mode, self.node, self.bounds.limit_s, topic=topic, partitions=partitions, **options)
        result["broker_cpu_s"] = round(self.node.process.cpu_seconds() - before, 3)
        return result

    def _produce(self, work: Workload, topic: str, seconds: float) -> Numbers:
        count = BYTES_MAX // work.size
        return self._load(
            "produce",
            topic,
            work.partitions,
            size=work.size,
            acks=work.acks,
            count=count,
            seconds=seconds,
            **work.options,
        )

    def _throughput(self, work: Workload, topic: str) -> dict[str, tuple[float, Numbers]]:
        sent = self._produce(work, topic, self.bounds.seconds)
        figure = "msgs_per_s" if work.kind == "requests" else "mb_per_s"
        results = {work.id: (sent[figure], sent)}
        if work.then_consume:
            read = self._load("consume", topic, work.partitions, size=work.size, count=int(sent["messages"]))
            results[work.then_consume] = (read["mb_per_s"], read)
        return results

    def _latency(self, work: Workload, topic: str) -> dict[str, tuple[float, Numbers]]:
        seconds = self.bounds.latency_s
        said = self._load(
            "latency", topic, work.partitions, size=work.size, acks=work.acks, seconds=seconds, **work.options
        )
        return {f"{work.id}-{p}": (said[f"{p}_ms"], said) for p in ("p50", "p99", "p999")}

    def _catch_up(self, work: Workload, topic: str) -> dict[str, tuple[float, Numbers]]:
        """Read data of which nothing is in the page cache any more."""
        sent = self._produce(work, topic, seconds=self.bounds.seconds * 4)
        for path in log_files(self.node.data_dir, topic):
            forget_cached(path)
        self.ballast.hold()
        self.ballast.release()
        before = psutil.disk_io_counters()
        read = self._load("consume", topic, work.partitions, size=work.size, count=int(sent["messages"]))
        after = psutil.disk_io_counters()
        if before and after:
            read["disk_read_mb"] = (after.read_bytes - before.read_bytes) / 1e6
        return {work.id: (read["mb_per_s"], read)}
