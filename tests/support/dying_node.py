"""A node that kills itself at a chosen step of its coordinators: ``python -m tests.support.dying_node serve …``.

A step is a write that a coordinator makes: a batch to an internal topic, or the marker that ends a transaction
anywhere. DIE_AT_STEP names one of them, counted from 1 since the start, and DIE_WHEN the moment: ``before`` it is
written, when it ``is-written``, or when it ``is-committed``, before anybody is told. The kill is a real one, so nothing
is closed, flushed or told.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from penstock.cli.main import main
from penstock.partitions.partition import Appended, Partition

MOMENTS = ("before", "is-written", "is-committed")

_at = int(os.environ.get("DIE_AT_STEP", "0"))
_when = os.environ.get("DIE_WHEN", "")
_steps = 0


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _as_step(write: Callable[..., Appended], *, is_internal_only: bool) -> Callable[..., Appended]:
    def written(partition: Partition, *arguments: Any, **options: Any) -> Appended:
        global _steps
        if is_internal_only and not partition.is_internal:
            return write(partition, *arguments, **options)
        _steps += 1
        is_due = _steps == _at
        if is_due and _when == "before":
            _die()
        appended = write(partition, *arguments, **options)
        if is_due and _when == "is-written":
            _die()
        if is_due:
            partition.when_committed(appended.next_offset, lambda _error: _die())
        return appended

    return written


def _arm() -> None:
    assert _when in MOMENTS, f"DIE_WHEN is one of {MOMENTS}, not {_when!r}"
    Partition.append = _as_step(Partition.append, is_internal_only=True)  # type: ignore[method-assign]
    Partition.end_transaction = _as_step(Partition.end_transaction, is_internal_only=False)  # type: ignore[method-assign]


if __name__ == "__main__":
    if _at:
        _arm()
    sys.exit(main())
