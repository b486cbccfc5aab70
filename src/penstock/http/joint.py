"""The request headers of joint transactions: into which one to publish and as whom, and how a commit is recognised."""

from __future__ import annotations

import re
from typing import Any, Final

from penstock.broker.transactions.joint.publishing import Ticket
from penstock.broker.transactions.joint.writers import DEFAULT_WRITER
from penstock.http.exchange import Call
from penstock.http.problems import InvalidParameter

TICKET_HEADERS: Final = (
    ("Penstock-Transaction", "Publish into this joint transaction; nobody sees it before that is committed."),
    ("Penstock-Writer", f"As which of its writers; default: {DEFAULT_WRITER}."),
    (
        "Penstock-Sequence",
        "How many messages this writer has published into it before this call; a repeated call is not written twice.",
    ),
)
WRITER_HEADERS: Final = (("Penstock-Writer", f"As which of the transaction's writers; default: {DEFAULT_WRITER}."),)
IDEMPOTENCY_HEADERS: Final = (
    ("Idempotency-Key", "Names this commit: repeated with the same key it is answered as the first time."),
)

_SEQUENCE: Final = re.compile(r"\d{1,10}")
_KEY: Final = re.compile(r"[\x20-\x7e]{1,255}")


def ticket_of(call: Call[Any, Any]) -> Ticket | None:
    """The transaction that a call publishes into, None if it does so for itself."""
    transaction = call.header(b"penstock-transaction")
    writer = call.header(b"penstock-writer")
    sequence = call.header(b"penstock-sequence")
    if not transaction:
        if writer or sequence:
            raise InvalidParameter("Penstock-Writer and Penstock-Sequence mean nothing without Penstock-Transaction.")
        return None
    if sequence and not _SEQUENCE.fullmatch(sequence):
        raise InvalidParameter(f"Penstock-Sequence is a count of messages, such as 0 or 120, not {sequence!r}.")
    return Ticket(transaction, writer or DEFAULT_WRITER, int(sequence) if sequence else None)


def idempotency_key_of(call: Call[Any, Any]) -> str | None:
    """What the caller names this call by, if it does."""
    key = call.header(b"idempotency-key")
    if key and not _KEY.fullmatch(key):
        raise InvalidParameter("Idempotency-Key takes 1 to 255 printable ASCII characters.")
    return key or None
