"""PySpark's daemon, which forks its workers, without a traceback for each of them that Spark needs no more.

Spark closes the sockets of workers when a query ends. PySpark's own daemon prints what such a worker meets then, so
that a run which did everything looks as if it had failed. All else is printed as before.
"""

from __future__ import annotations

import sys
import traceback

from pyspark import daemon

_print_exc = traceback.print_exc


def _print_what_matters() -> None:
    if not isinstance(sys.exc_info()[1], (BrokenPipeError, ConnectionResetError)):
        _print_exc()


if __name__ == "__main__":
    traceback.print_exc = _print_what_matters  # type: ignore[assignment]  # PySpark calls it without arguments
    daemon.manager()
