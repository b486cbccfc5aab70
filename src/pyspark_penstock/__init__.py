"""The name by which Spark finds the data source: it imports every ``pyspark_*`` module that it sees.

Spark looks for ``DefaultSource`` here in every session, also where Penstock is not used, and an import error
would take all other sources with it. So nothing is imported until the class is asked for.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> Any:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from penstock.spark.source import PenstockSource

    return PenstockSource
