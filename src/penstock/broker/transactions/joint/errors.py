"""What can be wrong with a call about a joint transaction. These belong to the one tree in `penstock.errors`."""

from __future__ import annotations

from penstock.errors import TransactionError


class TransactionNotFound(TransactionError):
    """There is no such transaction, or its outcome is no longer remembered."""

    code = "transaction_not_found"


class TransactionEnded(TransactionError):
    """The transaction has ended, or is being ended; begin a new one."""

    code = "transaction_ended"


class TransactionTimedOut(TransactionEnded):
    """The transaction was open for too long and was aborted; begin a new one."""

    code = "transaction_timed_out"


class UnknownWriter(TransactionError):
    """A writer is named that has written nothing into this transaction."""

    code = "unknown_writer"


class TransactionLimitReached(TransactionError):
    """As many transactions are open, or one has as many writers, as this node allows."""

    code = "transaction_limit_reached"
    retriable = True


class IdempotencyKeyReused(TransactionError):
    """The idempotency key was used before, for a call that asked for something else."""

    code = "idempotency_key_reused"
