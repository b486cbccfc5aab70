"""``penstock``: the table of commands, loaded when they are run, and what every one of them ends in.

A command returns nothing, an exit code, or raises; `run` turns each into a message on standard error and a code that
scripts can rely on. Only a bug of ours shows a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module

import click

from penstock import __version__
from penstock.cli.exits import CommandError, Exit, OutputClosedError
from penstock.errors import PenstockError, StartupError
from penstock.extras import MissingExtra


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run, from a table: name → ("module:attribute", help line)."""

    def __init__(self, *args: object, commands_at: Mapping[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._commands_at = commands_at

    def invoke(self, ctx: click.Context) -> object:
        # Click would end the process with code 1 on a broken pipe; `run` ends it with 0.
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


_COMMANDS = {
    "dev": ("penstock.cli.node:dev", "Start a broker with a sample topic, to try things out."),
    "serve": ("penstock.cli.node:serve", "Run a node."),
    "cluster": ("penstock.cli.cluster:cluster", "Show the cluster, add and remove nodes, balance replicas."),
    "topic": ("penstock.cli.topic:topic", "Create, list, describe, change, move and delete topics."),
    "group": ("penstock.cli.group:group", "List, describe, move and delete consumer groups."),
    "queue": ("penstock.cli.queue:queue", "Use topics as queues: send, receive, ack, manage groups."),
    "schedule": ("penstock.cli.schedule:schedule", "Schedule messages for later, once or repeatedly."),
    "dlq": ("penstock.cli.dlq:dlq", "List, show and redrive dead letters."),
    "txn": ("penstock.cli.txn:txn", "List, describe and abort transactions."),
    "produce": ("penstock.cli.produce:produce", "Send messages from standard input or files."),
    "consume": ("penstock.cli.consume:consume", "Read messages, from any offset or time, once or for ever."),
    "worker": ("penstock.cli.worker:worker", "Run the workers of a Python module."),
    "pipeline": ("penstock.cli.pipeline:pipeline", "Run data jobs on Spark, each declared in one file."),
    "login": ("penstock.cli.login:login", "Log in to a cluster, and have later commands go there."),
    "logout": ("penstock.cli.login:logout", "Forget a cluster that you are logged in to."),
    "profiles": ("penstock.cli.login:list_profiles", "List the clusters that you are logged in to."),
    "secure": ("penstock.cli.secure:secure", "Make a secured cluster: certificates, credentials, keys."),
    "user": ("penstock.cli.user:user", "Create, list and delete users; tell who you are."),
    "acl": ("penstock.cli.acl:acl", "List, add and remove access rules; grant and revoke roles."),
    "key": ("penstock.cli.key:key", "Issue, list and revoke API keys."),
    "audit": ("penstock.cli.audit:audit", "Show who changed what, and who was refused."),
    "quota": ("penstock.cli.quota:quota", "List, set and remove quotas of clients."),
    "config": ("penstock.cli.settings:config", "Check settings, and show where each comes from."),
    "log": ("penstock.cli.log:log", "Inspect the files of a log."),
    "completion": ("penstock.cli.completion:completion", "Print the completion script for a shell."),
}


@click.group(
    cls=LazyGroup,
    commands_at=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 conflict, 5 node not reachable.",
)
@click.version_option(__version__, message="penstock %(version)s")
def cli() -> None:
    """Penstock: one log, read as a stream, as a queue, as a table.

    Try `penstock dev` first.
    """


def run(args: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    try:
        outcome = cli.main(list(args), prog_name="penstock", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except CommandError as error:
        click.echo(f"Error: {error.message}", err=True)
        return error.exit_code
    except MissingExtra as error:
        click.echo(f"Error: {error}", err=True)
        return Exit.FAILURE
    except PenstockError as error:
        click.echo(_explain(error), err=True)
        return Exit.USAGE if error.code == "invalid_settings" else Exit.FAILURE
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except (OutputClosedError, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that flushing what is still buffered cannot fail at exit
        return Exit.OK
    return outcome if isinstance(outcome, int) else Exit.OK


def _explain(error: PenstockError) -> str:
    if error.code == "invalid_settings":
        return "\n  ".join(["Error: some settings are wrong.", *error.message.splitlines()])
    if isinstance(error, StartupError):
        return f"Error: the node cannot start. {error.message}"
    return f"Error: {error.message}"


def main() -> None:
    """The entry point."""
    sys.exit(run(sys.argv[1:]))
