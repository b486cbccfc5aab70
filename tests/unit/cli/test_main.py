"""What every command ends in."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock.cli.exits import CommandError, Exit
from penstock.cli.main import cli, run
from penstock.errors import DataDirectoryError, DiskFull


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("PENSTOCK_CONFIG", "PENSTOCK_URL"):
        monkeypatch.delenv(name, raising=False)


def all_commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    ctx = click.Context(group)
    found = []
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += all_commands(command, (*path, name))
    return found


@pytest.mark.parametrize("path", all_commands(cli), ids=" ".join)
def test_every_command_has_help(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output
    ctx = click.Context(cli)
    command = cli.get_command(ctx, path[0])
    assert command is not None
    assert command.help, "a command says what it does"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (CommandError("Something broke.", Exit.NOT_FOUND), Exit.NOT_FOUND, "Error: Something broke.\n"),
        (DiskFull("No space."), Exit.FAILURE, "Error: No space.\n"),
        (DataDirectoryError("In use."), Exit.FAILURE, "Error: the node cannot start. In use.\n"),
        (click.Abort(), Exit.INTERRUPTED, ""),
        (KeyboardInterrupt(), Exit.INTERRUPTED, "\n"),
    ],
)
def test_an_error_is_a_line_and_a_code(
    error: BaseException,
    code: Exit,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(cli, "get_command", lambda ctx, name: failing)
    assert run(["anything"]) == code
    assert capfd.readouterr().err == message


def test_the_settings_are_checked(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "check"]) == Exit.OK
    assert "The settings are valid" in capfd.readouterr().out
    Path("penstock.yaml").write_text("storage: {fsnc: every}")
    assert run(["config", "check"]) == Exit.USAGE
    errors = capfd.readouterr().err
    assert "penstock.yaml:1: storage.fsnc: there is no such setting; did you mean 'fsync'?" in errors


def test_a_warning_does_not_fail_the_check(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PENSTOCK_NODE_ID", "3")
    assert run(["config", "check"]) == Exit.OK
    assert "did you mean PENSTOCK_BROKER__NODE_ID?" in capfd.readouterr().err


def test_flags_win_and_are_named_as_the_origin(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PENSTOCK_STORAGE__FSYNC", "interval")
    args = ["--fsync", "none", "--set", "logging.level = debug", "--node-id", "4", "-o", "json", "--changed"]
    assert run(["config", "show", *args]) == Exit.OK
    shown = json.loads(capfd.readouterr().out)
    assert shown["settings"] == {"broker": {"node_id": 4}, "storage": {"fsync": "none"}, "logging": {"level": "debug"}}
    assert shown["origins"] == {"broker.node_id": "--node-id", "storage.fsync": "--fsync", "logging.level": "--set"}


def test_an_assignment_needs_an_equals_sign(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--set", "logging.level"]) == Exit.USAGE
    assert "is not PATH=VALUE" in capfd.readouterr().err
