"""``penstock key``: API keys."""

from __future__ import annotations

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import answer_options, confirm, url_option, yes_option
from penstock.cli.output import Column, Output, printable
from penstock.cli.rest import Rest
from penstock.cli.times import DurationMs


@click.group()
def key() -> None:
    """Issue, list and revoke API keys."""


@key.command()
@click.argument("principal")
@click.option("--expires-in", type=DurationMs(), help="How long it is good for, such as 90d. [default: until revoked]")
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    metavar="ROLE:RESOURCE[:NAME]",
    help="What it may do at most, such as reader:topic:orders; a NAME that ends with * is a prefix. May be repeated.",
)
@click.option("--description", default="", help="What it is for.")
@answer_options
def issue(
    principal: str, expires_in: int | None, scopes: tuple[str, ...], description: str, out: Output, rest: Rest
) -> None:
    """Issue a key that acts for PRINCIPAL, as User:alice, and print it. It is not shown again."""
    body = {
        "principal": principal,
        "expires_in_ms": expires_in,
        "scopes": [_scope(text) for text in scopes],
        "description": description,
    }
    issued = rest.post("v1", "keys", body=body)
    if not out.printed_json(issued):
        click.echo(issued["key"])
        click.echo("Keep it now: it is not shown again.", err=True)


def _scope(text: str) -> dict[str, str]:
    role, _, on = text.partition(":")
    resource, _, name = on.partition(":")
    if not role or not resource:
        raise CommandError(f"{text!r} is no scope; write ROLE:RESOURCE:NAME, such as reader:topic:orders.", Exit.USAGE)
    if len(name) > 1 and name.endswith("*"):
        return {"role": role, "resource": resource, "name": name[:-1], "pattern": "prefixed"}
    return {"role": role, "resource": resource, "name": name}


@key.command("list")
@click.option("--principal", help="Only keys that act for this one.")
@answer_options
def list_keys(principal: str | None, out: Output, rest: Rest) -> None:
    """List keys, without their secrets."""
    columns: dict[str, Column] = {
        "key": "key_id",
        "principal": lambda row: printable(row["principal"]),
        "created": "created_at",
        "expires": lambda row: row["expires_at"] or "never",
        "scopes": lambda row: len(row["scopes"]) or "all",
        "description": lambda row: printable(row["description"]),
    }
    out.rows(rest.get("v1", "keys", principal=principal)["keys"], columns)


@key.command()
@click.argument("key_id")
@yes_option
@url_option
def revoke(key_id: str, yes: bool, rest: Rest) -> None:
    """Revoke a key by its id: it is refused from now on. Exit code 3 if there is none."""
    confirm(f"Revoke the key {key_id}?", is_sure=yes)
    rest.delete("v1", "keys", key_id)
    click.echo(f"Revoked the key {printable(key_id)}.", err=True)
