"""Settings become each layer's config, none of them lost on the way."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from penstock import logs
from penstock.broker.config import BrokerConfig
from penstock.config.kinds import (
    Address,
    CertificateRules,
    Choice,
    Choices,
    Count,
    Flag,
    HostNames,
    Maybe,
    Networks,
    Number,
    PeerList,
    Principals,
    ValueKind,
    Whole,
    Words,
)
from penstock.config.loading import load
from penstock.config.settings import SETTINGS, Settings
from penstock.node.configs import broker_config, http_config, kafka_config, topic_settings
from penstock.partitions.config import PartitionsConfig

# Read where the node is run, not by a layer's config.
_ELSEWHERE = {"logging.level", "logging.format", "broker.kafka", "broker.http", "broker.grpc"}
_ELSEWHERE |= {"broker.advertised_kafka", "broker.advertised_http", "broker.advertised_grpc"}
_ELSEWHERE |= {"broker.internal", "broker.advertised_internal"}
_ELSEWHERE |= {"cluster.token"}
# What a value needs beside it to make sense.
_INTERNAL = {"broker.internal": "127.0.0.1:1"}
_CERTIFICATE = {"security.tls.certificate": "/node.pem"}
_AUTHORITY = {**_CERTIFICATE, "security.tls.ca": "/ca.pem"}
_TOGETHER = {
    "cluster.peers": _INTERNAL,
    "cluster.join": _INTERNAL,
    "security.tls.key": _CERTIFICATE,
    "security.tls.ca": _CERTIFICATE,
    "security.tls.client_auth": _AUTHORITY,
    "security.tls.internal": _AUTHORITY,
}
_TOGETHER["security.oidc.issuer"] = {"security.oidc.audience": "a", "security.oidc.jwks_file": "/keys"}


def effects(settings: Settings) -> object:
    address = Address("h", 1)
    return (
        broker_config(settings, ()),
        kafka_config(settings, address),
        http_config(settings, address),
    )


def another_value(kind: ValueKind, default: object) -> str:
    if isinstance(kind, Maybe):
        return another_value(kind.kind, 1) if isinstance(kind.kind, Whole) else "h:2"
    if isinstance(kind, PeerList):
        return "1@h:1,2@h:2"
    if isinstance(kind, HostNames):
        return "queue.example,*.cluster.local"
    if isinstance(kind, Networks):
        return "10.0.0.1,10.1.0.0/16"
    if isinstance(kind, Principals):
        return "User:admin;User:CN=ops,O=example"
    if isinstance(kind, CertificateRules):
        return "DEFAULT"
    if isinstance(kind, Choices):
        return kind.words[-1]
    if isinstance(kind, Words):
        return "other"
    if isinstance(kind, Count):
        return "unlimited"
    if isinstance(kind, Whole):
        return str(kind.high if default == kind.low else kind.low)
    if isinstance(kind, Flag):
        return "false" if default else "true"
    if isinstance(kind, Choice):
        return next(word for word in kind.words if word != default)
    if isinstance(kind, Number):
        return str(kind.high)
    if isinstance(default, Path):
        return "/elsewhere"
    assert isinstance(default, int)
    return str(default + 10 if default >= 0 else 5)


@pytest.mark.parametrize("path", [path for path in SETTINGS if path not in _ELSEWHERE])
def test_every_setting_has_an_effect(path: str) -> None:
    setting = SETTINGS[path]
    environ = {setting.variable: another_value(setting.kind, setting.default)}
    beside = {SETTINGS[other].variable: value for other, value in _TOGETHER.get(path, {}).items()}
    base = load(beside).settings
    environ |= beside
    assert effects(load(environ).settings) != effects(base)


def test_our_defaults_are_the_layers_defaults() -> None:
    settings = Settings()
    # A broker by itself asks for one replica in sync, the settings for more than half of them.
    ours = replace(topic_settings(settings), min_insync_replicas=1)
    assert ours == PartitionsConfig().topic_defaults
    expected = BrokerConfig(
        partitions=PartitionsConfig(topic_defaults=topic_settings(settings)),
        node_id=1,
        data_dir=settings.broker.data_dir.absolute(),
    )
    assert broker_config(settings, ()) == expected


@pytest.mark.parametrize(
    ("written", "dead_letters", "retries", "failures_to_dead"),
    [
        ("0", "true", 0, 1),
        ("1", "true", 1, 2),
        ("2", "true", 2, 3),
        ("unlimited", "true", -1, None),
        ("-1", "true", -1, None),
        ("0", "false", -1, None),
    ],
)
def test_max_retries_counts_deliveries_after_the_first(
    written: str, dead_letters: str, retries: int, failures_to_dead: int | None
) -> None:
    environ = {
        "PENSTOCK_DEFAULTS__DELIVERY__MAX_RETRIES": written,
        "PENSTOCK_DEFAULTS__DELIVERY__DEAD_LETTERS": dead_letters,
    }
    queue = topic_settings(load(environ).settings).queue
    assert queue.max_retries == retries
    last = next((failures for failures in range(1, 100) if queue.is_last_try(failures)), None)
    assert last == failures_to_dead


def log_line(style: str, *args: object, extra: dict[str, object] | None = None, **options: object) -> str:
    stream = StringIO()
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    try:
        logs.configure("info", style, stream)
        logging.getLogger("some.where").info(*args, extra=extra, **options)  # type: ignore[arg-type]
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)
    return stream.getvalue()


def test_a_json_log_line_has_time_level_logger_message_and_fields() -> None:
    record = json.loads(log_line("json", "Hello %s.", "world", extra={"topic": "t", "path": Path("/x")}))
    assert record.pop("ts").endswith("Z")
    assert record == {
        "level": "info",
        "logger": "some.where",
        "message": "Hello world.",
        "topic": "t",
        "path": "/x",
    }


def test_a_json_log_line_holds_an_exception_on_one_line() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        line = log_line("json", "It failed.", exc_info=True)
    assert line.count("\n") == 1
    assert "ValueError: no" in json.loads(line)["exception"]


def test_a_log_line_that_no_json_can_hold_is_written_all_the_same() -> None:
    assert "\\udcff" in json.loads(log_line("json", "bad \udcff"))["message"]


def test_a_field_cannot_replace_the_message() -> None:
    assert json.loads(log_line("json", "real", extra={"level": "fake"}))["level"] == "info"


def test_a_text_log_line_is_for_people() -> None:
    line = log_line("text", "Hello.", extra={"topic": "t"})
    assert line.endswith("INFO     Hello.  topic=t\n")
    assert "\x1b" not in line


def test_settings_are_frozen() -> None:
    with pytest.raises(AttributeError):
        Settings().broker.node_id = 3  # type: ignore[misc]
    assert replace(Settings()) == Settings()
