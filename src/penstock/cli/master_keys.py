"""``penstock secure keys``: the master keys of encryption at rest. Works on a data directory, without a node."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import click

from penstock.cli.exits import CommandError
from penstock.cli.options import output_option
from penstock.cli.output import Output, count_of
from penstock.storage.encryption_note import DirectoryKeys, walk
from penstock.storage.files import Files

if TYPE_CHECKING:
    from penstock.storage.encryption.keys import KeySource

Command = TypeVar("Command", bound=Callable[..., object])
_KEY_OPTIONS: Final = (
    click.option(
        "--master-key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Where the master keys are.",
    ),
    click.option("--master-key-env", metavar="NAME", help="The environment variable that holds the master keys."),
    click.option("--master-key-command", metavar="COMMAND", help="What prints the master keys."),
    click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="The settings of a node, which say where the master keys are.",
    ),
)


def key_options(command: Command) -> Command:
    """The ways to name master keys: `source_of` takes what they give."""
    for option in reversed(_KEY_OPTIONS):
        command = option(command)
    return command


def source_of(file: Path | None, variable: str | None, command: str | None, config: Path | None) -> KeySource | None:
    """Where the options say that master keys are; None if they do not."""
    if sum(way is not None for way in (file, variable, command, config)) > 1:
        raise click.UsageError(
            "--master-key-file, --master-key-env, --master-key-command and --config exclude each other."
        )
    if config is not None:
        from penstock.config.loading import load

        encryption = load(os.environ, file=config).settings.security.encryption
        file, variable, command = (
            encryption.master_key_file,
            encryption.master_key_env,
            encryption.master_key_command,
        )
    if file is None and variable is None and command is None:
        return None
    from penstock.storage.encryption.keys import KeySource

    return KeySource(file, variable, command)


@click.group()
def keys() -> None:
    """The master keys of encryption at rest."""


_data_dir_option = click.option(
    "--data-dir",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The data directory of a node.",
)


@keys.command()
@_data_dir_option
@output_option
def status(data_dir: Path, out: Output) -> None:
    """Show how many files each version of the master key protects. Needs no key; a node may be running."""
    from penstock.storage.encryption_note import load_note
    from penstock.storage.files import DiskFiles

    files = DiskFiles()
    versions = sorted(load_note(files, data_dir).fingerprints)
    found = _look(files, data_dir) if versions else DirectoryKeys(plain=_count(files, data_dir))
    detail = {
        "versions": versions,
        "encrypted_files": {str(version): found.encrypted[version] for version in sorted(found.encrypted)},
        "plain_files": found.plain,
        "damaged_key_copies": found.damaged_copies,
    }
    if out.printed_json(detail):
        return
    if not versions:
        click.echo("Nothing here was ever encrypted.")
    for version in versions:
        click.echo(f"master key {version}: {count_of(found.encrypted[version], 'file')}")
    click.echo(f"plain: {count_of(found.plain, 'file')}")
    if found.damaged_copies:
        click.echo(f"Damaged copies of data keys: {found.damaged_copies}. A rotation mends them.")


def _look(files: Files, data_dir: Path) -> DirectoryKeys:
    from penstock.storage.encryption.directory import look

    return look(files, data_dir)


def _count(files: Files, data_dir: Path) -> int:
    """Files with something in them. A key is noted before the first file is written with it: these are all plain."""
    return sum(bool(path.stat().st_size) for path in walk(files, data_dir))


@keys.command()
@_data_dir_option
@key_options
def rotate(
    data_dir: Path,
    master_key_file: Path | None,
    master_key_env: str | None,
    master_key_command: str | None,
    config: Path | None,
) -> None:
    """Wrap every data key anew by the newest master key, while no node uses the directory.

    A running node does the same at SIGHUP, and at POST /v1/security/keys/rotate: it reads its keys again, from where
    its settings say.
    """
    from penstock.storage.encryption.directory import open_encrypted
    from penstock.storage.encryption.directory import rotate as rotate_directory
    from penstock.storage.files import DiskFiles

    source = source_of(master_key_file, master_key_env, master_key_command, config)
    if source is None:
        raise click.UsageError(
            "Give one of --master-key-file, --master-key-env, --master-key-command and a --config that has one."
        )
    disk = DiskFiles()
    files = open_encrypted(disk, data_dir, source, is_encrypting=False)
    claim = disk.lock(data_dir / "lock")
    if claim is None:
        raise CommandError(
            "A node uses this directory. Send it SIGHUP, or POST /v1/security/keys/rotate: it reads its keys again and "
            "rotates by itself."
        )
    try:
        done = rotate_directory(files, data_dir, files.keys)
    finally:
        claim.release()
    left = ", ".join(map(str, done.versions_left))
    click.echo(
        f"Master key {done.version} wraps all data keys; {count_of(done.rewrapped, 'file')} changed. In use: {left}."
    )
