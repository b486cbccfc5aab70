"""Shell completion: the script for a shell, and the names of topics and groups, asked of the node.

A node that does not answer quickly completes nothing, silently.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

from penstock.cli.exits import CommandError


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  penstock completion bash > ~/.local/share/bash-completion/completions/penstock
    zsh:   penstock completion zsh > "${fpath[1]}/_penstock"
    fish:  penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.get_current_context().find_root().command, {}, "penstock", "_PENSTOCK_COMPLETE").source())


_PATIENCE_S: Final = 2.0  # the user waits for it


def topic_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Topics whose names begin like this."""
    return _matching(begun, (topic["name"] for topic in _listed(context, "v1", "topics", "topics")))


def group_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Groups of every kind whose names begin like this."""
    return _matching(begun, (group["group"] for group in _listed(context, "v1", "groups", "groups")))


def queue_group_names(context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Groups of the queue whose topic is given already."""
    topic = context.params.get("topic")
    queues = _listed(context, "v1", "queues", "queues")
    return _matching(begun, {name for queue in queues if topic in (None, queue["topic"]) for name in queue["groups"]})


def _listed(context: click.Context, *path_and_key: str) -> Iterable[dict[str, Any]]:
    from penstock.cli.rest import Rest

    *path, key = path_and_key
    given: Rest | None = context.params.get("rest")
    if given is None:  # the options so far name no node
        return ()
    try:
        rest = Rest(given.url, timeout_s=_PATIENCE_S, trust=given.trust, login=given.login)
        found: list[dict[str, Any]] = rest.get(*path)[key]
    except CommandError:
        return ()
    return found


def _matching(begun: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(names) if name.startswith(begun)]
