"""How large a fetch response should be: consumers of several kinds, each asking for more or less at a time.

The broker fills a response up to what the consumer asks for (`fetch.max.bytes`, `max.partition.fetch.bytes`), so the
consumer's own setting chooses the size. Every round runs every client with every size, in another order each time, on
one node and the same records; the figures are medians. `python -m bench.responses`; docs/decisions/0006 has a run.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from bench.client import LoadGenerator, Topics, build_generator
from bench.kafka import fetch
from bench.targets import CACHE, Node, Penstock

KIB: Final = 1024
SIZES: Final = {"0.5 MB": 512 * KIB, "2 MB": 2048 * KIB, "as asked": 50 * KIB * KIB}
_LIMIT_S: Final = 60


class Load(NamedTuple):
    """Records that are read again and again."""

    topic: str
    size: int
    partitions: int
    count: int


class Rate(NamedTuple):
    """What one run came to; Java's consumers also say how many fetches it took."""

    mb_per_s: float
    fetches: float


LOADS: Final = (
    Load("small", 100, 100, 1_000_000),
    Load("medium", 1_000, 8, 400_000),
    Load("large", 10_000, 8, 40_000),
)


def librdkafka(generator: LoadGenerator, node: Node, load: Load, fetch_bytes: int) -> Rate:
    """librdkafka in C, without a group."""
    result = generator.run(
        "consume",
        node,
        _LIMIT_S,
        topic=load.topic,
        size=load.size,
        partitions=load.partitions,
        count=load.count,
        fetch_bytes=fetch_bytes,
    )
    assert not result["errors"], result
    return Rate(result["mb_per_s"], 0)


def java(protocol: str, node: Node, load: Load, fetch_bytes: int) -> Rate:
    """Kafka's own `kafka-consumer-perf-test`, in a group of one member; the time is that of fetching alone."""
    libraries = f"{CACHE}/kafka-{fetch(None)}/libs/*"
    command = ["java", "-Xmx512m", "-Dlog4j2.level=ERROR", "-cp", libraries]
    command += ["org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", node.brokers, "--print-metrics"]
    command += ["--topic", load.topic, "--num-records", str(load.count), "--hide-header", "--timeout", "40000"]
    command += ["--command-property", f"group.protocol={protocol}"]
    command += ["--command-property", f"fetch.max.bytes={fetch_bytes}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S + 30, check=True)
    row = next(line for line in done.stdout.splitlines() if line.count(", ") == 9).split(", ")
    assert int(row[4]) >= load.count, done.stdout
    metric = re.search(r"consumer-fetch-manager-metrics:fetch-total:\{client-id=[^}]*\}\s*:\s*([0-9.]+)", done.stdout)
    return Rate(float(row[8]), float(metric[1]) if metric else 0)


def measure(rounds: int) -> None:
    """Run everything and print a table for each load."""
    generator = build_generator()
    clients: dict[str, Callable[[Node, Load, int], Rate]] = {
        "librdkafka": lambda node, load, size: librdkafka(generator, node, load, size),
        "Java, classic": lambda node, load, size: java("classic", node, load, size),
        "Java, KIP-848": lambda node, load, size: java("consumer", node, load, size),
    }
    with tempfile.TemporaryDirectory() as directory:
        node = Penstock("penstock", "as shipped", {}).start(Path(directory))
        try:
            for load in LOADS:
                Topics(node).create(load.topic, load.partitions)
                shape = {"size": load.size, "partitions": load.partitions, "count": load.count}
                generator.run("produce", node, _LIMIT_S, topic=load.topic, seconds=_LIMIT_S, **shape)
                _print(load, _run(node, load, clients, rounds))
        finally:
            node.process.stop()


def _run(
    node: Node, load: Load, clients: dict[str, Callable[[Node, Load, int], Rate]], rounds: int
) -> dict[tuple[str, str], list[Rate]]:
    found: dict[tuple[str, str], list[Rate]] = {}
    for number in range(rounds):
        runs = [(client, size) for client in clients for size in SIZES]
        for client, size in runs[number % 2 :: 2] + runs[1 - number % 2 :: 2]:
            found.setdefault((client, size), []).append(clients[client](node, load, SIZES[size]))
    return found


def _print(load: Load, found: dict[tuple[str, str], list[Rate]]) -> None:
    print(f"{load.size} B, {load.partitions} partitions: MB/s (fetches)", flush=True)
    for (client, size), rates in sorted(found.items()):
        rate = statistics.median(each.mb_per_s for each in rates)
        fetches = statistics.median(each.fetches for each in rates)
        every = " ".join(f"{each.mb_per_s:.0f}" for each in rates)
        print(f"  {client:14} {size:9} {rate:7.0f} ({fetches:.0f})   {every}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    measure(parser.parse_args().rounds)
