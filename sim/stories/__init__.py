"""Stories: histories that are too unlikely to wait for, told step by step. Each is a bug that somebody once had."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Final

from sim.stories import elections, entries, members, reads, snapshots

Story = Callable[[], None]


def _of(module: ModuleType) -> dict[str, Story]:
    """The public functions that a module tells itself."""
    return {
        name.replace("_", " "): value
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_") and getattr(value, "__module__", "") == module.__name__
    }


STORIES: Final[dict[str, Story]] = {
    name: story for module in (elections, entries, members, reads, snapshots) for name, story in _of(module).items()
}
