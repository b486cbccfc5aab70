"""The command: a node, a topic, and Spark in several ways; a table of what came out."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.install import InstallError
from bench.machine import machine_facts
from bench.process import BrokerError, BrokerProcess, free_port
from bench.spark import __doc__ as description
from bench.spark.jars import connector_jars
from bench.spark.picture import draw
from bench.spark.sink import sink_figures
from bench.targets import CACHE, is_ready, penstock_targets
from penstock import Client, Draft

TOPIC = "bench"
VALUE_BYTES = 1000
PROGRAM_LIMIT_S = 3600
MEMORY_SHARES = (0.1, 0.5, 1.0)  # of the data, to see whether a worker grows with what it reads
PENSTOCK, KAFKA, BARE = "penstock", "Spark's Kafka connector", "a Python source that does nothing"
FLOOR = "a micro-batch of one row (ms)"
SOURCE_GOAL, SINK_GOAL, FLOOR_GOAL = 400_000.0, 200_000.0, 1.3
_CHUNK = 5_000
_READY_LIMIT_S = 60.0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench spark", description=description)
    parser.add_argument("--rows", type=int, default=2_400_000, help="in the topic, of 1,000 bytes each (2,400,000)")
    parser.add_argument("--partitions", type=int, default=2, help="of the topic (2)")
    parser.add_argument("--trigger", type=int, default=200_000, help="rows in a micro-batch (200,000)")
    parser.add_argument("--rounds", type=int, default=1, help="how often all of it is repeated (1)")
    parser.add_argument(
        "--memory-gb", type=float, default=0.0, help="measure a worker's memory on so much data instead"
    )
    parser.add_argument("--no-kafka", action="store_true", help="leave out Spark's own Kafka connector")
    parser.add_argument("--no-sink", action="store_true", help="only read")
    parser.add_argument("--data-dir", type=Path, default=CACHE, help="where the node keeps its data meanwhile")
    parser.add_argument("--out", type=Path, default=Path("bench/out/spark.json"), help="where the figures go")
    parser.add_argument("--picture", type=Path, default=Path("bench/out/spark.svg"), help="where the picture goes")
    return parser.parse_args(arguments)


class Node:
    """A node as a user would start it."""

    def __init__(self, directory: Path) -> None:
        self.http, self.kafka = free_port(), free_port()
        command = [str(penstock_targets()[0].command), "serve", "--node-id", "1", "--data-dir", str(directory / "data")]
        command += ["--kafka", f"127.0.0.1:{self.kafka}", "--http", f"127.0.0.1:{self.http}"]
        command += ["--grpc", f"127.0.0.1:{free_port()}"]
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.process = BrokerProcess(command, directory / "server.log", inherited, directory)
        try:
            self.process.wait_until(lambda: is_ready(self.http), _READY_LIMIT_S)
        except BaseException:
            self.process.stop()
            raise

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def fill(self, rows: int, partitions: int) -> None:
        """Rows of 1,000 bytes that do not repeat, with keys, in batches as the client makes them."""
        ballast = os.urandom(VALUE_BYTES // 2).hex().encode()
        with Client(self.url) as client:
            client.create_topic(TOPIC, partitions=partitions)
            for begin in range(0, rows, _CHUNK):
                count = min(_CHUNK, rows - begin)
                drafts = [
                    Draft(b"%010d" % number + ballast[10:], key=b"%010d" % number)
                    for number in range(begin, begin + count)
                ]
                client.publish_many(TOPIC, drafts, partition=begin // _CHUNK % partitions)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    directory = options.data_dir.resolve() / "penstock-bench-spark"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    begun = time.monotonic()
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    try:
        penstock_targets()[0].prepare()
        jars = [] if options.no_kafka or options.memory_gb else connector_jars()
        node = Node(directory)
        try:
            if options.memory_gb:
                measure_memory(node, options, figures, console)
            else:
                node.fill(options.rows, options.partitions)
                for _ in range(options.rounds):
                    measure(node, options, jars, figures, console)
        finally:
            node.process.stop()
    except (BrokerError, InstallError, subprocess.SubprocessError) as error:
        console.print(f"it did not work: {error}", markup=False)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    show(figures, console)
    goals = goals_of(figures)
    is_met = meets_goals(figures, goals, console)
    facts = {**machine_facts(options.data_dir), "minutes": round((time.monotonic() - begun) / 60, 1)}
    asked = {name: str(value) for name, value in vars(options).items()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts, "options": asked, "figures": figures}, indent=1, default=str))
    draw(options.picture, figures, goals, f"values of {VALUE_BYTES:,} bytes; node and Spark on {os.cpu_count()} cores")
    console.print(
        f"{facts['minutes']} minutes. Figures of every round: {options.out}, their picture: {options.picture}"
    )
    return 0 if is_met else 1


def measure(node: Node, options: argparse.Namespace, jars: list[Path], figures: Any, console: Console) -> None:
    row = f"source to noop, {options.trigger:,} rows a trigger"
    asked = ["--topic", TOPIC, "--trigger", str(options.trigger)]
    told = program("stream", "--servers", node.url, *asked)
    note(figures, console, row, PENSTOCK, told["rows_per_second"], "rows/s")
    if jars:
        paths = ",".join(map(str, jars))
        kafka = ["--format", "kafka", "--servers", f"127.0.0.1:{node.kafka}", "--jars", paths]
        told = program("stream", *kafka, *asked)
        note(figures, console, row, KAFKA, told["rows_per_second"], "rows/s")
    if not options.no_sink:
        for figure in sink_figures(program, node, jars, TOPIC, options.trigger):
            note(figures, console, *figure)
    told = program("floor", "--servers", node.url, *asked)
    for name in (PENSTOCK, BARE):
        note(figures, console, FLOOR.removesuffix(" (ms)"), name, told[name], "ms")


def measure_memory(node: Node, options: argparse.Namespace, figures: Any, console: Console) -> None:
    node.fill(int(options.memory_gb * 1e9 / VALUE_BYTES), options.partitions)
    for share in MEMORY_SHARES:
        told = program("memory", "--servers", node.url, "--topic", TOPIC, "--share", str(share))
        name = f"{options.memory_gb * share:g} GB in one batch"
        note(figures, console, "largest worker while it reads", name, told["megabytes"], "MB")
        note(figures, console, "topic to noop", name, told["rows"] / told["seconds"], "rows/s")


def program(*arguments: str) -> dict[str, float]:
    """Run Spark in a process of its own; what it tells last."""
    command = [sys.executable, "-m", "bench.spark.program", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_LIMIT_S, check=False)
    if done.returncode:
        raise subprocess.SubprocessError(
            f"{' '.join(arguments[:3])} ended with {done.returncode}: {done.stderr[-3000:]}"
        )
    figures: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def note(figures: Any, console: Console, row: str, name: str, value: float, unit: str) -> None:
    figures[f"{row} ({unit})"][name].append(round(value, 1))
    console.print(f"{name:34} {row:44} {value:12,.0f} {unit}", highlight=False)


def show(figures: dict[str, dict[str, list[float]]], console: Console) -> None:
    table = Table("", "", "median", "of", title="Spark")
    for row, by_name in figures.items():
        for name, values in by_name.items():
            table.add_row(row, name, f"{statistics.median(values):,.0f}", str(len(values)))
    console.print(table)


def goals_of(figures: dict[str, dict[str, list[float]]]) -> dict[str, float]:
    """What Penstock should reach, by row: rows a second at least, or milliseconds at most."""
    goals: dict[str, float] = {}
    for row, by_name in figures.items():
        if row.startswith("source to noop"):
            goals[row] = max(SOURCE_GOAL, *(statistics.median(by_name[name]) for name in by_name if name == KAFKA), 0)
        elif row.startswith("memory to sink"):
            goals[row] = SINK_GOAL
        elif row == FLOOR:
            goals[row] = FLOOR_GOAL * statistics.median(by_name[BARE])
    return goals


def meets_goals(figures: dict[str, dict[str, list[float]]], goals: dict[str, float], console: Console) -> bool:
    is_met = True
    for row, goal in goals.items():
        value = next(statistics.median(values) for name, values in figures[row].items() if name.startswith(PENSTOCK))
        is_missed = value > goal if row == FLOOR else value < goal
        if is_missed:
            console.print(f"a goal is missed: {row} is {value:,.0f}, and {goal:,.0f} is wanted", markup=False)
            is_met = False
    return is_met
