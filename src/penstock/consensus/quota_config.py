"""Quotas of clients that are kept in the metadata: for whom, which there are, and which one counts.

As in Kafka, a quota is for a user, a client id, both together, or an address; each of them may be the default of its
kind. Of several that fit a client, the most specific counts (`resolve`). An entity's name in the metadata is its
canonical JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from penstock.errors import InvalidConfig, InvalidRequest

DEFAULT: Final = ""  # in place of a name: all that have no quota of their own
PRODUCER_RATE: Final = "producer_byte_rate"
CONSUMER_RATE: Final = "consumer_byte_rate"
REQUEST_RATE: Final = "request_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_RATE: Final = "connection_creation_rate"

QUOTAS: Final[Mapping[str, str]] = {
    PRODUCER_RATE: "Bytes a second that a client may publish.",
    CONSUMER_RATE: "Bytes a second that a client may fetch, read or receive.",
    REQUEST_RATE: "Requests a second.",
    REQUEST_PERCENTAGE: "Share of one core's time that its requests may take, in percent.",
    MUTATION_RATE: "Partitions a second that a client may create or delete.",
}
ADDRESS_QUOTAS: Final[Mapping[str, str]] = {
    CONNECTION_RATE: "New connections a second from the address.",
}
_NAME_CHARS_MAX: Final = 255
_VALUE_MAX: Final = float(1 << 53)


class QuotaEntity(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """For whom a quota is. None: not looked at; `DEFAULT`: all without a quota of their own."""

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None

    @property
    def name(self) -> str:
        """What it is kept under."""
        return msgspec.json.encode(self).decode()

    @property
    def shown(self) -> str:
        """As people read it."""
        parts = [(name, getattr(self, name)) for name in ("user", "client_id", "ip")]
        return " and ".join(f"{name} {value or '*'!r}" for name, value in parts if value is not None) or "nothing"

    @classmethod
    def of(cls, name: str) -> QuotaEntity:
        """The entity of a name in the metadata."""
        return msgspec.json.decode(name, type=cls)


def check_quota(name: str, changes: Mapping[str, str | None]) -> None:
    """Raise an error that says what is wrong, unless the entity can have these quotas."""
    try:
        entity = QuotaEntity.of(name)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"A quota is for a user, a client id, both, or an address: {error}.") from None
    parts = [part for part in (entity.user, entity.client_id, entity.ip) if part is not None]
    if not parts:
        raise InvalidRequest("Say for whom the quota is: a user, a client id, both, or an address.")
    if entity.ip is not None and len(parts) > 1:
        raise InvalidRequest("A quota is for an address, or for a user and a client id; not for both.")
    if any(len(part) > _NAME_CHARS_MAX for part in parts):
        raise InvalidRequest(f"Names of users and client ids have at most {_NAME_CHARS_MAX} characters here.")
    known = QUOTAS if entity.ip is None else ADDRESS_QUOTAS
    for key, value in changes.items():
        if key not in known:
            raise InvalidConfig(f"There is no quota {key!r} for this. There are: {', '.join(known)}.")
        if value is not None and not 0 < _number(value) <= _VALUE_MAX:
            raise InvalidConfig(f"{key}: {value!r} is not a rate; give a number above 0.")


def _number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        return 0.0


class Quota(NamedTuple):
    """A rate, and the clients that share it: with defaults replaced by the client's own names."""

    rate: float
    shared_by: QuotaEntity


def resolve(configured: Mapping[str, Mapping[str, str]], user: str, client_id: str, key: str) -> Quota | None:
    """The quota that counts for a client; None if it has none. ``configured`` has quotas by entities' names."""
    for entity in _candidates(user, client_id):
        value = configured.get(entity.name, {}).get(key)
        if value is not None:
            return Quota(float(value), _with_names(entity, user, client_id))
    return None


def resolve_address(configured: Mapping[str, Mapping[str, str]], ip: str, key: str) -> Quota | None:
    """The quota that counts for an address."""
    for entity in (QuotaEntity(ip=ip), QuotaEntity(ip=DEFAULT)):
        value = configured.get(entity.name, {}).get(key)
        if value is not None:
            return Quota(float(value), QuotaEntity(ip=ip))
    return None


def _candidates(user: str, client_id: str) -> Iterator[QuotaEntity]:
    """From the most specific on, in Kafka's order (KIP-55)."""
    for named in (user, DEFAULT):
        yield QuotaEntity(user=named, client_id=client_id)
        yield QuotaEntity(user=named, client_id=DEFAULT)
        yield QuotaEntity(user=named)
    yield QuotaEntity(client_id=client_id)
    yield QuotaEntity(client_id=DEFAULT)


def _with_names(entity: QuotaEntity, user: str, client_id: str) -> QuotaEntity:
    return QuotaEntity(
        user=None if entity.user is None else user, client_id=None if entity.client_id is None else client_id
    )
