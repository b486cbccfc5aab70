"""Ready pipelines: jobs that many need, to be used by naming them.

Each is a module with a `ReadyPipeline` in it; `READY` has them by name.
"""

from __future__ import annotations

from typing import Final

from penstock.pipelines.ready.kind import ReadyPipeline

READY: Final[dict[str, ReadyPipeline]] = {}
