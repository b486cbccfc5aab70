"""The command: every server in turn, a table of what they did next to each other, goals, and a picture."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from bench.install import InstallError
from bench.machine import machine_facts
from bench.process import BrokerError
from bench.queues.loops import Lost
from bench.queues.penstock import penstock_software
from bench.queues.servers import PEERS
from bench.schedules import __doc__ as description
from bench.schedules.picture import draw
from bench.schedules.rows import Bench, Lateness, Row
from bench.schedules.servers import Later, PenstockLater, RedisLater
from bench.targets import CACHE

CLIENTS: dict[str, Callable[[], Later]] = {"penstock": PenstockLater, "redis": RedisLater}
NATS = "nats is left out: messages for later came with version 2.12 (header Nats-Schedule), and Debian has {version}"
MEMORY_GOAL_MB = 150.0
LATE_GOAL_MS = 20.0
BACK_GOAL_S = 5.0
Figures = dict[str, dict[str, float]]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench schedules", description=description)
    parser.add_argument("--targets", default="penstock,redis,redis+always,nats", help="with commas between")
    parser.add_argument("--pending", type=int, default=1_000_000, help="how many wait (1,000,000); 0 leaves that out")
    parser.add_argument("--long", action="store_true", help="ten times as many, nine of ten due in months")
    parser.add_argument("--rate", type=int, default=10_000, help="how many are due a second (10,000)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for so long (20); 0 leaves that out")
    parser.add_argument("--data-dir", type=Path, default=CACHE, help="where the servers keep their data meanwhile")
    parser.add_argument("--out", type=Path, default=Path("bench/out/schedules.json"), help="where the figures go")
    parser.add_argument("--picture", type=Path, default=Path("bench/out/schedules.svg"), help="where the picture goes")
    options = parser.parse_args(arguments)
    known = {"nats", *(each.name for each in candidates())}
    if unknown := set(options.targets.split(",")) - known:
        parser.error(f"--targets: {', '.join(sorted(unknown))} is none of {', '.join(sorted(known))}")
    if options.rate < 100 or options.rate % 100:
        parser.error("--rate is a multiple of 100")
    return options


def candidates() -> list[Any]:
    return [each for each in (*penstock_software(), *PEERS) if each.name.partition("+")[0] in CLIENTS]


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    wanted = options.targets.split(",")
    versions, is_whole = {}, True
    figures: Figures = {}
    late: dict[str, Lateness] = {}
    directory = options.data_dir.resolve() / "penstock-bench-schedules"
    begun = time.monotonic()
    if "nats" in wanted:
        _tell_of_nats(console)
    for software in candidates():
        if software.name not in wanted:
            continue
        try:
            versions[software.name] = software.prepare()
            _measure(software, directory, options, figures, late, console)
        except (InstallError, BrokerError, Lost, OSError) as error:
            console.print(f"{software.name}: {error}", markup=False)
            is_whole = False
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    if not figures:
        console.print("nothing was measured: see --targets")
        return 2
    _show(figures, console)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    if late:
        draw(options.picture, late, LATE_GOAL_MS)
        console.print(f"How late messages came is drawn in {options.picture}")
    facts = {**machine_facts(options.data_dir), **versions, "minutes": round((time.monotonic() - begun) / 60, 1)}
    options.out.write_text(json.dumps({"machine": facts, "figures": figures}, indent=1, default=str) + "\n")
    console.print(f"{facts['minutes']} minutes. Every figure is in {options.out}")
    return 0 if is_whole and _meets_goals(figures, options, console) else 1


def _tell_of_nats(console: Console) -> None:
    nats = next(each for each in PEERS if each.name == "nats")
    try:
        console.print(NATS.format(version=nats.prepare()), markup=False)
    except InstallError as error:
        console.print(f"nats: {error}", markup=False)


def _measure(
    software: Any,
    directory: Path,
    options: argparse.Namespace,
    figures: Figures,
    late: dict[str, Lateness],
    console: Console,
) -> None:
    bench = Bench(software, CLIENTS[software.name.partition("+")[0]], directory)

    def note(rows: list[Row]) -> None:
        for row, value, unit in rows:
            figures.setdefault(f"{row} ({unit})", {})[software.name] = round(value, 2)
            console.print(f"{software.name:14} {row:48} {value:12,.1f} {unit}", highlight=False)

    if options.pending:
        note(_run(bench.pending(options.pending)))
        if options.long:
            note(_run(bench.pending(options.pending, 9 * options.pending)))
    if options.seconds:
        late[software.name] = _run(bench.lateness(options.rate, options.seconds))
        note(late[software.name].rows())


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def _show(figures: Figures, console: Console) -> None:
    names = list(dict.fromkeys(name for row in figures.values() for name in row))
    table = Table("row", *names, title="messages for later")
    for row, by_name in figures.items():
        table.add_row(row, *(f"{by_name[name]:,.1f}" if name in by_name else "" for name in names))
    console.print(table)


def _meets_goals(figures: Figures, options: argparse.Namespace, console: Console) -> bool:
    """Whether Penstock keeps what is promised of it. The goals are for a million that wait and 10,000 a second."""
    told = f"{options.pending:,} pending"
    goals = (
        (f"{told}: memory (MB)", MEMORY_GOAL_MB),
        (f"{told}: known again after kill -9 (s)", BACK_GOAL_S),
        (f"{options.rate:,} due a second: late, 99th percentile (ms)", LATE_GOAL_MS),
    )
    is_met = True
    for row, goal in goals:
        value = figures.get(row, {}).get("penstock")
        if value is not None and value > goal:
            console.print(f"a goal is missed: {row} is {value:,.1f}, and at most {goal:,.0f} is wanted", markup=False)
            is_met = False
    return is_met
