"""Ready pipelines: jobs that many need, to be used by naming them.

Each is a module with a `ReadyPipeline` in it; `READY` has them by name.
"""

from __future__ import annotations

from typing import Final

from penstock.pipelines.ready.archive import Archive
from penstock.pipelines.ready.dead_letters import DeadLetterReport
from penstock.pipelines.ready.flows import Aggregate, Dedupe, Enrich, JoinPipeline
from penstock.pipelines.ready.health import HealthReport
from penstock.pipelines.ready.kind import ReadyPipeline
from penstock.pipelines.ready.restore import Replay, Restore

READY: Final[dict[str, ReadyPipeline]] = {
    ready.name: ready
    for ready in (
        Archive(),
        Restore(),
        Replay(),
        Aggregate(),
        JoinPipeline(),
        Dedupe(),
        Enrich(),
        DeadLetterReport(),
        HealthReport(),
    )
}
