"""Topics as tables of Spark: read and written in batches and streams, through PySpark.

``spark.read.format("penstock")`` works in every session where Penstock is installed. `session` makes one that is tuned
for it and brings a Java along where the machine has none. Only the client's part of Penstock is used here, so that
executors never import the broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.extras import needs

if TYPE_CHECKING:
    from penstock.spark.sessions import session

__all__ = ["session"]


def __getattr__(name: str) -> Any:
    """PySpark takes a second to import: only a caller that makes a session pays for it."""
    if name != "session":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("spark", "penstock.spark"):
        from penstock.spark.sessions import session

    return session
