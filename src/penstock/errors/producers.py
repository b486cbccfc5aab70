"""What a producer is refused for."""

from __future__ import annotations

from penstock.errors.root import PenstockError


class OutOfOrderSequence(PenstockError):
    """An idempotent producer left a gap in its sequence numbers."""

    code = "out_of_order_sequence"


class DuplicateSequence(PenstockError):
    """An idempotent producer repeated a batch older than the ones remembered."""

    code = "duplicate_sequence"


class ProducerFenced(PenstockError):
    """A newer instance of this producer has taken over."""

    code = "producer_fenced"


class CoordinatorFenced(PenstockError):
    """Another node coordinates this transaction by now."""

    code = "coordinator_fenced"
