"""The command: every server in turn, in rounds, and a table of what they did next to each other."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from bench.install import InstallError
from bench.machine import machine_facts
from bench.process import BrokerError
from bench.queues import __doc__ as description
from bench.queues.clients import Client, JetStream, QuorumQueue, RedisStreams
from bench.queues.lanes import LANE_ROWS
from bench.queues.loops import Lost, in_and_out
from bench.queues.penstock import OWN_ROWS, PenstockQueues, penstock_software
from bench.queues.servers import PEERS
from bench.targets import CACHE

CLIENTS: dict[str, Callable[[], Client]] = {
    "penstock": PenstockQueues,
    "redis": RedisStreams,
    "nats": JetStream,
    "rabbitmq": QuorumQueue,
}
BATCHES = (500, 1)
SIZE = 1000
Figures = dict[str, dict[str, list[float]]]
OwnRow = Callable[[Any], Any]  # a coroutine function that measures a server


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench queues", description=description)
    parser.add_argument("--targets", help="with commas between: penstock, redis, nats, rabbitmq and their variants")
    parser.add_argument("--seconds", type=float, default=4.0, help="of publishing and of receiving, for each row (4)")
    parser.add_argument("--rounds", type=int, default=3, help="how often all of it is repeated (3)")
    parser.add_argument("--own", action="store_true", help="only the rows of Penstock alone")
    parser.add_argument("--lanes", action="store_true", help="only the rows of lanes, and their picture")
    parser.add_argument("--no-own", action="store_true", help="without the rows of Penstock alone")
    parser.add_argument("--data-dir", type=Path, default=CACHE, help="where the servers keep their data meanwhile")
    parser.add_argument("--out", type=Path, default=Path("bench/out/queues.json"), help="where the figures go")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    wanted = None if options.targets is None else options.targets.split(",")
    candidates = [each for each in (*penstock_software(), *PEERS) if wanted is None or each.name in wanted]
    versions: dict[str, str] = {}
    for software in candidates:
        try:
            versions[software.name] = software.prepare()
        except (InstallError, BrokerError, OSError) as error:
            console.print(f"{software.name} is left out: {error}", markup=False)
    ready = [each for each in candidates if each.name in versions]
    if not ready:
        console.print("nothing to run: see --targets")
        return 2
    figures: Figures = defaultdict(lambda: defaultdict(list))
    directory = options.data_dir.resolve() / "penstock-bench-queues"
    is_whole = True
    begun = time.monotonic()
    for round_number in range(0 if options.own or options.lanes else options.rounds):
        for software in ready if round_number % 2 == 0 else ready[::-1]:
            is_whole &= measure(software, directory, options.seconds, figures, console)
    if not options.no_own:
        is_whole &= measure_own(directory, figures, console, LANE_ROWS if options.lanes else OWN_ROWS)
    show(figures, console)
    facts = {**machine_facts(options.data_dir), **versions, "minutes": round((time.monotonic() - begun) / 60, 1)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"machine": facts, "figures": figures}, indent=1, default=str) + "\n")
    console.print(f"{facts['minutes']} minutes. Every figure of every round is in {options.out}")
    return 0 if is_whole else 1


def measure(software: Any, directory: Path, seconds: float, figures: Figures, console: Console) -> bool:
    """One server, from an empty directory on, through the rows that all have."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    try:
        server = software.start(directory)
        try:
            for batch in BATCHES:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    client = CLIENTS[software.name.partition("+")[0]]()
                    rates = runner.run(_one(client, server.port, batch, seconds))
                label = f"in batches of {batch}" if batch > 1 else "one by one"
                for row, value in ((f"publish, {label}", rates.published), (f"receive + ack, {label}", rates.received)):
                    figures[row][software.name].append(round(value, 1))
                    console.print(f"{software.name:18} {row:34} {value:12,.0f} messages/s", highlight=False)
        finally:
            server.process.stop()
    except (BrokerError, Lost, OSError) as error:
        console.print(f"{software.name}: {error}", markup=False)
        return False
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return True


async def _one(client: Client, port: int, batch: int, seconds: float) -> Any:
    await client.open(port)
    try:
        return await in_and_out(client, f"bench-{batch}", batch, SIZE, seconds)
    finally:
        await client.close()


def measure_own(directory: Path, figures: Figures, console: Console, rows: Sequence[OwnRow]) -> bool:
    """The rows that only Penstock has, each on an empty directory."""
    is_whole = True
    software = penstock_software()[0]
    for own in rows:
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        try:
            server = software.start(directory)
            try:
                for row, value, unit in asyncio.run(own(server)):
                    figures[f"{row} ({unit})"][software.name].append(round(value, 2))
                    console.print(f"{software.name:18} {row:34} {value:12,.1f} {unit}", highlight=False)
            finally:
                server.process.stop()
        except (BrokerError, Lost, OSError) as error:
            console.print(f"{own.__name__}: {error}", markup=False)
            is_whole = False
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return is_whole


def show(figures: Figures, console: Console) -> None:
    """Medians, and the ratio of Penstock to each."""
    names = list(dict.fromkeys(name for row in figures.values() for name in row))
    table = Table("row", *names, title="medians; in brackets Penstock as a multiple of it")
    for row, by_name in figures.items():
        ours = statistics.median(by_name["penstock"]) if by_name.get("penstock") else None
        cells = []
        for name in names:
            values = by_name.get(name)
            if not values:
                cells.append("")
                continue
            value = statistics.median(values)
            ratio = f" ({ours / value:.2f}×)" if ours and value and not name.startswith("penstock") else ""
            cells.append(f"{value:,.0f}{ratio}")
        table.add_row(row, *cells)
    console.print(table)
