"""What a person sees while the benchmark runs: a bar with the time left on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar


class Progress:
    """Counts steps; `say` prints a line above the bar."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console = console
        self._steps = steps
        self._done = 0
        self._started = time.monotonic()
        self._bar = Bar(
            SpinnerColumn(),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=steps)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._bar.stop()

    def step(self, text: str) -> None:
        """The next step begins."""
        self._bar.update(self._task, completed=self._done, description=text)
        self._done += 1
        if not self._console.is_terminal:
            self.say(f"[{self._done}/{self._steps}] {text}")

    def say(self, text: str) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        self._console.print(f"{minutes:02}:{seconds:02} {text}", markup=False, highlight=False, soft_wrap=True)
