"""The small benches run: they reach into the core, so whatever is rebuilt there is to be followed here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from bench.micro import schedules


@pytest.mark.parametrize(
    ("bench", "told"),
    [
        (schedules.wheel, "wheel: add"),
        (schedules.near, "1,000 pending in the near days"),
        (schedules.far, "1,000 pending in the next year"),
        (schedules.snapshot, "snapshot: load"),
        (schedules.lanes, "lanes and fair: choose and lease, 10 at once"),
    ],
)
def test_it_tells_its_figures(bench: Callable[[int], None], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    bench(1_000)
    assert told in capsys.readouterr().out
