"""DescribeClientQuotas and AlterClientQuotas (KIP-546), over the quotas that the controller keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.consensus.quota_config import DEFAULT, QuotaEntity
from penstock.doors.kafka.errors import error_code
from penstock.doors.kafka.handler import Handler, RequestContext
from penstock.doors.kafka.protocol.errors import ErrorCode
from penstock.doors.kafka.protocol.messages import quotas as wire
from penstock.errors import InvalidRequest, PenstockError

_FIELDS: Final[Mapping[str, str]] = {"user": "user", "client-id": "client_id", "ip": "ip"}


def describe_client_quotas(
    context: RequestContext, request: wire.DescribeClientQuotasRequest
) -> wire.DescribeClientQuotasResponse:
    """Versions 0 and 1."""
    try:
        wanted = _matches(request.components)
    except PenstockError as error:
        return wire.DescribeClientQuotasResponse(
            error_code=error_code(error), error_message=error.message, entries=None
        )
    entries = []
    for (kind, name), configs in context.broker.metadata.configured.items():
        entity = QuotaEntity.of(name) if kind == "quota" else None
        if entity is not None and _fits(entity, wanted, is_strict=request.strict):
            values = tuple(wire.QuotaValue(key=key, value=float(value)) for key, value in configs.items())
            entries.append(wire.DescribedQuota(entity=_parts(entity), values=values))
    return wire.DescribeClientQuotasResponse(error_code=ErrorCode.NONE, entries=tuple(entries))


async def alter_client_quotas(
    context: RequestContext, request: wire.AlterClientQuotasRequest
) -> wire.AlterClientQuotasResponse:
    """Versions 0 and 1."""
    results = []
    for entry in request.entries:
        code, message = ErrorCode.NONE, None
        try:
            changes = {change.key: None if change.remove else _text(change.value) for change in entry.ops}
            await context.broker.configure_resource(
                "quota", _entity(entry.entity).name, changes, validate_only=request.validate_only
            )
        except PenstockError as error:
            code, message = error_code(error), error.message
        results.append(wire.AlterQuotaResult(error_code=code, error_message=message, entity=entry.entity))
    return wire.AlterClientQuotasResponse(entries=tuple(results))


def _text(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)


def _entity(parts: Iterable[wire.QuotaPart]) -> QuotaEntity:
    named: dict[str, str] = {}
    for part in parts:
        field = _field(part.entity_type)
        if field in named:
            raise InvalidRequest(f"The entity names its {part.entity_type} twice.")
        if part.entity_name == "":
            raise InvalidRequest(f"The entity's {part.entity_type} is empty; the default has no name at all.")
        named[field] = DEFAULT if part.entity_name is None else part.entity_name
    return QuotaEntity(**named)


def _field(entity_type: str) -> str:
    field = _FIELDS.get(entity_type)
    if field is None:
        raise InvalidRequest(f"Quotas are for {', '.join(_FIELDS)}; not for {entity_type!r}.")
    return field


def _parts(entity: QuotaEntity) -> tuple[wire.QuotaPart, ...]:
    return tuple(
        wire.QuotaPart(entity_type=kind, entity_name=None if name == DEFAULT else name)
        for kind, field in _FIELDS.items()
        if (name := getattr(entity, field)) is not None
    )


def _matches(components: Iterable[wire.QuotaMatch]) -> dict[str, str | None]:
    """The name that each part must have; None for any."""
    wanted: dict[str, str | None] = {}
    for component in components:
        field = _field(component.entity_type)
        if field in wanted:
            raise InvalidRequest(f"The filter has {component.entity_type} twice.")
        match component.match_type:
            case 0 if component.match is not None:
                wanted[field] = component.match
            case 1 if component.match is None:
                wanted[field] = DEFAULT
            case 2 if component.match is None:
                wanted[field] = None
            case _:
                raise InvalidRequest("A filter matches exactly (0, with a name), the default (1), or any name (2).")
    return wanted


def _fits(entity: QuotaEntity, wanted: Mapping[str, str | None], *, is_strict: bool) -> bool:
    for field in _FIELDS.values():
        has = getattr(entity, field)
        if field not in wanted:
            if is_strict and has is not None:
                return False
        elif has is None or (wanted[field] is not None and has != wanted[field]):
            return False
    return True


HANDLERS = (
    Handler(wire.DescribeClientQuotasRequest, describe_client_quotas),
    Handler(wire.AlterClientQuotasRequest, alter_client_quotas),
)
