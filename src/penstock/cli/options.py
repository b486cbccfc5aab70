"""Options that several commands share, and how settings are loaded from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.moments import PointInTime
from penstock.cli.spans import Span
from penstock.priorities import PRIORITIES

if TYPE_CHECKING:
    from penstock.config import Loaded

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_URL: Final = "http://127.0.0.1:8080"

url_option = click.option(
    "--url", envvar="PENSTOCK_URL", default=DEFAULT_URL, show_default=True, show_envvar=True, help="The node to ask."
)

output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["json", "table"]),
    help="JSON, or a table for people. [default: table on a terminal, json elsewhere]",
)

# Flag → the setting it gives. A flag is a shorter way to write --set, nothing else.
_FLAGS: Final = {
    "node_id": "broker.node_id",
    "data_dir": "broker.data_dir",
    "rack": "broker.rack",
    "kafka": "broker.kafka",
    "http": "broker.http",
    "grpc": "broker.grpc",
    "advertised_kafka": "broker.advertised_kafka",
    "advertised_http": "broker.advertised_http",
    "advertised_grpc": "broker.advertised_grpc",
    "internal": "broker.internal",
    "advertised_internal": "broker.advertised_internal",
    "peers": "cluster.peers",
    "join": "cluster.join",
    "fsync": "storage.fsync",
    "log_level": "logging.level",
    "log_format": "logging.format",
}


_SETTINGS_OPTIONS: Final = (
    click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Settings file. [default: $PENSTOCK_CONFIG, or penstock.yaml if there is one]",
    ),
    click.option("--node-id", metavar="N", help="This node's number, its own in the cluster."),
    click.option("--data-dir", metavar="DIR", help="Where the data is."),
    click.option("--kafka", metavar="HOST:PORT", help="Where to listen for Kafka clients."),
    click.option("--http", metavar="HOST:PORT", help="Where to listen for REST, metrics and health."),
    click.option("--grpc", metavar="HOST:PORT", help="Where to listen for gRPC; null for nowhere."),
    click.option("--advertised-kafka", metavar="HOST:PORT", help="Where Kafka clients are told to connect."),
    click.option("--advertised-http", metavar="HOST:PORT", help="Where HTTP clients are told to connect."),
    click.option("--advertised-grpc", metavar="HOST:PORT", help="Where gRPC clients are told to connect."),
    click.option("--internal", metavar="HOST:PORT", help="Where to listen for other nodes of the cluster."),
    click.option("--advertised-internal", metavar="HOST:PORT", help="Where other nodes are told to connect."),
    click.option("--peers", metavar="ID@HOST:PORT,...", help="The first nodes of a new cluster, this one included."),
    click.option("--join", metavar="HOST:PORT", help="The internal address of any node of the cluster to join."),
    click.option("--rack", metavar="NAME", help="The rack or zone this node is in."),
    click.option("--fsync", metavar="MODE", help="every, interval or none."),
    click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error."),
    click.option("--log-format", metavar="FORMAT", help="json or text."),
    click.option(
        "--set",
        "assignments",
        metavar="PATH=VALUE",
        multiple=True,
        help="Any other setting, such as storage.segment_bytes=16MiB.",
    ),
)


def settings_options(command: Command) -> Command:
    """Everything that `load_settings` takes."""
    for decorate in reversed(_SETTINGS_OPTIONS):
        command = decorate(command)
    return command


def load_settings(options: Mapping[str, Any], fallbacks: Mapping[str, str] | None = None) -> Loaded:
    """Settings from the file, the environment and these options."""
    from penstock.config import load
    from penstock.config.sources import Text

    overrides = {}
    for name, path in _FLAGS.items():
        if options.get(name) is not None:
            overrides[path] = Text(str(options[name]), f"--{name.replace('_', '-')}")
    for assignment in options.get("assignments", ()):
        path, equals, value = assignment.partition("=")
        if not equals:
            raise click.BadParameter(f"{assignment!r} is not PATH=VALUE", param_hint="--set")
        overrides[path.strip()] = Text(value.strip(), "--set")
    return load(
        os.environ,
        file=options.get("config_file"),
        overrides=overrides,
        fallbacks={path: Text(text, "penstock dev") for path, text in (fallbacks or {}).items()},
    )


priority_option = click.option(
    "--priority", type=click.Choice(PRIORITIES), help="How urgent they are, where the queue has lanes."
)


_LATER_OPTIONS: Final = (
    click.option("-d", "--delay", type=Span(), help="Deliver them so long from now: 10s, 5m, 2h, 3d."),
    click.option("--at", type=PointInTime(), help="Deliver them then: 2026-01-31T12:00:00Z."),
)


def later_options(command: Command) -> Command:
    """When messages are delivered, if that is not at once; `check_later` goes with it."""
    for decorate in reversed(_LATER_OPTIONS):
        command = decorate(command)
    return command


def check_later(delay: int | None, at: object) -> None:
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at exclude each other.")


def assignments_of(pairs: tuple[str, ...], option: str) -> dict[str, str]:
    """``key=value`` arguments as a dict."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name.strip():
            raise CommandError(f"{option} {pair!r} is not KEY=VALUE.", Exit.USAGE)
        found[name.strip()] = value
    return found
