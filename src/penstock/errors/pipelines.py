"""What work on pipelines is refused for."""

from __future__ import annotations

from penstock.errors.root import PenstockError


class PipelineNotFound(PenstockError):
    """No pipeline of that name has ever reported to this cluster."""

    code = "pipeline_not_found"


class PipelineReplaced(PenstockError):
    """A later run of the same pipeline has taken over."""

    code = "pipeline_replaced"


class InvalidLake(PenstockError):
    """A lake is not as its catalog says, or two write to it at once."""

    code = "invalid_lake"
