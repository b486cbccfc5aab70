"""What work on dead letters is refused for."""

from __future__ import annotations

from penstock.errors.groups import CoordinationError
from penstock.errors.root import PenstockError


class DeadLetterNotFound(PenstockError):
    """There is no dead letter at that place."""

    code = "dead_letter_not_found"


class RedriveNotFound(CoordinationError):
    """There is no such redrive, or it ended too long ago."""

    code = "redrive_not_found"


class RedriveRunning(CoordinationError):
    """Another redrive of the same dead letters is under way."""

    code = "redrive_running"
