"""Groups that import a command only when it is run, so that ``penstock --help`` costs no more than Click itself."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

import click

from penstock.cli.exits import OutputClosedError


class LazyGroup(click.Group):
    """A group made from a table: name → ("module:attribute", what it does in one line)."""

    def __init__(self, *args: object, commands_at: Mapping[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._commands_at = commands_at

    def invoke(self, ctx: click.Context) -> object:
        # Click would end the process with code 1 on a broken pipe; `main.run` knows better.
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise OutputClosedError from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self._commands_at:
            return None
        module, _, attribute = self._commands_at[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._commands_at.items()])
