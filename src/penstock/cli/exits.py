"""Exit codes, the errors that carry one, and the node that is asked by default. Scripts rely on these: they stay."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:8080"  # of the node to ask


class Exit(IntEnum):
    """How a command ended."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    INTERRUPTED = 130


class OutputClosedError(Exception):
    """The reader of our output has closed it, as ``| head`` does."""


class CommandError(Exception):
    """A command could not do what it was asked; the message says why and what to do."""

    def __init__(self, message: str, exit_code: Exit = Exit.FAILURE) -> None:
        super().__init__(message)
        self.message = message
        self.exit_code = exit_code
