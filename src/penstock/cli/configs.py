"""What ``penstock group config`` and ``penstock cluster config`` share: settings that are shown, or changed."""

from __future__ import annotations

from typing import Final

import click

from penstock.cli.options import assignments_of, combined
from penstock.cli.output import Output
from penstock.cli.rest import Rest

_COLUMNS: Final = {"setting": "name", "value": "value", "from": "origin"}

change_options = combined(
    click.option("-c", "--config", "configs", metavar="NAME=VALUE", multiple=True, help="Set this setting."),
    click.option("-u", "--unset", metavar="NAME", multiple=True, help="Unset this setting."),
)


def show_or_change(
    rest: Rest, path: tuple[str, ...], configs: tuple[str, ...], unset: tuple[str, ...], out: Output
) -> None:
    """Show the settings found at a path of REST, after changing those that are given; as JSON, one line each."""
    changes: dict[str, str | None] = dict(assignments_of(configs, "--config"))
    changes |= dict.fromkeys(unset)
    found = rest.patch(*path, body={"configs": changes}) if changes else rest.get(*path)
    out.rows(found["settings"], _COLUMNS)
