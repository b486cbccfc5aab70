"""A directory of `penstock secure`: complete, private, and never written over."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from penstock.access import api_keys
from penstock.access.scram import verify
from penstock.config.loading import load
from penstock.errors import InvalidPrincipal, InvalidRequest, StartupError
from penstock.secure.authority import expiry_of, identity_of
from penstock.secure.bootstrap import read_bootstrap
from penstock.secure.directory import NodePlan, SecureDirectory


def made(path: Path) -> SecureDirectory:
    directory = SecureDirectory(path)
    directory.init(NodePlan(hosts=["broker.example"]))
    return directory


def test_everything_is_there_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    directory = made(tmp_path / "new" / "secure")
    names = {path.name for path in directory.path.iterdir()}
    assert names == {
        "penstock.yaml",
        "ca.pem",
        "ca.key",
        "node.pem",
        "node.key",
        "admin.pem",
        "admin.key",
        "admin.credentials",
        "admin.token",
        "bootstrap.json",
        "cluster.token",
        "master.key",
    }
    assert {path.stat().st_mode & 0o777 for path in directory.path.iterdir()} == {0o600}
    assert directory.path.stat().st_mode & 0o777 == 0o700
    assert directory.exposed() == []


def test_the_settings_are_good(tmp_path: Path) -> None:
    directory = made(tmp_path / "secure")
    loaded = load({}, file=directory.path / "penstock.yaml")
    assert loaded.settings.security.enabled
    assert loaded.settings.broker.data_dir == directory.path / "data"


def test_the_node_knows_the_admin_by_hashes_alone(tmp_path: Path) -> None:
    directory = made(tmp_path / "secure")
    user, password = (directory.path / "admin.credentials").read_text().splitlines()
    token = (directory.path / "admin.token").read_text().strip()
    text = (directory.path / "bootstrap.json").read_text()
    assert password not in text
    bootstrap = read_bootstrap(directory.path / "bootstrap.json")
    assert bootstrap.user == user
    assert all(verify(credential, password) for credential in bootstrap.credentials)
    parts = api_keys.split_text(token)
    assert parts is not None
    assert parts[1] not in text
    assert api_keys.is_secret_of(bootstrap.key, parts[1])


def test_nothing_is_written_over(tmp_path: Path) -> None:
    directory = made(tmp_path / "secure")
    before = {path: path.read_bytes() for path in directory.path.iterdir()}
    with pytest.raises(InvalidRequest, match="not empty"):
        made(directory.path)
    assert {path: path.read_bytes() for path in directory.path.iterdir()} == before


def test_another_node_has_a_certificate_of_its_own_and_no_key_of_the_authority(tmp_path: Path) -> None:
    first, second = made(tmp_path / "first"), SecureDirectory(tmp_path / "second")
    first.add_node(second, NodePlan(node_id=2, hosts=["b.example"], internal="0.0.0.0:7000", join="a.example:7000"))
    assert identity_of((second.path / "node.pem").read_bytes())[0] == 2
    assert not (second.path / "ca.key").exists()
    assert not (second.path / "admin.token").exists()
    settings = yaml.safe_load((second.path / "penstock.yaml").read_text())
    assert settings["cluster"]["join"] == "a.example:7000"
    assert settings["cluster"]["token"] == (first.path / "cluster.token").read_text().strip()
    assert settings["security"]["tls"]["internal"] is True
    assert "bootstrap_file" not in settings["security"]


def test_certificates_are_issued_anew_with_the_same_names(tmp_path: Path) -> None:
    directory = made(tmp_path / "secure")
    before = (directory.path / "node.pem").read_bytes()
    directory.rotate()
    after = (directory.path / "node.pem").read_bytes()
    assert before != after
    assert identity_of(before) == identity_of(after)
    assert "broker.example" in identity_of(after)[1]
    assert directory.exposed() == []
    assert not list(directory.path.glob(".*"))


def test_only_the_first_directory_can_issue(tmp_path: Path) -> None:
    first, second = made(tmp_path / "first"), SecureDirectory(tmp_path / "second")
    first.add_node(second, NodePlan(node_id=2, internal="0.0.0.0:7000", join="a.example:7000"))
    with pytest.raises(InvalidRequest, match="authority's key"):
        second.rotate()
    assert first.rotate(second) == [second.path / "node.pem"]


@pytest.mark.parametrize("name", ["ca", "node", "admin", "../x", "a/b", "..", ".", "", " x", "x" * 65])
def test_a_client_cannot_be_named_like_our_own_files(tmp_path: Path, name: str) -> None:
    directory = made(tmp_path / "secure")
    before = {path.name for path in directory.path.iterdir()}
    with pytest.raises((InvalidRequest, InvalidPrincipal)):
        directory.add_client(name)
    assert {path.name for path in directory.path.iterdir()} == before


def test_expiry_and_exposed_files_are_seen(tmp_path: Path) -> None:
    directory = made(tmp_path / "secure")
    directory.add_client("bob")
    (directory.path / "bob.key").chmod(0o644)
    assert [path.name for path in directory.exposed()] == ["bob.key"]
    found = {each.path.name: each.days_left(datetime.now(UTC)) for each in directory.certificates()}
    assert found.keys() == {"admin.pem", "bob.pem", "ca.pem", "node.pem"}
    assert expiry_of((directory.path / "bob.pem").read_bytes()).year >= 2027


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"user":"a","credentials":[],"key":{}}'])
def test_a_bootstrap_that_is_none_is_told(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bootstrap.json"
    path.write_bytes(data)
    with pytest.raises(StartupError, match="bootstrap_file"):
        read_bootstrap(path)
    path.unlink()
    with pytest.raises(StartupError, match="cannot be read"):
        read_bootstrap(path)
