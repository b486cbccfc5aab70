"""``penstock quota``: how much clients may publish, read and ask for in a second."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import answer_options, combined, confirm, url_option, yes_option
from penstock.cli.output import Column, Output, printable
from penstock.cli.rest import Rest

_RATES: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
_NOTHING_SAID: Final = "Say for whom: --user, --client-id, both, or --ip."

_whom: Final[Callable[[Any], Any]] = combined(
    click.option("--user", help="The user, without User:; * means all users without a quota of their own."),
    click.option("--client-id", help="What clients call themselves; * means all ids without a quota of their own."),
    click.option("--ip", help="An address, for connection_creation_rate; * means all others."),
)


@click.group()
def quota() -> None:
    """List, set and remove quotas of clients. They hold at each node, for all doors together."""


@quota.command("list")
@_whom
@answer_options
def list_quotas(user: str | None, client_id: str | None, ip: str | None, out: Output, rest: Rest) -> None:
    """List quotas: all, or those that name these parts."""
    columns: dict[str, Column] = {
        "user": lambda row: printable(row["user"] or "-"),
        "client id": lambda row: printable(row["client_id"] or "-"),
        "ip": lambda row: printable(row["ip"] or "-"),
        "quotas": lambda row: ", ".join(f"{name}={value}" for name, value in row["quotas"].items()),
    }
    out.rows(rest.get("v1", "quotas", user=user, client_id=client_id, ip=ip)["quotas"], columns)


@quota.command("set")
@click.argument("rates", nargs=-1, required=True, metavar="RATE=NUMBER...")
@_whom
@answer_options
def set_quota(
    rates: tuple[str, ...], user: str | None, client_id: str | None, ip: str | None, out: Output, rest: Rest
) -> None:
    """Set rates a second, such as producer_byte_rate=1048576; without a number a rate is removed.

    Rates: producer_byte_rate, consumer_byte_rate, request_rate, request_percentage (of one core, for Kafka clients),
    controller_mutation_rate, and connection_creation_rate with --ip (for Kafka clients).
    """
    changes: dict[str, str | None] = {}
    for text in rates:
        name, equals, value = text.partition("=")
        if not equals or name not in _RATES:
            raise CommandError(f"{text!r} is not RATE=NUMBER. Rates: {', '.join(_RATES)}.", Exit.USAGE)
        changes[name] = value or None
    body = {**_entity(user, client_id, ip), "quotas": changes}
    stands = rest.patch("v1", "quotas", body=body)
    told = ", ".join(f"{name}={value}" for name, value in stands["quotas"].items()) or "none"
    out.done(stands, f"Quotas now: {told}.")


@quota.command()
@_whom
@yes_option
@url_option
def remove(user: str | None, client_id: str | None, ip: str | None, yes: bool, rest: Rest) -> None:
    """Remove all quotas of a user, a client id, both, or an address. Exit code 3 if there are none."""
    entity = _entity(user, client_id, ip)
    named = " ".join(f"{name}={printable(value)}" for name, value in entity.items())
    confirm(f"Remove all quotas of {named}?", is_sure=yes)
    rest.delete("v1", "quotas", **entity)
    click.echo(f"Removed the quotas of {named}.", err=True)


def _entity(user: str | None, client_id: str | None, ip: str | None) -> dict[str, str]:
    given = {"user": user, "client_id": client_id, "ip": ip}
    entity = {name: value for name, value in given.items() if value is not None}
    if not entity:
        raise CommandError(_NOTHING_SAID, Exit.USAGE)
    return entity
