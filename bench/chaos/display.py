"""What a person sees while chaos runs: a bar with the time left and the faults of the moment, or plain lines."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Display:
    """A bar over `total` (seconds, or kills), and lines above it."""

    def __init__(self, console: Console, total: float) -> None:
        self._console = console
        self._began = time.monotonic()
        self._bar = Progress(
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total)

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def update(self, done: float, text: str) -> None:
        self._bar.update(self._task, completed=done, description=text)

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._console.print(f"{minutes:02}:{seconds:02} {text}", markup=False, highlight=False, soft_wrap=True)
