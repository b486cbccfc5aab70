"""What coordinators of transactions refuse."""

from __future__ import annotations

from penstock.errors.groups import CoordinationError


class TransactionError(CoordinationError):
    """A transaction's coordinator refuses the request."""

    code = "transaction_error"


class InvalidTxnState(TransactionError):
    """The transaction is not in a state in which that can be done."""

    code = "invalid_transaction_state"


class InvalidTransactionTimeout(TransactionError):
    """The transaction timeout is outside what this cluster allows."""

    code = "invalid_transaction_timeout"


class InvalidProducerIdMapping(TransactionError):
    """The producer id is not the one that this transactional id has now; start the producer anew."""

    code = "invalid_producer_id_mapping"


class ConcurrentTransactions(TransactionError):
    """The last transaction of this transactional id is still being ended; try again in a moment."""

    code = "concurrent_transactions"
    retriable = True


class TransactionAbortable(TransactionError):
    """The transaction can only be aborted now; abort it and begin anew."""

    code = "transaction_abortable"


class TransactionalIdNotFound(TransactionError):
    """There is no such transactional id."""

    code = "transactional_id_not_found"


class TransactionalIdMissing(TransactionError):
    """Transactional records came in a request that names no transactional id."""

    code = "transactional_id_missing"


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


class SeriesFenced(TransactionError):
    """Another run has taken over the series of transactions; stop this one."""

    code = "series_fenced"
