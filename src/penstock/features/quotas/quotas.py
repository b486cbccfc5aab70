"""The quotas of a node's clients, as the metadata has them, with a meter for each that is in use.

A client is a user with a client id. Doors ask once for a client's meters and again when ``version`` has changed; while
no quota is set, ``is_on`` is False and nothing is measured. Quotas hold for each node, as in Kafka.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from penstock.clock import Clock
from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.quota_config import (
    CONNECTION_RATE,
    CONSUMER_RATE,
    MUTATION_RATE,
    PRODUCER_RATE,
    REQUEST_PERCENTAGE,
    REQUEST_RATE,
    Quota,
    QuotaEntity,
    resolve,
    resolve_address,
)
from penstock.consensus.records import MetadataRecord, ResourceConfigured
from penstock.features.quotas.meter import Meter

# What a client is held to, as metrics and refusals name it.
PRODUCE: Final = "produce"
CONSUME: Final = "consume"
REQUESTS: Final = "requests"
TIME: Final = "time"
MUTATIONS: Final = "mutations"

_METERS_MAX: Final = 10_000  # past this, idle ones are dropped


class ClientMeters(NamedTuple):
    """What one client is measured by; None where it has no quota."""

    produce: Meter | None
    consume: Meter | None
    requests: Meter | None
    time: Meter | None
    mutations: Meter | None


UNMEASURED: Final = ClientMeters(None, None, None, None, None)


class Quotas:
    """Meters by what they measure and who shares them."""

    def __init__(self, metadata: ClusterMetadata, clock: Clock) -> None:
        self._metadata = metadata
        self._clock = clock
        self._configured: Mapping[str, Mapping[str, str]] = {}
        self._meters: dict[tuple[str, QuotaEntity], Meter] = {}
        self._clients: dict[tuple[str, str], ClientMeters] = {}  # as `meters_of` found them last
        self.version = 0
        self.is_on = False
        self.throttled: Counter[tuple[str, str]] = Counter()  # pauses and refusals, by door and kind of quota
        self.throttled_s: dict[tuple[str, str], float] = {}  # how long clients had to wait by that

    def on_applied(self, _index: int, records: Sequence[MetadataRecord]) -> None:
        """An entry of the metadata log was applied."""
        if any(isinstance(record, ResourceConfigured) and record.kind == "quota" for record in records):
            self.apply()

    def on_reset(self) -> None:
        """The metadata was replaced by a snapshot."""
        self.apply()

    def apply(self) -> None:
        """Go by what the metadata has now. Meters keep what was used of them."""
        found = {name: configs for (kind, name), configs in self._metadata.configured.items() if kind == "quota"}
        self._configured = found
        self.is_on = bool(found)
        self._clients.clear()
        self.version += 1
        if not found:
            self._meters.clear()

    def meters_of(self, user: str, client_id: str) -> ClientMeters:
        """What a client is measured by."""
        if not self.is_on:
            return UNMEASURED
        known = self._clients.get((user, client_id))
        if known is not None:
            return known
        version = self.version

        def meter(key: str, unit: float = 1.0) -> Meter | None:
            return self._meter(key, resolve(self._configured, user, client_id, key), unit)

        found = ClientMeters(
            produce=meter(PRODUCER_RATE),
            consume=meter(CONSUMER_RATE),
            requests=meter(REQUEST_RATE),
            time=meter(REQUEST_PERCENTAGE, unit=0.01),  # percent of a second to seconds
            mutations=meter(MUTATION_RATE),
        )
        if version == self.version:  # else one of these may have been dropped as idle meanwhile
            if len(self._clients) >= _METERS_MAX:
                self._clients.clear()
            self._clients[user, client_id] = found
        return found

    def note_throttled(self, door: str, kind: str, seconds: float) -> None:
        """A client was held to its quota: it pauses for so long, or was told to."""
        self.throttled[door, kind] += 1
        self.throttled_s[door, kind] = self.throttled_s.get((door, kind), 0.0) + seconds

    def connection_meter(self, ip: str) -> Meter | None:
        """What new connections from an address are measured by."""
        return self._meter(CONNECTION_RATE, resolve_address(self._configured, ip, CONNECTION_RATE), 1.0)

    def _meter(self, key: str, quota: Quota | None, unit: float) -> Meter | None:
        if quota is None:
            return None
        rate, shared_by = quota
        meter = self._meters.get((key, shared_by))
        if meter is None:
            if len(self._meters) >= _METERS_MAX:
                self._drop_idle()
            meter = self._meters[key, shared_by] = Meter(rate * unit, self._clock.monotonic())
        meter.rate = rate * unit
        return meter

    def _drop_idle(self) -> None:
        now = self._clock.monotonic()
        self._meters = {key: meter for key, meter in self._meters.items() if not meter.is_idle(now)}
        self._clients.clear()
        self.version += 1  # doors that hold one of those ask again, or there would be two for the same clients
