"""Runs workloads on a node that is up, one at a time.

Every workload gets a topic of its own and leaves nothing behind. What it sends is bounded by `BYTES_MAX`, which is
below the point where the kernel throttles writers of dirty pages on a machine with 24 GB.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from bench.ballast import Ballast
from bench.client import LoadError, LoadGenerator, Numbers, Topics, log_files
from bench.groups import HEARTBEAT_S, JOIN_HEARTBEAT_S, SESSION_MS, time_joins, watch_many
from bench.limits import forget_cached
from bench.members import Manner
from bench.targets import Node
from bench.workloads import Workload

BYTES_MAX = 1_900_000_000
WARM_UP_S = 1
SETTLE_S = 5


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long things may take."""

    seconds: float
    latency_s: float
    steady_s: float
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
        methods = {
            "latency": self._latency,
            "catchup": self._catch_up,
            "transactions": self._transactions,
            "commits": self._commits,
            "group-join": self._group_join,
            "many-groups": self._many_groups,
            "idle": self._idle,
        }
        with self._topic(work) as topic:
            return methods.get(work.kind, self._throughput)(work, topic)

    @contextlib.contextmanager
    def _topic(self, work: Workload, suffix: str = "") -> Iterator[str]:
        topic = f"bench-{work.id}{suffix}"
        self.topics.create(topic, work.partitions)
        self.ballast.hold()
        os.sync()
        if work.kind in ("throughput", "catchup", "transactions"):  # the others write too little to need it
            self.ballast.release()
        try:
            yield topic
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
        count = BYTES_MAX // work.size // self.node.replicas
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

    def _transactions(self, work: Workload, topic: str) -> dict[str, tuple[float, Numbers]]:
        """The same records without transactions and with them, each on a topic of its own; then all are read back."""
        shape = {"size": work.size, "acks": work.acks, **work.options}
        with self._topic(work, "-plain") as plain_topic:
            self._load("transactions", plain_topic, work.partitions, plain=1, seconds=WARM_UP_S, **shape)
            plain = self._load(
                "transactions", plain_topic, work.partitions, plain=1, seconds=self.bounds.seconds, **shape
            )
        warm = self._load("transactions", topic, work.partitions, seconds=WARM_UP_S, **shape)
        sent = self._load("transactions", topic, work.partitions, seconds=self.bounds.seconds, **shape)
        if "p50_ms" not in sent:
            raise LoadError(f"no transaction was committed: {sent['first_error']}")
        count = int(warm["messages"] + sent["messages"])
        read = self._load("consume", topic, work.partitions, size=work.size, count=count, markers=1)
        notes = [run["note"] for run in (plain, warm, sent, read) if "note" in run]
        detail = {**sent, "plain_mb_per_s": plain["mb_per_s"], **({"note": notes[0]} if notes else {})}
        return {
            work.id: (sent["mb_per_s"], detail),
            f"{work.id}-plain": (plain["mb_per_s"], plain),
            f"{work.id}-overhead": ((1 - sent["mb_per_s"] / plain["mb_per_s"]) * 100, detail),
            f"{work.id}-commit-p50": (sent["p50_ms"], detail),
            f"{work.id}-commit-p99": (sent["p99_ms"], detail),
        }

    def _commits(self, work: Workload, topic: str) -> dict[str, tuple[float, Numbers]]:
        seconds = self.bounds.seconds
        said = self._load("commits", topic, work.partitions, seconds=seconds, warmup_s=WARM_UP_S, **work.options)
        return {work.id: (said["msgs_per_s"], said)}

    def _idle(self, work: Workload, topic: str) -> dict[str, tuple[float, Numbers]]:
        """What the nodes cost while nobody asks anything of them, of one core, for each node on average."""
        del topic
        time.sleep(SETTLE_S)
        before, began = self.node.process.cpu_seconds(), time.monotonic()
        time.sleep(self.bounds.steady_s)
        used_s = (self.node.process.cpu_seconds() - before) / self.node.replicas
        said: Numbers = {"cpu_s": used_s, "memory_mb": self.node.process.memory().rss_mb / self.node.replicas}
        percent = 100 * used_s / (time.monotonic() - began)
        return {f"{work.id}-cpu": (percent, said), f"{work.id}-memory": (said["memory_mb"], said)}

    def _group_join(self, work: Workload, topic: str) -> dict[str, tuple[float, Numbers]]:
        manner = Manner(topic, work.partitions, JOIN_HEARTBEAT_S, SESSION_MS)
        said = asyncio.run(time_joins(self.node, manner, limit_s=self.bounds.limit_s, **work.options))
        return {f"{work.id}-p50": (said["p50_ms"], said), f"{work.id}-max": (said["max_ms"], said)}

    def _many_groups(self, work: Workload, topic: str) -> dict[str, tuple[float, Numbers]]:
        manner = Manner(topic, work.partitions, HEARTBEAT_S, SESSION_MS)
        limit_s, steady_s = self.bounds.limit_s, self.bounds.steady_s
        said = asyncio.run(watch_many(self.node, manner, steady_s=steady_s, limit_s=limit_s, **work.options))
        return {
            f"{work.id}-rebalances": (said["rebalances"] + said["evictions"], said),
            f"{work.id}-cpu": (said["cpu_percent"], said),
            f"{work.id}-heartbeat-p99": (said["p99_ms"], said),
        }
