"""Options become the connection to a node, in whatever order they are written."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from penstock.cli import profiles
from penstock.cli.exits import DEFAULT_URL, CommandError, Exit
from penstock.cli.main import cli, run
from penstock.cli.options import url_option
from penstock.cli.profiles import Profile
from penstock.cli.rest import Rest

HERE = "http://127.0.0.1:1234"
AWAY = "http://127.0.0.1:4321"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("PROFILE", "URL", "CA", "CERTIFICATE", "KEY", "TOKEN", "TOKEN_FILE", "USER"):
        monkeypatch.delenv(f"PENSTOCK_{name}", raising=False)
    return tmp_path


def connection(arguments: Sequence[str]) -> Rest:
    """What a command gets for these arguments."""

    @click.command()
    @url_option
    def command(rest: Rest) -> Rest:
        return rest

    made = command.main(list(arguments), standalone_mode=False)
    assert isinstance(made, Rest)
    return made


def keep(name: str, url: str) -> None:
    profiles.write_profile(name, Profile(url=url, token_file=str(profiles.write_token(name, f"token-of-{name}"))))


def test_the_order_of_options_does_not_count(home: Path) -> None:
    token_file = home / "token"
    token_file.write_text("of-the-option\n")
    pairs = (("--url", HERE), ("--ca", "/ca.pem"), ("--token-file", str(token_file)))
    for order in permutations(pairs):
        rest = connection([word for pair in order for word in pair])
        assert (rest.url, rest.trust.ca, rest.login.header()) == (HERE, "/ca.pem", b"Bearer of-the-option")


def test_without_options_it_is_the_default_node_without_credentials() -> None:
    rest = connection([])
    assert rest.url == DEFAULT_URL
    assert not rest.login


def test_a_profile_brings_its_node_and_its_token() -> None:
    keep("default", HERE)
    keep("other", AWAY)
    assert (connection([]).url, connection([]).login.header()) == (HERE, b"Bearer token-of-default")
    other = connection(["--profile", "other"])
    assert (other.url, other.login.header()) == (AWAY, b"Bearer token-of-other")


def test_a_profiles_token_is_for_its_own_node_wherever_the_option_stands() -> None:
    keep("other", AWAY)
    for arguments in (["--url", HERE, "--profile", "other"], ["--profile", "other", "--url", HERE]):
        rest = connection(arguments)
        assert rest.url == HERE
        assert not rest.login


def test_the_environment_counts_less_than_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", AWAY)
    assert connection([]).url == AWAY
    assert connection(["--url", HERE]).url == HERE


def test_a_url_that_is_none_and_files_that_are_not_there_are_told() -> None:
    for arguments, told in (
        (["--url", ""], "is not the URL of a node"),
        (["--url", HERE, "--token-file", "/no/such/file"], "/no/such/file"),
        (["--url", "https://127.0.0.1:1", "--ca", "/no/such/ca.pem"], "/no/such/ca.pem"),
        (["--profile", "none"], "There is no profile 'none'"),
    ):
        with pytest.raises(CommandError, match=told) as caught:
            connection(arguments)
        assert caught.value.exit_code == Exit.USAGE


def test_every_command_ends_with_a_message_where_its_connection_cannot_be_made(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words in (("topic", "list"), ("user", "list"), ("acl", "list"), ("key", "list"), ("cluster", "config")):
        assert run([*words, "--profile", "none"]) == Exit.USAGE
        assert capsys.readouterr().err.startswith("Error: There is no profile 'none'")


def test_completion_is_silent_where_the_options_name_no_node() -> None:
    shell = ShellComplete(cli, {}, "penstock", "_PENSTOCK_COMPLETE")
    assert shell.get_completions(["topic", "describe", "--profile", "none"], "or") == []
