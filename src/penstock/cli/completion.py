"""``penstock completion``: the script that teaches a shell our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash:  penstock completion bash > ~/.local/share/bash-completion/completions/penstock
    zsh:   penstock completion zsh > "${fpath[1]}/_penstock"
    fish:  penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    from penstock.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "penstock", "_PENSTOCK_COMPLETE").source())
