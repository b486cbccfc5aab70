"""Names of topics and groups for the shell's completion: asked of the node, quickly, and in silence if it is away."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from penstock.cli.exits import CommandError
from penstock.cli.options import DEFAULT_URL
from penstock.cli.rest import Rest

_PATIENCE_S: Final = 2.0  # somebody waits with a finger on the key

Completes = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def topic_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Topics whose names begin so."""
    return _beginning(begun, (topic["name"] for topic in _asked(context, "v1", "topics", "topics")))


def group_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Groups whose names begin so, of every kind."""
    return _beginning(begun, (group["group"] for group in _asked(context, "v1", "groups", "groups")))


def queue_group_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Groups of the queue that was named before."""
    topic = context.params.get("topic")
    queues = _asked(context, "v1", "queues", "queues")
    return _beginning(begun, {name for queue in queues if topic in (None, queue["topic"]) for name in queue["groups"]})


def _asked(context: click.Context, *path_and_key: str) -> Iterable[dict[str, Any]]:
    *path, key = path_and_key
    url = context.params.get("url") or os.environ.get("PENSTOCK_URL") or DEFAULT_URL
    try:
        found: list[dict[str, Any]] = Rest(url, timeout_s=_PATIENCE_S).get(*path)[key]
    except CommandError:
        return ()
    return found


def _beginning(begun: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(begun)]
