"""Which quota counts for which client, and who shares it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.consensus.metadata import ClusterMetadata
from penstock.consensus.quota_config import (
    CONNECTION_RATE,
    CONSUMER_RATE,
    DEFAULT,
    PRODUCER_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
    check_quota,
    resolve,
)
from penstock.consensus.records import ResourceConfigured
from penstock.errors import InvalidConfig, InvalidRequest, PenstockError
from penstock.features.quotas import quotas as module
from penstock.features.quotas.quotas import UNMEASURED, Quotas


class StoppedClock:
    def now_ms(self) -> int:
        return 0

    def monotonic(self) -> float:
        return 0.0


# From the least specific on, as KIP-55 has it.
ORDER = (
    QuotaEntity(client_id=DEFAULT),
    QuotaEntity(client_id="app"),
    QuotaEntity(user=DEFAULT),
    QuotaEntity(user=DEFAULT, client_id=DEFAULT),
    QuotaEntity(user=DEFAULT, client_id="app"),
    QuotaEntity(user="alice"),
    QuotaEntity(user="alice", client_id=DEFAULT),
    QuotaEntity(user="alice", client_id="app"),
)


def quotas_with(*rows: tuple[QuotaEntity, Mapping[str, str]]) -> Quotas:
    metadata = ClusterMetadata()
    for entity, configs in rows:
        metadata.apply(ResourceConfigured(kind="quota", name=entity.name, configs=dict(configs)))
    quotas = Quotas(metadata, StoppedClock())
    quotas.apply()
    return quotas


def test_the_most_specific_quota_counts() -> None:
    configured: dict[str, Mapping[str, str]] = {}
    for rate, entity in enumerate(ORDER, 1):
        configured[entity.name] = {PRODUCER_RATE: str(rate)}
        found = resolve(configured, "alice", "app", PRODUCER_RATE)
        assert found is not None
        assert found.rate == rate


def test_another_client_has_no_quota() -> None:
    configured = {QuotaEntity(user="alice", client_id="app").name: {PRODUCER_RATE: "1"}}
    assert resolve(configured, "alice", "other", PRODUCER_RATE) is None
    assert resolve(configured, "alice", "app", CONSUMER_RATE) is None


def test_clients_of_a_user_share_its_quota_and_users_do_not_share_the_default() -> None:
    quotas = quotas_with((QuotaEntity(user=DEFAULT), {PRODUCER_RATE: "100"}))
    alice = quotas.meters_of("alice", "a").produce
    assert alice is quotas.meters_of("alice", "b").produce
    assert alice is not quotas.meters_of("bob", "a").produce


def test_client_ids_with_the_default_quota_have_one_each() -> None:
    quotas = quotas_with((QuotaEntity(user="alice", client_id=DEFAULT), {PRODUCER_RATE: "100"}))
    assert quotas.meters_of("alice", "a").produce is not quotas.meters_of("alice", "b").produce


def test_a_percentage_is_of_a_second() -> None:
    quotas = quotas_with((QuotaEntity(user="alice"), {REQUEST_PERCENTAGE: "50"}))
    meter = quotas.meters_of("alice", "").time
    assert meter is not None
    assert meter.rate == pytest.approx(0.5)


def test_without_quotas_nothing_is_measured() -> None:
    quotas = quotas_with()
    assert not quotas.is_on
    assert quotas.meters_of("alice", "a") is UNMEASURED
    assert quotas.connection_meter("10.0.0.1") is None


def test_a_changed_rate_keeps_what_was_used() -> None:
    metadata = ClusterMetadata()
    quotas = Quotas(metadata, StoppedClock())
    name = QuotaEntity(user="alice").name
    for rate in ("100", "10"):
        record = ResourceConfigured(kind="quota", name=name, configs={PRODUCER_RATE: rate})
        metadata.apply(record)
        version = quotas.version
        quotas.on_applied(1, [record])
        assert quotas.version > version
        meter = quotas.meters_of("alice", "").produce
        assert meter is not None
        assert meter.rate == float(rate)
        if rate == "100":
            meter.use(300, 0)
    assert meter.use(0, 0) == pytest.approx(20)  # 200 owed, at the new rate


def test_meters_of_made_up_client_ids_are_dropped_once_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_METERS_MAX", 3)
    quotas = quotas_with((QuotaEntity(client_id=DEFAULT), {PRODUCER_RATE: "100"}))
    version = quotas.version
    busy = quotas.meters_of("", "busy").produce
    assert busy is not None
    busy.use(1_000, 0)
    for number in range(20):
        quotas.meters_of("", f"made-up-{number}")
    assert len(quotas._meters) <= 4
    assert quotas.meters_of("", "busy").produce is busy
    assert quotas.version > version  # who holds a dropped one asks again


@pytest.mark.parametrize(
    ("entity", "changes", "error"),
    [
        (QuotaEntity(), {PRODUCER_RATE: "1"}, InvalidRequest),
        (QuotaEntity(user="a", ip="10.0.0.1"), {CONNECTION_RATE: "1"}, InvalidRequest),
        (QuotaEntity(user="x" * 256), {PRODUCER_RATE: "1"}, InvalidRequest),
        (QuotaEntity(user="a"), {CONNECTION_RATE: "1"}, InvalidConfig),
        (QuotaEntity(ip="10.0.0.1"), {PRODUCER_RATE: "1"}, InvalidConfig),
        (QuotaEntity(user="a"), {"bytes": "1"}, InvalidConfig),
        (QuotaEntity(user="a"), {PRODUCER_RATE: "0"}, InvalidConfig),
        (QuotaEntity(user="a"), {PRODUCER_RATE: "-5"}, InvalidConfig),
        (QuotaEntity(user="a"), {PRODUCER_RATE: "nan"}, InvalidConfig),
        (QuotaEntity(user="a"), {PRODUCER_RATE: "inf"}, InvalidConfig),
        (QuotaEntity(user="a"), {PRODUCER_RATE: "many"}, InvalidConfig),
    ],
)
def test_quotas_that_make_no_sense_are_refused(
    entity: QuotaEntity, changes: Mapping[str, str], error: type[PenstockError]
) -> None:
    with pytest.raises(error):
        check_quota(entity.name, changes)


def test_a_name_that_is_no_entity_is_refused() -> None:
    for name in ("", "alice", '{"users":"a"}', "[]"):
        with pytest.raises(InvalidRequest):
            check_quota(name, {})


def test_meters_of_a_client_are_looked_up_once_until_quotas_change() -> None:
    entity = QuotaEntity(user="alice")
    quotas = quotas_with((entity, {PRODUCER_RATE: "5"}))
    before = quotas.meters_of("alice", "app")
    assert quotas.meters_of("alice", "app") is before
    quotas.apply()
    again = quotas.meters_of("alice", "app")
    assert again is not before
    assert again.produce is before.produce, "what was used stays used"


def test_pauses_are_counted_by_door_and_kind() -> None:
    quotas = quotas_with()
    quotas.note_throttled("http", "produce", 0.5)
    quotas.note_throttled("http", "produce", 1.0)
    assert (quotas.throttled["http", "produce"], quotas.throttled_s["http", "produce"]) == (2, 1.5)
