"""The audit log: one line for every change of access or administration, and for requests that were denied.

Lines go to the logger ``penstock.audit`` with what happened as fields: who, from where, what, on what, the decision and
the request's id. Changes are always written. Denials are written up to a number a second, so that a client that is
refused in a loop fills no disk; the next line says how many were left out.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.access.principal import Principal
from penstock.clock import Clock

log: Final = logging.getLogger("penstock.audit")

DENIED_LINES_PER_SECOND: Final = 20
_TEXT_CHARS_MAX: Final = 256


class AuditLog:
    """Writes down what matters afterwards."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
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
        self, level: int, decision: str, who: str, host: str, operation: str, resource: str, request_id: str
    ) -> None:
        fields: dict[str, object] = {
            "principal": _plain(who),
            "host": _plain(host),
            "operation": _plain(operation),
            "resource": _plain(resource),
            "decision": decision,
            "request_id": _plain(request_id),
        }
        if self._left_out:
            fields["left_out"], self._left_out = self._left_out, 0
        log.log(level, "%s %s", decision, operation, extra=fields)


def _plain(text: str) -> str:
    """A text of a client as it may stand in a log: short, and without line breaks or control characters."""
    shown = "".join(char if char.isprintable() else "?" for char in text[:_TEXT_CHARS_MAX])
    return shown if len(text) <= _TEXT_CHARS_MAX else shown + "…"
