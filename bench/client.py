"""The compiled load generator (`loadgen/*.c`) and the little that is better done from Python: topics.

The generator is built by gcc on first use against Debian's librdkafka and kept in `.cache/` under a hash of its
source, so that an edit rebuilds it. Every run has a time limit of its own and one here, should it hang all the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from bench.install import ensure_command, ensure_file
from bench.targets import CACHE, Node

SOURCES = Path(__file__).parent / "loadgen"
CONNECT_ALLOWANCE_S = 25

Numbers = dict[str, float]


class LoadError(Exception):
    """The generator could not connect, crashed, or gave no result."""


@dataclass(frozen=True, slots=True)
class LoadGenerator:
    binary: Path

    def run(self, mode: str, node: Node, limit_s: float, **options: object) -> Numbers:
        """One bounded run; the generator's numbers, with an error count that the caller must look at."""
        settings = {"brokers": node.brokers, "limit_s": limit_s, **options}
        command = [str(self.binary), mode, *(f"{key}={value}" for key, value in settings.items())]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s + CONNECT_ALLOWANCE_S)
        except subprocess.TimeoutExpired as hung:
            raise LoadError(f"loadgen {mode} hung for {hung.timeout:.0f} s") from hung
        if done.returncode:
            raise LoadError(f"loadgen {mode} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        result = json.loads(done.stdout)
        if result["errors"]:
            result["note"] = f"{result['errors']} errors, first: {result['first_error']}"
        return result  # type: ignore[no-any-return]


def build_generator() -> LoadGenerator:
    ensure_command("gcc", "gcc")
    ensure_file(Path("/usr/include/librdkafka/rdkafka.h"), "librdkafka-dev")
    sources = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    binary = CACHE / f"loadgen-{digest}"
    if not binary.exists():
        CACHE.mkdir(exist_ok=True)
        fresh = binary.with_suffix(".new")
        units = [str(path) for path in sources if path.suffix == ".c"]
        command = ["gcc", "-O2", "-Wall", "-Wextra", "-o", str(fresh), *units, "-lrdkafka", "-lpthread"]
        built = subprocess.run(command, capture_output=True, text=True, timeout=120)
        if built.returncode:
            raise LoadError(f"gcc failed:\n{built.stderr}")
        fresh.rename(binary)
    return LoadGenerator(binary)


class Topics:
    """Creates and deletes the topics of one node; a deleted topic's files are gone when `delete` returns."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._admin = AdminClient({"bootstrap.servers": node.brokers, "log_level": 0})

    def create(self, name: str, partitions: int) -> None:
        try:
            copies = self._node.replicas
            config = {"min.insync.replicas": str(copies // 2 + 1)} if copies > 1 else {}
            new = NewTopic(name, partitions, copies, config=config)
            self._admin.create_topics([new], operation_timeout=20)[name].result(30)
            self._wait(lambda: self._partition_count(name) == partitions, f"topic {name} is not visible")
        except KafkaException as error:
            raise LoadError(f"cannot create topic {name}: {error}") from error

    def delete(self, name: str) -> None:
        try:
            self._admin.delete_topics([name], operation_timeout=20)[name].result(30)
        except KafkaException as error:
            raise LoadError(f"cannot delete topic {name}: {error}") from error
        # Both brokers delete in the background; dirty pages of dead files would otherwise burden the next row.
        self._wait(lambda: log_bytes(self._node.data_dir, name) == 0, f"files of {name} stay")

    def _partition_count(self, name: str) -> int:
        found = self._admin.list_topics(name, timeout=10).topics.get(name)
        return len(found.partitions) if found and not found.error else 0

    @staticmethod
    def _wait(done: Callable[[], bool], otherwise: str, limit_s: float = 20) -> None:
        deadline = time.monotonic() + limit_s
        while not done():
            if time.monotonic() > deadline:
                raise LoadError(f"{otherwise} after {limit_s:.0f} s")
            time.sleep(0.05)


def log_files(data_dir: Path, topic: str) -> list[Path]:
    """The log segments of a topic, in Kafka's layout (`t-0/*.log`) or Penstock's (`logs/t/0/*.log`)."""
    # os.walk, not rglob: it does not mind that a directory disappears meanwhile.
    folders = ((Path(folder), names) for folder, _, names in os.walk(data_dir))
    found = [(folder, names) for folder, names in folders if topic in str(folder.relative_to(data_dir))]
    return [folder / name for folder, names in found for name in names if ".log" in name]


def log_bytes(data_dir: Path, topic: str) -> int:
    total = 0
    for path in log_files(data_dir, topic):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total
