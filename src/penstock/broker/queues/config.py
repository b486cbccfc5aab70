"""What one queue group is held to; topics and groups may each say otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.errors import InvalidConfig

_HOUR_MS = 3_600_000


class Order(Enum):
    """What order messages keep when some of them fail."""

    NONE = "none"  # a message that failed comes again after others
    KEY = "key"  # a message comes only when everything before it with its key is done


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Timeouts, retries and limits of a queue group."""

    order: Order = Order.NONE
    visibility_timeout_ms: int = 30_000
    visibility_timeout_max_ms: int = 12 * _HOUR_MS
    # How often a message is delivered before it goes to the dead letters; 0 is without end.
    tries: int = 3
    retry_base_ms: int = 1_000
    retry_factor: float = 2.0
    retry_cap_ms: int = 60_000
    # The longest delay that a consumer may ask for with a nack.
    retry_delay_max_ms: int = 7 * 24 * _HOUR_MS
    in_flight_consumer_max: int = 1_000
    in_flight_group_max: int = 1_000_000
    # Messages that wait for an earlier one of their key are remembered, up to this many; then no more are looked at.
    held_max: int = 1_000_000
    reason_chars_max: int = 1_000

    def __post_init__(self) -> None:
        if not 1 <= self.visibility_timeout_ms <= self.visibility_timeout_max_ms:
            raise InvalidConfig(f"A visibility timeout is between 1 and {self.visibility_timeout_max_ms} ms.")
        if self.tries < 0 or self.retry_base_ms < 0 or self.retry_cap_ms < 0 or self.retry_factor < 1:
            raise InvalidConfig("Tries and retry delays are not negative, and a retry factor is 1 or more.")
        if self.in_flight_consumer_max < 1 or self.in_flight_group_max < 1 or self.held_max < 1:
            raise InvalidConfig("A limit of messages in flight or held is 1 or more.")

    def backoff_ms(self, deliveries: int) -> int:
        """How long a message waits after it failed for the nth time."""
        if self.retry_base_ms >= self.retry_cap_ms:
            return self.retry_cap_ms
        delay_ms = float(self.retry_base_ms)
        for _ in range(deliveries - 1):
            delay_ms *= self.retry_factor
            if delay_ms >= self.retry_cap_ms or self.retry_factor == 1:
                break
        return min(int(delay_ms), self.retry_cap_ms)

    def is_last_try(self, deliveries: int) -> bool:
        return 0 < self.tries <= deliveries
