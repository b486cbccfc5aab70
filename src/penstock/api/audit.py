"""The audit log: who changed what, and who was refused, as all nodes noted it in the topic ``__audit``."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock import errors
from penstock.api import limits
from penstock.api.limits import Instant
from penstock.api.operation import Action, Repeat, Request, Resource, operation

Decision = Literal["allowed", "failed", "denied", "login_failed"]


class AuditEventView(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what, from where, to what, and what was decided.

    `failed`: it was allowed and did not happen, or not in full. Of a login that failed the principal is not known.
    """

    time: Instant | None
    principal: str
    host: str
    operation: str
    resource: str
    decision: Decision
    request_id: Annotated[str, Meta(description="As the client called the request, if it did.")]
    node_id: int
    left_out: Annotated[int, Meta(description="Refusals before it that were too many a second to be written.")]


class AuditPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events, the newest first; `scanned` of `total` were looked at."""

    events: list[AuditEventView]
    scanned: int
    total: int


@operation(
    "GET /v1/audit",
    tag="audit",
    needs=Action.DESCRIBE.of(Resource.CLUSTER),
    repeat=Repeat.SAFE,
    errors=(errors.NotLeader,),
)
class ReadAudit(Request[AuditPage], frozen=True, kw_only=True):
    """Read the audit log, the newest event first. It is empty where security is off."""

    principal: Annotated[
        Annotated[str, Meta(max_length=300)] | None, Meta(description="Only of this one, as User:alice.")
    ] = None
    decision: Annotated[Decision | None, Meta(description="Only with this decision.")] = None
    since: Annotated[Instant | None, Meta(description="Only from this instant on (RFC 3339).")] = None
    limit: Annotated[int, Meta(ge=1, le=limits.PAGE_MAX, description="How many events at most.")] = 100
