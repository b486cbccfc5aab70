"""One client process: its role, and the rest of its life."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from bench.chaos.clients.client import DERIVED_TOPIC, LEDGER_TOPIC, LOG_TOPIC, Client
from bench.chaos.clients.member import Member
from bench.chaos.clients.producer import SteadyProducer
from bench.chaos.clients.reader import Reader
from bench.chaos.clients.writer import Transformer, Writer

ROLES: dict[str, Callable[[Client], int]] = {
    "producer": lambda client: SteadyProducer(client).run(),
    "reader": lambda client: Reader(client, [LOG_TOPIC], "uncommitted").run(),
    "auditor": lambda client: Reader(client, [LEDGER_TOPIC, DERIVED_TOPIC], "committed").run(),
    "classic": lambda client: Member(client, "chaos-classic", "classic").run(),
    "modern": lambda client: Member(client, "chaos-modern", "consumer").run(),
    "writer": lambda client: Writer(client).run(),
    "transformer": lambda client: Transformer(client).run(),
}


def main(role: str, name: str, incarnation: str, bootstrap: str, diary: str) -> int:
    return ROLES[role](Client.open(name, int(incarnation), bootstrap, Path(diary)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
