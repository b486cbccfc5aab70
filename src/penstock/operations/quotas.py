"""Serves operations on quotas, which are settings of clients in the metadata."""

from __future__ import annotations

from penstock.api.quotas import ALL_OTHERS, ListQuotas, QuotaList, QuotaView, RemoveQuota, SetQuota
from penstock.consensus.quota_config import DEFAULT, QuotaEntity
from penstock.errors import InvalidConfig, InvalidField, QuotaNotFound
from penstock.operations.caller import Caller
from penstock.operations.services import Services
from penstock.operations.serving import serves


@serves(ListQuotas)
async def list_quotas(services: Services, request: ListQuotas, _caller: Caller) -> QuotaList:
    wanted = {name: value for name in ("user", "client_id", "ip") if (value := getattr(request, name)) is not None}
    found = [
        _view(services, QuotaEntity.of(name)) for kind, name in sorted(services.metadata.configured) if kind == "quota"
    ]
    return QuotaList(
        quotas=[each for each in found if all(getattr(each, name) == value for name, value in wanted.items())]
    )


@serves(SetQuota)
async def set_quota(services: Services, request: SetQuota, _caller: Caller) -> QuotaView:
    if not request.quotas:
        raise InvalidField("Say which rates to set: quotas is empty.")
    entity = _entity(request)
    changes = {key: None if value is None else _rate(key, value) for key, value in request.quotas.items()}
    await services.topics.configure_resource("quota", entity.name, changes)
    return _view(services, entity)


@serves(RemoveQuota)
async def remove_quota(services: Services, request: RemoveQuota, _caller: Caller) -> None:
    entity = _entity(request)
    held = services.metadata.configured.get(("quota", entity.name))
    if not held:
        raise QuotaNotFound(f"There is no quota for {entity.shown}. List the quotas to see for whom there are some.")
    await services.topics.configure_resource("quota", entity.name, dict.fromkeys(held))


def _rate(key: str, value: str | float | bool) -> str:
    if isinstance(value, bool):
        raise InvalidConfig(f"{key}: {value!r} is not a rate; give a number above 0.")
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    return str(value)


def _entity(request: SetQuota | RemoveQuota) -> QuotaEntity:
    return QuotaEntity(user=_kept(request.user), client_id=_kept(request.client_id), ip=_kept(request.ip))


def _kept(name: str | None) -> str | None:
    return DEFAULT if name == ALL_OTHERS else name


def _shown(name: str | None) -> str | None:
    return ALL_OTHERS if name == DEFAULT else name


def _view(services: Services, entity: QuotaEntity) -> QuotaView:
    held = services.metadata.configured.get(("quota", entity.name), {})
    return QuotaView(
        user=_shown(entity.user), client_id=_shown(entity.client_id), ip=_shown(entity.ip), quotas=dict(held)
    )
