"""The command: `./dev chaos [run|failover|rolling]`. Exit code 1 on any anomaly."""

from __future__ import annotations

import argparse
import secrets
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from bench.chaos import __doc__ as description
from bench.chaos import failover, machine, rolling, run
from bench.chaos.faults import KINDS
from bench.chaos.order import Order
from bench.chaos.secured import SecuredNodes
from bench.chaos.software import KafkaNodes, PenstockNodes, Software
from bench.targets import CACHE

# Segments small enough to be closed within a short run, damage that is looked for all the time, and members that are
# missed soon.
PENSTOCK_SETTINGS = {
    "PENSTOCK_STORAGE__SEGMENT_BYTES": "262144",
    "PENSTOCK_STORAGE__SCRUB__INTERVAL_MS": "15000",
    "PENSTOCK_STORAGE__SCRUB__BYTES_PER_SECOND": "8388608",
    "PENSTOCK_GROUPS__SESSION_TIMEOUT_MS": "6000",
    "PENSTOCK_GROUPS__HEARTBEAT_INTERVAL_MS": "1000",
}
KAFKA_SETTINGS = """group.initial.rebalance.delay.ms=500
offsets.topic.num.partitions=8
transaction.state.log.num.partitions=8
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
"""
SOFTWARE: dict[str, Software] = {"penstock": PenstockNodes(PENSTOCK_SETTINGS), "kafka": KafkaNodes(KAFKA_SETTINGS)}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev chaos", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", nargs="?", choices=("run", "failover", "rolling"), default="run")
    parser.add_argument("--seed", type=int, help="the same seed, the same schedule [default: a new one, which is said]")
    parser.add_argument("--minutes", type=positive, default=10.0, help="how long faults are injected (10)")
    parser.add_argument("--faults", type=kinds, default=list(KINDS), help="only these, with commas between; see --list")
    parser.add_argument("--without", type=kinds, default=[], help="all but these")
    parser.add_argument("--rate", type=positive, default=4.0, help="faults a minute, about (4)")
    parser.add_argument("--load", type=int, default=100, help="messages a second of each producer (100)")
    parser.add_argument("--nodes", type=int, default=3, help="how many nodes (3)")
    parser.add_argument("--kills", type=int, default=50, help="failover: how many kills (50)")
    parser.add_argument("--target", choices=list(SOFTWARE), default="penstock", help="kafka proves the checker itself")
    parser.add_argument("--secured", action="store_true", help="TLS, logins and encryption at rest, on every node")
    parser.add_argument("--plain", action="store_true", help="plain processes, even as root")
    parser.add_argument("--keep", action="store_true", help="keep the nodes' data")
    parser.add_argument("--list", action="store_true", help="say which faults there are, and stop")
    options = parser.parse_args(arguments)
    if options.secured and options.target != "penstock":
        parser.error("--secured is for penstock only")
    return options


def positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return value


def kinds(text: str) -> list[str]:
    names = text.split(",") if text else []
    if unknown := [name for name in names if name not in KINDS]:
        raise argparse.ArgumentTypeError(f"unknown fault {unknown[0]!r}; see --list")
    return names


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140)
    if options.list:
        for kind in KINDS.values():
            needs = f"needs {kind.needs}" if kind.needs else ""
            console.print(f"{kind.name:34}{needs}", highlight=False)
        return 0
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # heal and clean up, as for Ctrl-C
    order = give_order(options, console)
    try:
        return {"run": run.play, "failover": failover.play, "rolling": rolling.play}[options.verb](order)
    finally:
        if not options.keep:
            for leftover in [*order.directory.glob("node-*.img"), *order.directory.glob("node-*/data")]:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def give_order(options: argparse.Namespace, console: Console) -> Order:
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    faults = [name for name in options.faults if name not in options.without] if options.verb == "run" else []
    directory = fresh_directory(options.verb, seed)
    software = SOFTWARE[options.target]
    if options.secured:
        software = SecuredNodes(PENSTOCK_SETTINGS, home=directory / "secure")
    return Order(
        seed=seed,
        minutes=options.minutes,
        faults=faults,
        rate_per_minute=options.rate,
        load=options.load,
        nodes=options.nodes,
        kills=options.kills,
        software=software.frozen(directory) if isinstance(software, PenstockNodes) else software,
        machine=machine.prepare(is_plain=options.plain, wants_fake_time="clock-jump" in faults),
        directory=directory,
        console=console,
    )


def fresh_directory(verb: str, seed: int) -> Path:
    """`.cache/chaos/<seed>`, emptied of what an earlier run left."""
    directory = CACHE / "chaos" / (str(seed) if verb == "run" else verb)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory


if __name__ == "__main__":
    sys.exit(main())
