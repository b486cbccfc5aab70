"""The settings of a node as options, and ``penstock config``: are they right, and where does each come from?"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.options import combined

if TYPE_CHECKING:
    from penstock.config.loading import Loaded

# Flag → setting, its metavar and help. A flag is only a shorter way to write --set.
_FLAGS: Final = {
    "node-id": ("broker.node_id", "N", "This node's id, unique in the cluster."),
    "data-dir": ("broker.data_dir", "DIR", "Where the data is."),
    "kafka": ("broker.kafka", "HOST:PORT", "Where to listen for Kafka clients."),
    "http": ("broker.http", "HOST:PORT", "Where to listen for REST, metrics and health."),
    "grpc": ("broker.grpc", "HOST:PORT", "Where to listen for gRPC; null turns it off."),
    "advertised-kafka": ("broker.advertised_kafka", "HOST:PORT", "Where Kafka clients are told to connect."),
    "advertised-http": ("broker.advertised_http", "HOST:PORT", "Where HTTP clients are told to connect."),
    "advertised-grpc": ("broker.advertised_grpc", "HOST:PORT", "Where gRPC clients are told to connect."),
    "internal": ("broker.internal", "HOST:PORT", "Where to listen for other nodes of the cluster."),
    "advertised-internal": ("broker.advertised_internal", "HOST:PORT", "Where other nodes are told to connect."),
    "peers": ("cluster.peers", "ID@HOST:PORT,...", "The first nodes of a new cluster, this one included."),
    "join": ("cluster.join", "HOST:PORT", "The internal address of any node of the cluster to join."),
    "rack": ("broker.rack", "NAME", "The rack or zone this node is in."),
    "fsync": ("storage.fsync", "MODE", "every, interval or none."),
    "log-level": ("logging.level", "LEVEL", "debug, info, warning or error."),
    "log-format": ("logging.format", "FORMAT", "json or text."),
}

settings_options = combined(
    click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Settings file. [default: $PENSTOCK_CONFIG, or penstock.yaml if there is one]",
    ),
    *(click.option(f"--{flag}", metavar=metavar, help=text) for flag, (_, metavar, text) in _FLAGS.items()),
    click.option(
        "--set",
        "assignments",
        metavar="PATH=VALUE",
        multiple=True,
        help="Any other setting, such as storage.segment_bytes=16MiB.",
    ),
)


def load_settings(options: Mapping[str, Any], fallbacks: Mapping[str, str] | None = None) -> Loaded:
    """Settings from the file, the environment and these options."""
    from penstock.config.loading import SettingText, load

    overrides = {}
    for flag, (path, _, _) in _FLAGS.items():
        given = options.get(flag.replace("-", "_"))
        if given is not None:
            overrides[path] = SettingText(given, f"--{flag}")
    for assignment in options.get("assignments", ()):
        path, equals, value = assignment.partition("=")
        if not equals:
            raise click.BadParameter(f"{assignment!r} is not PATH=VALUE", param_hint="--set")
        overrides[path.strip()] = SettingText(value.strip(), "--set")
    return load(
        os.environ,
        file=options.get("config_file"),
        overrides=overrides,
        fallbacks={path: SettingText(text, "penstock dev") for path, text in (fallbacks or {}).items()},
    )


@click.group()
def config() -> None:
    """Check settings, and show where each comes from."""


@config.command()
@settings_options
def check(**options: Any) -> None:
    """Show everything that is wrong with the settings; exit code 2 if anything is."""
    loaded = _load_and_warn(options)
    changed = sum(origin != "default" for origin in loaded.origins.values())
    source = f"{loaded.file}, " if loaded.file else "no settings file, "
    click.echo(f"The settings are valid: {source}{changed} of {len(loaded.origins)} do not come from the defaults.")


@config.command()
@settings_options
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@click.option("--changed", is_flag=True, help="Only what does not come from the defaults.")
def show(output: str, changed: bool, **options: Any) -> None:
    """Show every setting with its value and where it comes from.

    The YAML is a settings file itself: save it and change what you like.
    """
    from penstock.config.rendering import as_json, as_yaml

    loaded = _load_and_warn(options)
    click.echo(as_json(loaded, changed=changed) if output == "json" else as_yaml(loaded, changed=changed), nl=False)


def _load_and_warn(options: Mapping[str, Any]) -> Loaded:
    loaded = load_settings(options)
    for warning in loaded.warnings:
        click.echo(f"Warning: {warning}", err=True)
    return loaded
