"""What was asked for on the command line, and with what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bench.chaos.machine import Machine
from bench.chaos.software import Software


@dataclass(frozen=True, slots=True)
class Order:
    seed: int
    minutes: float
    faults: Sequence[str]
    rate_per_minute: float
    load: int
    nodes: int
    kills: int
    software: Software
    machine: Machine
    directory: Path
    console: Console
