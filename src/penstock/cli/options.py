"""Options that several commands share, and the question before what cannot be undone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from penstock.cli.completion import group_names, queue_group_names, topic_names
from penstock.cli.exits import DEFAULT_URL, CommandError, Exit
from penstock.cli.output import Output
from penstock.cli.times import DurationMs, PointInTime
from penstock.priorities import PRIORITIES

if TYPE_CHECKING:
    from penstock.cli.rest import Rest

Command = TypeVar("Command", bound=Callable[..., Any])


def combined(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several options as one decorator, in this order in the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _keep(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    from penstock.cli.profiles import OPTIONS

    context.meta.setdefault(OPTIONS, {})[parameter.name] = value


def _connect(_context: click.Context, _parameter: click.Parameter, url: str | None) -> Rest:
    from penstock.cli.profiles import chosen
    from penstock.cli.rest import Rest

    return Rest(chosen().url if url is None else url)


# Passes ``rest``, the connection to the node. The other options are eager, because the connection is made with them.
url_option: Callable[[Command], Command] = combined(
    click.option(
        "--url",
        "rest",
        envvar="PENSTOCK_URL",
        callback=_connect,
        show_default=DEFAULT_URL,
        show_envvar=True,
        help="The node to ask.",
    ),
    click.option(
        "--ca",
        envvar="PENSTOCK_CA",
        show_envvar=True,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help="The authority to trust at https:// URLs, in PEM, in place of the system's.",
    ),
    click.option(
        "--token-file",
        envvar="PENSTOCK_TOKEN_FILE",
        show_envvar=True,
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help="A file with the API key or token to log in with.",
    ),
    click.option(
        "--profile",
        envvar="PENSTOCK_PROFILE",
        show_envvar=True,
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help="What `penstock login` has kept under this name.",
    ),
)

# Passes ``out``, the `Output` that prints results.
output_option = click.option(
    "-o",
    "--output",
    "out",
    type=click.Choice(["json", "table"]),
    callback=lambda _context, _parameter, form: Output.of(form),
    help="JSON, or a table for people. [default: table on a terminal, json elsewhere]",
)

answer_options = combined(output_option, url_option)

topic_argument = click.argument("topic", shell_complete=topic_names)
topic_name_argument = click.argument("name", shell_complete=topic_names)
group_name_argument = click.argument("name", shell_complete=group_names)
node_id_argument = click.argument("node_id", type=click.IntRange(min=0))

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")

timeout_option = click.option(
    "--timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="Wait no longer than this."
)

queue_group_option = click.option(
    "-g", "--group", shell_complete=queue_group_names, default="default", show_default=True, help="The queue group."
)

priority_option = click.option(
    "--priority", type=click.Choice(PRIORITIES), help="The priority of every message, for queues with priority lanes."
)

later_options = combined(
    click.option("-d", "--delay", type=DurationMs(), help="Deliver after this time: 10s, 5m, 2h, 3d."),
    click.option("--at", type=PointInTime(), help="Deliver at this time: 2026-01-31T12:00:00Z."),
)


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


def confirm(question: str | Callable[[], str], *, is_sure: bool) -> None:
    """Ask before something that cannot be undone, unless the user is sure."""
    if is_sure:
        return
    if not sys.stdin.isatty():
        raise CommandError("This cannot be undone. There is no terminal to ask on: pass --yes to go ahead.", Exit.USAGE)
    click.confirm(question if isinstance(question, str) else question(), abort=True, err=True)
