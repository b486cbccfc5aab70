"""The audit log: one line for every change of access or administration, and for requests that were denied.

Lines go to the logger ``penstock.audit`` with what happened as fields: who, from where, what, on what, the decision and
the request's id; where security is on, the same goes to the topic ``__audit`` (`audit_topic`). Changes are always
written. Denials are written up to a number a second, so that a client that is refused in a loop fills no disk; the next
line says how many were left out. No event holds a credential.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from penstock.access.principal import Principal
from penstock.clock import Clock

log: Final = logging.getLogger("penstock.audit")

DENIED_LINES_PER_SECOND: Final = 20
_TEXT_CHARS_MAX: Final = 256
_LOGGED: Final = ("principal", "host", "operation", "resource", "decision", "request_id")


Decision = Literal["allowed", "failed", "denied", "login_failed"]


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that matters afterwards. Format: docs/formats/audit.md."""

    time_ms: int
    node_id: int
    decision: Decision
    principal: str = ""
    host: str = ""
    operation: str = ""
    resource: str = ""
    request_id: str = ""
    left_out: int = 0  # denials before this one that were too many to be written


class AuditLog:
    """Writes down what matters afterwards."""

    def __init__(self, clock: Clock, node_id: int = 0, keep: Callable[[AuditEvent], None] | None = None) -> None:
        """``keep`` takes each event in; it must not wait."""
        self._clock = clock
        self._node_id = node_id
        self._keep = keep
        self._second = 0
        self._lines = 0
        self._left_out = 0

    def changed(self, principal: Principal, host: str, operation: str, resource: str, request_id: str) -> None:
        """Something was changed that administrators answer for."""
        self._write(logging.INFO, "allowed", str(principal), host, operation, resource, request_id)

    def failed(self, principal: Principal, host: str, operation: str, resource: str, request_id: str) -> None:
        """A change was allowed and did not happen, or not in full."""
        self._write(logging.INFO, "failed", str(principal), host, operation, resource, request_id)

    def denied(self, principal: Principal, host: str, operation: str, resource: str, request_id: str) -> None:
        if self._may_write():
            self._write(logging.WARNING, "denied", str(principal), host, operation, resource, request_id)

    def login_failed(self, host: str, door: str, reason: str, request_id: str = "") -> None:
        if self._may_write():
            self._write(logging.WARNING, "login_failed", "", host, door, reason, request_id)

    def _may_write(self) -> bool:
        second = int(self._clock.monotonic())
        if second != self._second:
            self._second, self._lines = second, 0
        self._lines += 1
        if self._lines > DENIED_LINES_PER_SECOND:
            self._left_out += 1
            return False
        return True

    def _write(
        self, level: int, decision: Decision, who: str, host: str, operation: str, resource: str, request_id: str
    ) -> None:
        left_out, self._left_out = self._left_out, 0
        event = AuditEvent(
            time_ms=self._clock.now_ms(),
            node_id=self._node_id,
            decision=decision,
            principal=_plain(who),
            host=_plain(host),
            operation=_plain(operation),
            resource=_plain(resource),
            request_id=_plain(request_id),
            left_out=left_out,
        )
        fields: dict[str, object] = {name: getattr(event, name) for name in _LOGGED}
        if left_out:
            fields["left_out"] = left_out
        log.log(level, "%s %s", decision, operation, extra=fields)
        if self._keep is not None:
            self._keep(event)


def _plain(text: str) -> str:
    """A text of a client as it may stand in a log: short, and without line breaks or control characters."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:_TEXT_CHARS_MAX])
    return shown if len(text) <= _TEXT_CHARS_MAX else shown + "…"
