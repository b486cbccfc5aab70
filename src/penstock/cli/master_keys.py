"""``penstock secure keys``: the master keys of encryption at rest. Works on a data directory, without a node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.exits import CommandError
from penstock.cli.options import output_option
from penstock.cli.output import Output, count_of

if TYPE_CHECKING:
    from penstock.storage.encryption.keys import KeySource


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
    from penstock.storage.encryption.directory import look
    from penstock.storage.encryption_note import load_note
    from penstock.storage.files import DiskFiles

    files = DiskFiles()
    versions = sorted(load_note(files, data_dir).fingerprints)
    found = look(files, data_dir)
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


@keys.command()
@_data_dir_option
@click.option(
    "--master-key-file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Where the keys are."
)
@click.option("--master-key-env", metavar="NAME", help="The environment variable that holds them.")
@click.option("--master-key-command", metavar="COMMAND", help="What prints them.")
def rotate(
    data_dir: Path, master_key_file: Path | None, master_key_env: str | None, master_key_command: str | None
) -> None:
    """Wrap every data key anew by the newest master key, while no node uses the directory.

    A running node does the same at SIGHUP: it reads its keys again, from where its settings say.
    """
    from penstock.storage.encryption.directory import open_encrypted
    from penstock.storage.encryption.directory import rotate as rotate_directory
    from penstock.storage.encryption.keys import KeySource
    from penstock.storage.files import DiskFiles

    if sum(way is not None for way in (master_key_file, master_key_env, master_key_command)) != 1:
        raise click.UsageError("Give one of --master-key-file, --master-key-env and --master-key-command.")
    source: KeySource = KeySource(master_key_file, master_key_env, master_key_command)
    disk = DiskFiles()
    files = open_encrypted(disk, data_dir, source, is_encrypting=False)
    claim = disk.lock(data_dir / "lock")
    if claim is None:
        raise CommandError("A node uses this directory. Send it SIGHUP: it reads its keys again and rotates by itself.")
    try:
        done = rotate_directory(files, data_dir, files.keys)
    finally:
        claim.release()
    left = ", ".join(map(str, done.versions_left))
    click.echo(
        f"Master key {done.version} wraps all data keys; {count_of(done.rewrapped, 'file')} changed. In use: {left}."
    )
