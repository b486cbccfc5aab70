"""What consumers say of their messages: ack, nack, reject, extend, alone or on the stream of a subscription.

One way for all of them, so that a receipt is judged alike wherever it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from penstock.api.limits import DEFAULT_WRITER
from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import duration_ms, group_of, receipts_of
from penstock.doors.grpc.method import Method, Unary
from penstock.doors.grpc.statuses import error_of
from penstock.features.queues.core.messages import ReceiptOutcome
from penstock.features.queues.leases import SettledReceipt
from penstock.grpc.generated import queues_pb2
from penstock.grpc.generated.queues_pb2 import Outcome

OUTCOMES: Final[Mapping[ReceiptOutcome, Outcome.ValueType]] = {
    ReceiptOutcome.DONE: Outcome.OUTCOME_DONE,
    ReceiptOutcome.ALREADY_ACKED: Outcome.OUTCOME_ALREADY_ACKED,
    ReceiptOutcome.LEASE_OVER: Outcome.OUTCOME_LEASE_OVER,
    ReceiptOutcome.REDELIVERED: Outcome.OUTCOME_REDELIVERED,
    ReceiptOutcome.DEAD_LETTERED: Outcome.OUTCOME_DEAD_LETTERED,
    ReceiptOutcome.REPEATED: Outcome.OUTCOME_REPEATED,
    ReceiptOutcome.UNKNOWN: Outcome.OUTCOME_UNKNOWN,
    ReceiptOutcome.FOREIGN: Outcome.OUTCOME_FOREIGN,
    ReceiptOutcome.MALFORMED: Outcome.OUTCOME_MALFORMED,
    ReceiptOutcome.IN_TRANSACTION: Outcome.OUTCOME_IN_TRANSACTION,
}

Nacking = queues_pb2.NackRequest | queues_pb2.SettleNack
Timed = queues_pb2.ExtendRequest | queues_pb2.SettleExtend | queues_pb2.ReceiveRequest | queues_pb2.Subscription


def delay_of(request: Nacking) -> int | None:
    return duration_ms(request.delay, "delay") if request.HasField("delay") else None


def timeout_of(request: Timed, prefix: str = "") -> int | None:
    if not request.HasField("visibility_timeout"):
        return None
    return duration_ms(request.visibility_timeout, f"{prefix}visibility_timeout", low_ms=1)


def entry_of(request: queues_pb2.AckRequest | queues_pb2.SettleAck) -> dict[str, str]:
    """The transaction that acks are part of, if they are."""
    if not request.transaction:
        return {}
    return {"transaction": request.transaction, "writer": request.writer or DEFAULT_WRITER}


async def ack(door: Door, _call: Call, request: queues_pb2.AckRequest) -> queues_pb2.SettleResponse:
    receipts, group, topic = receipts_of(request.receipts), group_of(request.group), request.topic or None
    return response_of(await door.broker.queues.ack(group, receipts, topic=topic, **entry_of(request)))


async def nack(door: Door, _call: Call, request: queues_pb2.NackRequest) -> queues_pb2.SettleResponse:
    receipts, group, topic = receipts_of(request.receipts), group_of(request.group), request.topic or None
    delay_ms = delay_of(request)
    return response_of(
        await door.broker.queues.nack(group, receipts, topic=topic, delay_ms=delay_ms, reason=request.reason)
    )


async def reject(door: Door, _call: Call, request: queues_pb2.RejectRequest) -> queues_pb2.SettleResponse:
    receipts, group, topic = receipts_of(request.receipts), group_of(request.group), request.topic or None
    return response_of(await door.broker.queues.reject(group, receipts, topic=topic, reason=request.reason))


async def extend(door: Door, _call: Call, request: queues_pb2.ExtendRequest) -> queues_pb2.SettleResponse:
    receipts, group, topic = receipts_of(request.receipts), group_of(request.group), request.topic or None
    timeout_ms = timeout_of(request)
    return response_of(await door.broker.queues.extend(group, receipts, topic=topic, visibility_timeout_ms=timeout_ms))


METHODS: Final[Mapping[str, Method]] = {
    "Ack": Unary(ack),
    "Nack": Unary(nack),
    "Reject": Unary(reject),
    "Extend": Unary(extend),
}


def response_of(verdicts: Sequence[SettledReceipt]) -> queues_pb2.SettleResponse:
    return queues_pb2.SettleResponse(results=results_of(verdicts))


def results_of(verdicts: Sequence[SettledReceipt]) -> list[queues_pb2.SettleResult]:
    return [_result(verdict) for verdict in verdicts]


def _result(verdict: SettledReceipt) -> queues_pb2.SettleResult:
    if verdict.error is not None:
        return queues_pb2.SettleResult(receipt=verdict.receipt, error=error_of(verdict.error))
    is_range = len(verdict.parts) > 1 or any(part.first != part.last for part in verdict.parts)
    return queues_pb2.SettleResult(
        receipt=verdict.receipt,
        outcome=OUTCOMES[verdict.fate],
        parts=[
            queues_pb2.SettlePart(first_offset=part.first, last_offset=part.last, outcome=OUTCOMES[part.fate])
            for part in verdict.parts
        ]
        if is_range
        else None,
    )
