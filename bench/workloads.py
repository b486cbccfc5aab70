"""The workloads: what is sent, how it is batched, which rows of the report come out.

Facts only; `runner.py` runs them. Options are those of `loadgen/loadgen.c`, or of the workload in `groups.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SIZES = {"100b": 100, "1k": 1000, "10k": 10_000}


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the report: one figure for each target, and the machine limit it stands beside, if any."""

    id: str
    unit: str
    higher_is_better: bool = True
    limit: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """One thing to do on a fresh topic. `then_consume` reads back what was produced, as a row of its own."""

    id: str
    kind: str
    size: int = 1000
    partitions: int = 8
    acks: str = "1"
    then_consume: str | None = None
    quick: bool = False
    durability: bool = False
    """Also run on the variants with the other fsync setting."""
    nodes: int = 1
    """On how many nodes; more than one have a copy of everything each."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def rows(self) -> list[Row]:
        durable = self.acks == "all"
        if self.kind == "latency":
            floor = {"p50": "sync_p50_ms", "p99": "sync_p99_ms"} if durable else {}
            return [
                Row(f"{self.id}-{p}", "ms", higher_is_better=False, limit=floor.get(p)) for p in ("p50", "p99", "p999")
            ]
        if self.kind in _ROWS_BY_KIND:
            return [Row(f"{self.id}{end}", unit, higher_is_better=up) for end, unit, up in _ROWS_BY_KIND[self.kind]]
        if self.kind == "catchup":
            return [Row(self.id, "MB/s", limit="cold_read_mb_per_s")]
        if self.kind == "requests":
            return [Row(self.id, "msg/s")]
        limit = "group_commit_mb_per_s" if durable else "page_cache_write_mb_per_s"
        rows = [Row(self.id, "MB/s", limit=limit)]
        if self.then_consume:
            rows.append(Row(self.then_consume, "MB/s", limit="loopback_mb_per_s"))
        return rows


# What follows the workload's id in the row's, the unit, and whether more is better.
_ROWS_BY_KIND = {
    "commits": [("", "commits/s", True)],
    "transactions": [
        ("", "MB/s", True),
        ("-plain", "MB/s", True),
        ("-overhead", "%", False),
        ("-commit-p50", "ms", False),
        ("-commit-p99", "ms", False),
    ],
    "idle": [("-cpu", "%", False), ("-memory", "MB", False)],
    "group-join": [("-p50", "ms", False), ("-max", "ms", False)],
    "many-groups": [("-rebalances", "rebalances", False), ("-cpu", "%", False), ("-heartbeat-p99", "ms", False)],
}

NODE_ROWS = [
    Row("start-to-ready", "s", higher_is_better=False),
    Row("memory-idle", "MB", higher_is_better=False),
    Row("memory-under-load", "MB", higher_is_better=False),
]


def all_workloads() -> list[Workload]:
    found = []
    quick_acks1 = {("100b", 8), ("1k", 1), ("1k", 8), ("1k", 100), ("10k", 8)}
    for label, size in SIZES.items():
        for partitions in (1, 8, 100):
            where = f"{partitions}p"
            found.append(
                Workload(
                    f"produce-{label}-acks1-{where}",
                    "throughput",
                    size,
                    partitions,
                    then_consume=f"consume-{label}-{where}",
                    quick=(label, partitions) in quick_acks1,
                )
            )
            if label == "1k" or partitions == 8:
                main = (label, partitions) == ("1k", 8)
                name = f"produce-{label}-acksall-{where}"
                found.append(Workload(name, "throughput", size, partitions, "all", quick=main, durability=main))
    java_batches = {"batch_bytes": 16384, "linger_ms": 5, "max_in_flight": 5}
    small_batches = {"producers": 200, "batch_messages": 10, "linger_ms": 1, "window": 20}
    one_by_one = {"batch_messages": 1, "linger_ms": 0, "window": 1000}
    prompt = {"linger_ms": 0, "max_in_flight": 5}
    found += [
        Workload("produce-1k-acks1-8p-16k-batches", "throughput", options=java_batches),
        Workload("producers-200-small-batches", "requests", 100, options=small_batches, quick=True),
        Workload("one-message-a-request", "requests", 100, 1, options=one_by_one, quick=True),
    ]
    for acks in ("1", "all"):
        for rate in (1000, 20_000):
            name = f"latency-{rate // 1000}k-acks{acks}"
            slow = rate == 1000
            durability = slow and acks == "all"
            options = {"rate": rate, **prompt}
            quick = slow or acks == "1"
            found.append(Workload(name, "latency", 1000, 8, acks, quick=quick, durability=durability, options=options))
    found.append(Workload("catch-up-1k-8p", "catchup", quick=True))
    return found + coordination_workloads() + cluster_workloads()


def coordination_workloads() -> list[Workload]:
    """Groups, offsets and transactions."""
    # A transaction's client waits most of the time, so it takes many of them to find the broker's limit. 1,000 records
    # over 8 partitions are batches of 125; the plain run beside it sends such batches too.
    writers = {"producers": 16, "transaction_records": 1000, "batch_messages": 125}
    return [
        Workload("transactions-1k", "transactions", 1000, 8, "all", quick=True, options=writers),
        Workload("offset-commits-1c", "commits", options={"connections": 1}),
        Workload("offset-commits-50c", "commits", quick=True, durability=True, options={"connections": 50}),
        Workload("group-join-50", "group-join", partitions=100, quick=True, options={"members": 50, "joins": 5}),
        Workload("many-groups-100x10", "many-groups", partitions=10, options={"groups": 100, "members": 10}),
    ]


def cluster_workloads() -> list[Workload]:
    """Three nodes on this machine: three copies, and a majority has a record before it is acknowledged."""
    steady = {"rate": 1000, "linger_ms": 0, "max_in_flight": 5}
    return [
        Workload(
            f"three-nodes-produce-1k-acksall-{partitions}p",
            "throughput",
            1000,
            partitions,
            "all",
            then_consume=f"three-nodes-consume-1k-{partitions}p",
            quick=partitions == 8,
            nodes=3,
        )
        for partitions in (1, 8, 100)
    ] + [
        Workload("three-nodes-latency-1k-acksall", "latency", 1000, 8, "all", quick=True, nodes=3, options=steady),
        Workload("three-nodes-idle-1000-partitions", "idle", partitions=1000, nodes=3),
    ]
