"""``penstock worker``: run the workers of a Python module until told to stop."""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING

import click

from penstock.cli.exits import CommandError, Exit

if TYPE_CHECKING:
    from penstock.client.worker import App

_LEVELS = ("debug", "info", "warning", "error")


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option("--url", "urls", multiple=True, help="A node to connect to; may be repeated. [default: the app's own]")
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Calls at a time, for each worker of the app.")
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True, help="What to log.")
@click.option(
    "--log-format",
    type=click.Choice(["json", "text"]),
    default="text",
    show_default=True,
    help="The format of the log.",
)
def worker(target: str, urls: tuple[str, ...], concurrency: int | None, log_level: str, log_format: str) -> int:
    """Run the workers of MODULE:APP, such as `shop.jobs:app`.

    APP is a penstock.App or a function made with @penstock.worker; without it, `app` is used. Modules are also found in
    the current directory. On SIGTERM or Ctrl-C running handlers finish and other messages are given back; a second one
    ends it at once.
    """
    from penstock import logs
    from penstock.client.worker import App

    logs.configure(log_level, log_format)
    app = find_app(target)
    chosen = urls or app.urls or tuple(os.environ.get("PENSTOCK_URL", "").split())
    app = App(*chosen, workers=app.workers)
    if concurrency is not None:
        app = app.with_concurrency(concurrency)
    if not app.workers:
        raise CommandError(f"{target!r} has no workers; add one with @app.worker(topic).", Exit.USAGE)
    app.run()
    return Exit.OK


def find_app(target: str) -> App:
    """The app that ``module:attribute`` names; a worker becomes an app of its own."""
    from penstock.client.worker import App, Worker

    module_name, _, attribute = target.partition(":")
    attribute = attribute or "app"
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise CommandError(f"{target!r} is not MODULE:APP, such as shop.jobs:app.", Exit.USAGE)
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A missing import inside the user's module is not a wrong name on the command line.
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise CommandError(f"Module {module_name!r} cannot be imported: {error}.", Exit.FAILURE) from error
        raise CommandError(
            f"There is no module {module_name!r}; Python looked in {os.getcwd()} and in its own path.",
            Exit.NOT_FOUND,
        ) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise CommandError(f"Module {module_name!r} cannot be imported: {reason}", Exit.FAILURE) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise CommandError(f"Module {module_name!r} has no {attribute!r}{_others(found)}.", Exit.NOT_FOUND)
        found = getattr(found, name)
    if isinstance(found, Worker):
        return App(workers=[found])
    if not isinstance(found, App):
        raise CommandError(
            f"{target!r} is a {type(found).__name__}; give a penstock.App or a function made with @penstock.worker.",
            Exit.USAGE,
        )
    return found


def _others(found: object) -> str:
    from penstock.client.worker import App, Worker

    names = [name for name, value in vars(found).items() if isinstance(value, App | Worker)]
    return f"; it has {', '.join(names)}" if names else ""
