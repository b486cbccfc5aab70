"""``penstock config``: are the settings right, and where does each come from?"""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.options import load_settings, settings_options


@click.group()
def config() -> None:
    """Check settings, and show where each comes from."""


@config.command()
@settings_options
def check(**options: Any) -> None:
    """Say what is wrong with the settings, all of it; exit code 2 if anything is."""
    loaded = load_settings(options)
    for warning in loaded.warnings:
        click.echo(f"Warning: {warning}", err=True)
    changed = sum(origin != "default" for origin in loaded.origins.values())
    source = f"{loaded.file}, " if loaded.file else "no settings file, "
    click.echo(f"The settings are good: {source}{changed} of {len(loaded.origins)} differ in origin from the defaults.")


@config.command()
@settings_options
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True)
@click.option("--changed", is_flag=True, help="Only what does not come from the defaults.")
def show(output: str, changed: bool, **options: Any) -> None:
    """Show every setting with its value and where it comes from.

    The YAML is a settings file itself: save it and change what you like.
    """
    from penstock.config.rendering import as_json, as_yaml

    loaded = load_settings(options)
    for warning in loaded.warnings:
        click.echo(f"Warning: {warning}", err=True)
    click.echo(as_json(loaded, changed=changed) if output == "json" else as_yaml(loaded, changed=changed), nl=False)
