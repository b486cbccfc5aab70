"""``penstock``: the table of commands, and what every one of them ends in.

A command returns nothing, an exit code, or raises; `run` turns each into a message on standard error and a code that
scripts can rely on. No traceback reaches a user for anything that is not our own bug.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from penstock import __version__
from penstock.cli.exits import CommandError, Exit, OutputClosedError
from penstock.cli.lazy import LazyGroup
from penstock.errors import PenstockError, StartupError
from penstock.extras import MissingExtra

_COMMANDS = {
    "dev": ("penstock.cli.dev:dev", "Start a broker with a sample topic, to try things out."),
    "serve": ("penstock.cli.serve:serve", "Run a node."),
    "cluster": ("penstock.cli.cluster:cluster", "Look at the cluster; let nodes in and go, balance what they hold."),
    "topic": ("penstock.cli.topic:topic", "Create, list, describe, change, move and delete topics."),
    "group": ("penstock.cli.group:group", "List, describe, move and delete consumer groups."),
    "queue": ("penstock.cli.queue:queue", "Work through topics as queues: send, receive, ack, look at groups."),
    "schedule": ("penstock.cli.schedule:schedule", "Have messages come later, once or again and again."),
    "dlq": ("penstock.cli.dlq:dlq", "List dead letters, look at them, and send them back."),
    "txn": ("penstock.cli.txn:txn", "List, describe and abort transactions."),
    "produce": ("penstock.cli.produce:produce", "Send messages from standard input or files."),
    "consume": ("penstock.cli.consume:consume", "Read messages, from any offset or time, once or for ever."),
    "worker": ("penstock.cli.worker:worker", "Run the workers of a Python module."),
    "pipeline": ("penstock.cli.pipeline:pipeline", "Run data jobs on Spark, each declared in one file."),
    "config": ("penstock.cli.config:config", "Check settings, and show where each comes from."),
    "log": ("penstock.cli.log:log", "Look into the files of a log."),
    "completion": ("penstock.cli.completion:completion", "Print the completion script for a shell."),
}


@click.group(
    cls=LazyGroup,
    commands_at=_COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 exists already, 5 node not reachable.",
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still buffered must not complain at exit
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
