"""What a subscriber holds: the deliveries that it was sent and has not settled, to be given back when it is gone.

Sans IO: deliveries and results come in, receipts go out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec import UNSET

from penstock.api.messages import to_ms
from penstock.api.queues import QueueMessage, ReceiptResult
from penstock.features.queues.core.messages import parse_receipt

# A lease that is extended is not told how long it lasts now; none lasts longer than this.
_LEASE_MS_MAX: Final = 12 * 3_600_000
_PRUNED_FROM: Final = 10_000


class Held(NamedTuple):
    """One delivery."""

    receipt: str
    nonce: str
    until_ms: int


class Holdings:
    """Deliveries by partition and offset; a later delivery of the same message takes the place of the one before."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, int], Held] = {}
        self._prune_at = _PRUNED_FROM

    def __len__(self) -> int:
        return len(self._held)

    def add(self, messages: Iterable[QueueMessage], now_ms: int) -> None:
        """These were sent."""
        for message in messages:
            nonce = message.receipt.rpartition(":")[2]
            until_ms = now_ms + _LEASE_MS_MAX if message.lease_until is None else to_ms(message.lease_until)
            self._held[message.partition, message.offset] = Held(message.receipt, nonce, until_ms)
        if len(self._held) >= self._prune_at:
            self._held = {where: held for where, held in self._held.items() if held.until_ms > now_ms}
            self._prune_at = max(2 * len(self._held), _PRUNED_FROM)

    def settled(self, results: Iterable[ReceiptResult]) -> None:
        """These are not held any more, whatever became of them; where nothing is known of them, they still are."""
        for result in results:
            for where in self._named(result):
                del self._held[where]

    def extended(self, results: Iterable[ReceiptResult], now_ms: int) -> None:
        """These are held for longer, or not at all."""
        for result in results:
            for where in self._named(result):
                self._held[where] = self._held[where]._replace(until_ms=now_ms + _LEASE_MS_MAX)

    def _named(self, result: ReceiptResult) -> list[tuple[int, int]]:
        receipt = None if result.error is not UNSET else parse_receipt(result.receipt)
        if receipt is None:
            return []
        if receipt.last - receipt.first > len(self._held):
            wanted = [
                (partition, offset)
                for partition, offset in self._held
                if partition == receipt.partition and receipt.first <= offset <= receipt.last
            ]
        else:
            wanted = [(receipt.partition, offset) for offset in range(receipt.first, receipt.last + 1)]
        return [where for where in wanted if where in self._held and self._held[where].nonce == receipt.nonce]

    def receipts(self) -> list[str]:
        """The receipts of all that is held."""
        return [held.receipt for held in self._held.values()]
