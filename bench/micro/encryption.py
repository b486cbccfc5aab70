"""What encryption at rest costs a node: the same node with and without, by the compiled client, in turns.

Run as ``python -m bench.micro.encryption``. It compares the node's own processor time for each gigabyte of produce
and consume, which other work on the machine changes least; ``bench/encryption.py`` measures the storage alone.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.client import build_generator

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.node import Node

SIZE = 1_000


def measure(directory: Path, keys: Path | None, megabytes: int) -> dict[str, float]:
    """One node: what a gigabyte costs it, and how much it takes in a second."""
    generator = build_generator()
    node = Node(directory, **({} if keys is None else {"security__encryption__master_key_file": keys}))
    count = megabytes * 1_000_000 // SIZE
    found: dict[str, float] = {}
    with node:
        process = psutil.Process(node.pid)
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic("bench", 3, 1)])["bench"].result(60)
        target: Any = SimpleNamespace(brokers=node.bootstrap)
        for mode in ("produce", "consume"):
            before = sum(process.cpu_times()[:2])
            result = generator.run(mode, target, 120, size=SIZE, topic="bench", partitions=3, count=count)
            used = sum(process.cpu_times()[:2]) - before
            found[f"{mode} node s/GB"] = used / (count * SIZE / 1e9)
            found[f"{mode} MB/s"] = result["messages"] * SIZE / 1e6 / result["seconds"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    with tempfile.TemporaryDirectory() as made:
        keys = Path(made) / "keys"
        keys.write_text(f"1:{base64.b64encode(os.urandom(32)).decode()}\n")
        for number in range(options.rounds):
            for name, given in (("plain", None), ("encrypted", keys)):
                for what, value in measure(Path(made) / f"{name}-{number}", given, options.megabytes).items():
                    found[what][name].append(value)
    for what, values in found.items():
        plain, encrypted = median(values["plain"]), median(values["encrypted"])
        print(f"{what:18} plain {plain:8.2f}  encrypted {encrypted:8.2f}  ratio {encrypted / plain:.2f}")


if __name__ == "__main__":
    main()
