"""``penstock serve``: run a node until it is told to stop."""

from __future__ import annotations

import logging
from typing import Any

import click

from penstock.cli.options import load_settings, settings_options


@click.command()
@settings_options
@click.option(
    "--shards",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes to run on this host, each a node of the cluster: one for each core.",
)
def serve(shards: int, **options: Any) -> int:
    """Run a node.

    Settings come from defaults, then the file, then PENSTOCK_* variables, then these flags; `penstock config show`
    tells which won. The node stops in good order on SIGTERM or Ctrl-C, and at once on a second one.
    """
    loaded = load_settings(options)
    from penstock import logs
    from penstock.extras import needs

    with needs("server", "A node"):
        from penstock.server import run

    logs.configure(loaded.settings.logging.level, loaded.settings.logging.format)
    for warning in loaded.warnings:
        logging.getLogger(__name__).warning("%s", warning)
    if shards > 1:
        from penstock.shards import run_shards

        return run_shards(loaded.settings, shards)
    return run(loaded.settings)
