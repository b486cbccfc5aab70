"""``penstock serve`` and ``penstock dev``: a node that runs in this process until it is told to stop."""

from __future__ import annotations

import gc
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.settings import load_settings, settings_options

if TYPE_CHECKING:
    from penstock.config.loading import Loaded
    from penstock.node.server import Node

# What start-up loads stays, so there is little to collect: looking for it more often takes a tenth of the time.
_GC_THRESHOLD_AT_START: Final = 50_000


@click.command()
@settings_options
@click.option(
    "--shards",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Processes on this host, each a node of the cluster: one for each core.",
)
def serve(shards: int, **options: Any) -> int:
    """Run a node.

    Settings come from defaults, then the file, then PENSTOCK_* variables, then these flags; `penstock config show`
    shows which won. The node stops gracefully on SIGTERM or Ctrl-C, and at once on a second one.
    """
    loaded = load_settings(options)
    _prepare(loaded)
    for warning in loaded.warnings:
        logging.getLogger(__name__).warning("%s", warning)
    if shards > 1:
        from penstock.node.processes import run_shards

        return run_shards(loaded.settings, shards)
    from penstock.node.server import run

    return run(loaded.settings)


def _prepare(loaded: Loaded) -> None:
    """Load what a node needs, and begin to log."""
    from penstock import logs
    from penstock.extras import needs

    gc.set_threshold(_GC_THRESHOLD_AT_START)
    with needs("server", "A node"):
        import penstock.node.server  # noqa: F401
    logs.configure(loaded.settings.logging.level, loaded.settings.logging.format)


SAMPLE_TOPIC: Final = "hello"
_SAMPLES: Final = (
    ("welcome", "Hello from Penstock."),
    ("welcome", "This topic was made by `penstock dev`; delete it whenever you like."),
    ("hint", "Messages with the same key stay in order, because they go to the same partition."),
)
_DEV_DEFAULTS: Final = {"broker.data_dir": ".penstock", "logging.format": "text", "logging.level": "warning"}


@click.command()
@settings_options
@click.option("--sample/--no-sample", default=True, show_default=True, help="Create the topic 'hello' in a new node.")
def dev(sample: bool, **options: Any) -> int:
    """Start a broker with a sample topic, to try things out.

    Data is kept in ./.penstock; remove that directory to start afresh. Stop with Ctrl-C.
    """
    loaded = load_settings(options, _DEV_DEFAULTS)
    _prepare(loaded)
    from penstock.node.server import run

    for warning in loaded.warnings:
        click.echo(f"Warning: {warning}", err=True)

    async def on_ready(node: Node) -> None:
        if sample and not node.broker.metadata.topics:
            await create_sample(node)
        _ignore_in_git(node)
        _greet(node)

    return run(loaded.settings, on_ready)


async def create_sample(node: Node) -> None:
    """The sample topic with its messages, placed by key as any client would place them."""
    from penstock.consensus.controller import TopicSpec
    from penstock.records import Record, encode_batch, key_hash

    broker = node.broker
    topic = await broker.create_topic(TopicSpec(name=SAMPLE_TOPIC))
    assert topic is not None
    now_ms = broker.clock.now_ms()
    for at, (key, value) in enumerate(_SAMPLES):
        index = key_hash(key.encode()) % len(topic.partitions)
        batch = encode_batch([Record(0, now_ms + at, key.encode(), value.encode())])
        broker.partition(SAMPLE_TOPIC, index).append(memoryview(batch), now_ms, is_durable=False)


def _ignore_in_git(node: Node) -> None:
    """Keep scratch data out of a repository that `penstock dev` is run in, as virtual environments do."""
    data_dir = node.settings.broker.data_dir
    marker = data_dir / ".gitignore"
    if data_dir.name == ".penstock" and not marker.exists():
        marker.write_text("*\n")


def _greet(node: Node) -> None:
    url = f"{'https' if node.settings.security.tls.is_on else 'http'}://{node.http_address}"
    option = "" if node.http_address.port == 8080 else f" --url {url}"
    lines = [
        ("Console", f"{url}/"),
        ("Kafka clients", str(node.kafka_address)),
        ("REST", f"{url}/v1/topics"),
        ("gRPC", "off" if node.grpc_address is None else str(node.grpc_address)),
        ("API description", f"{url}/openapi.json"),
        ("Metrics", f"{url}/metrics"),
        ("Data", str(node.settings.broker.data_dir.absolute())),
    ]
    commands = [
        f"penstock consume {SAMPLE_TOPIC}{option}",
        f"echo 'my first message' | penstock produce {SAMPLE_TOPIC}{option}",
        f"penstock topic create orders --partitions 6{option}",
    ]
    width = max(len(name) for name, _ in lines)
    text = "\n".join(f"{name:<{width}}  {where}" for name, where in lines)
    text += "\n\nIn another terminal:\n\n" + "\n".join(f"  {command}" for command in commands)
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        from rich.console import Console
        from rich.panel import Panel
        from rich.text import Text

        console = Console()
        console.print(Panel(Text(text), title="Penstock is running", subtitle="Ctrl-C stops it", expand=False))
    else:
        click.echo(f"Penstock is running.\n\n{text}\n")
        sys.stdout.flush()
