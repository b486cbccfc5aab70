"""What TLS costs: the same node with and without, by the compiled client, in turns.

Run as ``python -m bench.micro.tls``. Beside the rates it shows the node's own processor time, which says more where the
client shares the machine: for each gigabyte of produce and consume, and for each acknowledged record alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.client import build_generator

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.certificates import Authority
from tests.support.node import Node
from tests.support.tls_node import TlsNode

SIZE = 1_000


def measure(directory: Path, authority: Authority | None, megabytes: int) -> dict[str, float]:
    """One node: what it does in a second, and what a gigabyte costs it."""
    generator = build_generator()
    node = Node(directory) if authority is None else TlsNode(directory, authority)
    trust: dict[str, Any] = {} if authority is None else {"ca": authority.ca}
    settings = {"bootstrap.servers": node.bootstrap}
    if authority is not None:
        settings |= {"security.protocol": "ssl", "ssl.ca.location": str(authority.ca)}
    count = megabytes * 1_000_000 // SIZE
    found: dict[str, float] = {}
    with node:
        process = psutil.Process(node.pid)
        admin = AdminClient(settings)
        for topic, partitions in (("bench", 3), ("alone", 1)):
            admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)
        target: Any = SimpleNamespace(brokers=node.bootstrap)

        def run(mode: str, name: str, **options: Any) -> dict[str, Any]:
            before = sum(process.cpu_times()[:2])
            result: dict[str, Any] = generator.run(mode, target, 120, size=SIZE, **options, **trust)
            found[f"{name} node s"] = sum(process.cpu_times()[:2]) - before
            return result

        for mode in ("produce", "consume"):
            result = run(mode, mode, topic="bench", partitions=3, count=count)
            found[f"{mode} MB/s"] = result["messages"] * SIZE / 1e6 / result["seconds"]
            found[f"{mode} node s/GB"] = found.pop(f"{mode} node s") / (count * SIZE / 1e9)
        result = run("latency", "latency", topic="alone", partitions=1, rate=500, seconds=5)
        found |= {f"latency {name}": value for name, value in result.items() if name.startswith("p")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=500)
    chosen = parser.parse_args()
    rows: dict[str, list[dict[str, float]]] = {"plain": [], "tls": []}
    with tempfile.TemporaryDirectory() as place:
        authority = Authority(Path(place) / "authority")
        for turn in range(chosen.rounds):
            for name, trusted in (("plain", None), ("tls", authority)):
                rows[name].append(measure(Path(place) / f"{name}-{turn}", trusted, chosen.megabytes))
                print(name, rows[name][-1], file=sys.stderr, flush=True)
    for figure in rows["plain"][0]:
        middle = {name: sorted(row[figure] for row in found)[len(found) // 2] for name, found in rows.items()}
        print(f"{figure:24} plain {middle['plain']:10.3f}   tls {middle['tls']:10.3f}")


if __name__ == "__main__":
    main()
