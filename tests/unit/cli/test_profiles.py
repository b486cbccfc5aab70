"""Profiles: kept privately, chosen in order, and never shown to another node."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from penstock.cli import profiles
from penstock.cli.exits import DEFAULT_URL, CommandError
from penstock.cli.profiles import OPTIONS, Profile


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("PROFILE", "URL", "CA", "CERTIFICATE", "KEY", "TOKEN", "TOKEN_FILE", "USER"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    return tmp_path / "penstock"


def keep(name: str, url: str, token: str) -> None:
    profiles.write_profile(name, Profile(url=url, token_file=str(profiles.write_token(name, token))))


def test_without_profiles_the_default_node_is_asked_without_credentials() -> None:
    assert profiles.chosen() == Profile()
    assert not profiles.login(DEFAULT_URL)


def test_files_are_private(home: Path) -> None:
    keep("default", "https://a.example", "one")
    keep("default", "https://a.example", "two")
    assert {path.name for path in home.iterdir()} == {"profiles.json", "default.token"}
    assert {path.stat().st_mode & 0o777 for path in home.iterdir()} == {0o600}
    assert home.stat().st_mode & 0o777 == 0o700


def test_options_count_before_the_environment_and_the_environment_before_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("default", "other", "third"):
        keep(name, f"https://{name}.example", name)
    assert profiles.chosen().url == "https://default.example"
    monkeypatch.setenv("PENSTOCK_PROFILE", "other")
    assert profiles.chosen().url == "https://other.example"
    with click.Context(click.Command("test")) as context:
        context.meta[OPTIONS] = {"profile": "third"}
        assert profiles.chosen().url == "https://third.example"


def test_a_profiles_token_is_shown_to_its_own_node_alone() -> None:
    keep("default", "https://a.example", "secret")
    assert profiles.login("https://a.example").header() == b"Bearer secret"
    for url in ("https://b.example", "https://a.example.evil", "http://a.example", "https://a.example:1"):
        assert not profiles.login(url)


def test_an_unknown_profile_is_told_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    keep("staging", "https://a.example", "x")
    monkeypatch.setenv("PENSTOCK_PROFILE", "prod")
    with pytest.raises(CommandError, match="staging"):
        profiles.chosen()


@pytest.mark.parametrize("data", ["", "[]", '{"default": {"urls": 1}}', '{"default": 3}'])
def test_a_file_that_is_none_is_told_and_kept(home: Path, data: str) -> None:
    home.mkdir()
    (home / "profiles.json").write_text(data)
    with pytest.raises(CommandError, match="cannot be used"):
        profiles.chosen()
    assert (home / "profiles.json").read_text() == data


def test_a_profile_is_forgotten_with_its_token(home: Path) -> None:
    keep("default", "https://a.example", "x")
    assert profiles.remove_profile("default")
    assert not profiles.remove_profile("default")
    assert not (home / "default.token").exists()
