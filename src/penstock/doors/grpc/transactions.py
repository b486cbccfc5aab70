"""Joint transactions over gRPC, from the beginning to the end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from penstock.doors.grpc.call import Call
from penstock.doors.grpc.door import Door
from penstock.doors.grpc.fields import INT32_MAX, duration, duration_ms, instant, needed
from penstock.doors.grpc.method import Method, Unary
from penstock.doors.grpc.statuses import InvalidArgument
from penstock.features.transactions.joint.coordinator import Lease
from penstock.features.transactions.joint.messages import JointEnd
from penstock.grpc.generated import transactions_pb2
from penstock.grpc.generated.transactions_pb2 import TransactionState
from penstock.machines.addresses import NEW_TRANSACTION, CoordinatorAddress, transaction_address

_TIMEOUT_MS: Final = 60_000
_WRITERS_MAX: Final = 10_000
_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}")
_STATES: Final[Mapping[str, TransactionState.ValueType]] = {
    "open": TransactionState.TRANSACTION_STATE_OPEN,
    "committing": TransactionState.TRANSACTION_STATE_COMMITTING,
    "aborting": TransactionState.TRANSACTION_STATE_ABORTING,
    "committed": TransactionState.TRANSACTION_STATE_COMMITTED,
    "aborted": TransactionState.TRANSACTION_STATE_ABORTED,
}

Named = (
    transactions_pb2.ExtendTransactionRequest
    | transactions_pb2.CommitTransactionRequest
    | transactions_pb2.AbortTransactionRequest
    | transactions_pb2.GetTransactionRequest
)


def home(request: Named) -> CoordinatorAddress:
    return transaction_address(needed(request.transaction, "transaction"))


def home_of_new(_request: transactions_pb2.BeginTransactionRequest) -> CoordinatorAddress:
    return NEW_TRANSACTION


async def begin(
    door: Door, _call: Call, request: transactions_pb2.BeginTransactionRequest
) -> transactions_pb2.TransactionLease:
    timeout_ms = _timeout_ms(request)
    return _lease(await door.broker.joint.open(_TIMEOUT_MS if timeout_ms is None else timeout_ms))


async def extend(
    door: Door, _call: Call, request: transactions_pb2.ExtendTransactionRequest
) -> transactions_pb2.TransactionLease:
    return _lease(await door.broker.joint.extend(request.transaction, _timeout_ms(request)))


async def commit(
    door: Door, _call: Call, request: transactions_pb2.CommitTransactionRequest
) -> transactions_pb2.TransactionEnd:
    key = request.idempotency_key
    if key and not _KEY.fullmatch(key):
        raise InvalidArgument("idempotency_key takes 1 to 255 printable ASCII characters.")
    if len(request.writers) > _WRITERS_MAX:
        raise InvalidArgument(f"writers has {len(request.writers)} entries; it takes up to {_WRITERS_MAX}.")
    writers = tuple(request.writers) or None
    ended = await door.broker.joint.commit(request.transaction, key=key or None, writers=writers)
    return _end(request.transaction, ended)


async def abort(
    door: Door, _call: Call, request: transactions_pb2.AbortTransactionRequest
) -> transactions_pb2.TransactionEnd:
    return _end(request.transaction, await door.broker.joint.abort(request.transaction))


async def get(door: Door, _call: Call, request: transactions_pb2.GetTransactionRequest) -> transactions_pb2.Transaction:
    joint = door.broker.joint
    await joint.loaded()
    found = joint.find(request.transaction)
    stored = found.stored
    assert stored is not None, "what is found is stored"
    expires_ms = joint.expires_ms(found)
    return transactions_pb2.Transaction(
        transaction=found.id,
        state=_STATES[stored.state.value],
        timeout=duration(stored.timeout_ms),
        begin_time=instant(stored.opened_ms),
        expire_time=None if expires_ms is None else instant(expires_ms),
        writers=[
            transactions_pb2.TransactionWriter(
                writer=name, next_sequence=None if writer.call is None else writer.call.next_sequence
            )
            for name, writer in found.writers.items()
        ],
        reason="" if stored.reason is None else stored.reason.value,
    )


METHODS: Final[Mapping[str, Method]] = {
    "BeginTransaction": Unary(begin, home_of_new),
    "ExtendTransaction": Unary(extend, home),
    "CommitTransaction": Unary(commit, home),
    "AbortTransaction": Unary(abort, home),
    "GetTransaction": Unary(get, home),
}


def _timeout_ms(
    request: transactions_pb2.BeginTransactionRequest | transactions_pb2.ExtendTransactionRequest,
) -> int | None:
    if not request.HasField("timeout"):
        return None
    return duration_ms(request.timeout, "timeout", low_ms=1, high_ms=INT32_MAX)


def _lease(lease: Lease) -> transactions_pb2.TransactionLease:
    return transactions_pb2.TransactionLease(
        transaction=lease.id, timeout=duration(lease.timeout_ms), expire_time=instant(lease.expires_ms)
    )


def _end(transaction: str, ended: JointEnd) -> transactions_pb2.TransactionEnd:
    return transactions_pb2.TransactionEnd(
        transaction=transaction,
        state=_STATES[ended.state.value],
        committed_writers=ended.committed,
        aborted_writers=ended.aborted,
        reason="" if ended.reason is None else ended.reason.value,
    )
