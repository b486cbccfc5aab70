"""Settings shown with their origins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.config.loading import SettingText, load
from penstock.config.rendering import as_json, as_yaml
from penstock.config.settings import SETTINGS


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_what_is_shown_as_yaml_loads_to_the_same_settings(tmp_path: Path) -> None:
    environ = {
        "PENSTOCK_BROKER__RACK": "a: #'${x}' [é]",
        "PENSTOCK_BROKER__DATA_DIR": "/tmp/with space",
        "PENSTOCK_BROKER__KAFKA": "[::1]:9999",
        "PENSTOCK_DEFAULTS__TOPIC__RETENTION_MS": "unlimited",
        "PENSTOCK_STORAGE__SEGMENT_BYTES": "1234567",
    }
    loaded = load(environ)
    file = tmp_path / "shown.yaml"
    file.write_text(as_yaml(loaded))
    assert load({}, file=file).settings == loaded.settings


def test_each_line_of_yaml_has_its_origin() -> None:
    shown = as_yaml(load({"PENSTOCK_STORAGE__FSYNC": "none"}))
    assert [line for line in shown.splitlines() if "fsync:" in line] == [
        "  fsync: none                               # PENSTOCK_STORAGE__FSYNC"
    ]
    assert shown.count("# default") == len(SETTINGS) - 1


def test_only_what_was_changed_can_be_shown() -> None:
    loaded = load({}, overrides={"defaults.topic.partitions": SettingText("6", "--set")})
    assert as_yaml(loaded, changed=True).split() == ["defaults:", "topic:", "partitions:", "6", "#", "--set"]
    assert json.loads(as_json(loaded, changed=True)) == {
        "file": None,
        "settings": {"defaults": {"topic": {"partitions": 6}}},
        "origins": {"defaults.topic.partitions": "--set"},
    }


def test_json_has_plain_numbers() -> None:
    shown = json.loads(as_json(load({})))
    assert shown["settings"]["defaults"]["topic"]["retention_ms"] == 604_800_000
    assert shown["settings"]["defaults"]["topic"]["retention_bytes"] == -1
    assert shown["settings"]["broker"]["kafka"] == "127.0.0.1:9092"
    assert shown["settings"]["broker"]["rack"] is None
    assert shown["origins"]["broker.rack"] == "default"


def test_secrets_are_not_shown() -> None:
    loaded = load({"PENSTOCK_CLUSTER__TOKEN": "s3cret"})
    assert loaded.settings.cluster.token == "s3cret"
    for shown in (as_yaml(loaded), as_json(loaded), as_yaml(loaded, changed=True)):
        assert "s3cret" not in shown
        assert "token" in shown
        assert "(hidden)" in shown
