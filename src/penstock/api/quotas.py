"""Quotas of clients: how much they may publish, read and ask for in a second, at each node.

A quota is for a user, a client id, both together, or an address; ``*`` stands for all that have none of their own. Of
several that fit a client the most specific counts, as in Kafka. Rates have Kafka's names, and Kafka's
tools see them too.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock import errors
from penstock.api import limits
from penstock.api.operation import Action, Repeat, Request, Resource, operation
from penstock.api.topics import SettingValue

ALL_OTHERS: Final = "*"

User = Annotated[
    Annotated[str, Meta(min_length=1, max_length=255)] | None,
    Meta(description="The user, without User:; * means all users without a quota of their own."),
]
ClientId = Annotated[
    Annotated[str, Meta(min_length=1, max_length=255)] | None,
    Meta(description="What clients call themselves; * means all ids without a quota of their own."),
]
Ip = Annotated[
    Annotated[str, Meta(min_length=1, max_length=255)] | None,
    Meta(description="An address, for connection_creation_rate alone; * means all others."),
]

_ERRORS: Final = (errors.PolicyViolation, errors.NotController, errors.DiskFull)


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """Whom quotas are for, and their rates by name; a part that is null is not looked at."""

    user: str | None
    client_id: str | None
    ip: str | None
    quotas: dict[str, str]


class QuotaList(msgspec.Struct, frozen=True, kw_only=True):
    quotas: list[QuotaView]


@operation("GET /v1/quotas", tag="quotas", needs=Action.DESCRIBE.of(Resource.QUOTA), repeat=Repeat.SAFE)
class ListQuotas(Request[QuotaList], frozen=True, kw_only=True):
    """List quotas: all, or those that name these parts."""

    user: User = None
    client_id: ClientId = None
    ip: Ip = None


@operation(
    "PATCH /v1/quotas",
    tag="quotas",
    needs=Action.ALTER.of(Resource.QUOTA),
    repeat=Repeat.SAME,
    errors=_ERRORS,
    body_max=limits.SMALL_BODY_BYTES_MAX,
)
class SetQuota(Request[QuotaView], frozen=True, kw_only=True):
    """Set quotas of a user, a client id, both, or an address: all of them, or none if one is wrong.

    The answer has all that it has now.
    """

    user: User = None
    client_id: ClientId = None
    ip: Ip = None
    quotas: Annotated[
        dict[str, SettingValue | None],
        Meta(
            description="Rates: producer_byte_rate, consumer_byte_rate, request_rate, request_percentage, "
            "controller_mutation_rate; connection_creation_rate of an address. Null removes one, others stay."
        ),
    ]


@operation(
    "DELETE /v1/quotas",
    tag="quotas",
    needs=Action.ALTER.of(Resource.QUOTA),
    repeat=Repeat.SAME,
    errors=(errors.QuotaNotFound, *_ERRORS),
)
class RemoveQuota(Request[None], frozen=True, kw_only=True):
    """Remove all quotas of a user, a client id, both, or an address."""

    user: User = None
    client_id: ClientId = None
    ip: Ip = None
