"""The command: which clients play which scenarios against which broker, and the table of how it went.

Exit code 1 if any step of any client fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.compat import __doc__ as description
from bench.compat import codecs, connector, groups, logins, security, transactions
from bench.compat.brokers import BROKERS, Running
from bench.compat.clients import CLIENTS, Client
from bench.compat.steps import Result, step

# What a client has to be able to do to play a part of a scenario, and the part.
Part = tuple[type, Callable[[Any, Running], Iterator[Result]]]
SCENARIOS: dict[str, Sequence[Part]] = {
    "codecs": [(codecs.Writes, codecs.play)],
    "groups": [(groups.Joins, groups.play)],
    "transactions": [(transactions.Transacts, transactions.play)],
    "security": [(logins.LogsIn, logins.play), (security.Administers, security.play)],
    "connector": [(connector.Connects, connector.play)],
}


def play(client: Client, scenarios: Sequence[str], broker: Running) -> Iterator[Result]:
    """Install one client and let it play what it can."""
    parts = [part for name in scenarios for part in SCENARIOS[name]]
    playable = [scenario for needed, scenario in parts if isinstance(client, needed)]
    if not playable:
        return
    installed = step(client.name, "install", client.install)
    yield installed
    if installed.passed:
        for scenario in playable:
            yield from scenario(client, broker)


def table(results: Sequence[Result], title: str) -> Table:
    shown = Table("client", "step", "", "seconds", "", title=f"Clients against {title}")
    for result in results:
        verdict = "[green]pass[/]" if result.passed else "[red]FAIL[/]"
        shown.add_row(result.client, result.step, verdict, f"{result.seconds:.1f}", result.detail)
    return shown


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev compat", description=description)
    parser.add_argument("--client", action="append", choices=list(CLIENTS), help="only this one; may be repeated")
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="only this one; may be repeated")
    parser.add_argument("--target", choices=list(BROKERS), default="penstock", help="the broker to meet")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    results: list[Result] = []
    kind = BROKERS[options.target]
    kind.target.prepare()
    with tempfile.TemporaryDirectory(prefix="penstock-compat-") as directory:
        scratch = Path(directory)
        node = kind.target.start(scratch)
        try:
            for name in options.client or CLIENTS:
                for result in play(CLIENTS[name](), options.scenario or list(SCENARIOS), Running(kind, node, scratch)):
                    results.append(result)
                    print(f"{result.client}: {result.step}: {'pass' if result.passed else 'FAIL'}", file=sys.stderr)
        finally:
            node.process.stop()
    if options.output == "json":
        print(json.dumps([asdict(result) for result in results], indent=2))
    else:
        Console(width=None if sys.stdout.isatty() else 160).print(table(results, kind.title))
    return 0 if all(result.passed for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
