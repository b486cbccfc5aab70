"""Serves the audit log."""

from __future__ import annotations

from penstock.api.audit import AuditEventView, AuditPage, ReadAudit
from penstock.api.messages import instant, to_ms
from penstock.features.access.audit import AuditEvent
from penstock.features.access.audit_topic import AuditFilter
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import serves


@serves(ReadAudit)
async def read_audit(services: Services, request: ReadAudit, _caller: Caller) -> AuditPage:
    wanted = AuditFilter(
        principal=request.principal,
        decision=request.decision,
        since_ms=None if request.since is None else to_ms(request.since),
    )
    found = await services.broker.audit_topic.find(wanted, request.limit)
    return AuditPage(events=[_view(event) for event in found.events], scanned=found.scanned, total=found.total)


def _view(event: AuditEvent) -> AuditEventView:
    return AuditEventView(
        time=instant(event.time_ms),
        principal=event.principal,
        host=event.host,
        operation=event.operation,
        resource=event.resource,
        decision=event.decision,
        request_id=event.request_id,
        node_id=event.node_id,
        left_out=event.left_out,
    )
