"""``penstock txn``: transactions listed, described and aborted, over REST: joint ones and those of Kafka producers."""

from __future__ import annotations

from typing import Any, Final

import click

from penstock.cli.options import answer_options, confirm, yes_option
from penstock.cli.output import Column, Output, count_of, echo_json, echo_table, printable
from penstock.cli.rest import Rest
from penstock.cli.times import duration_text

_STATES: Final = ("empty", "open", "committing", "aborting", "committed", "aborted")
_KINDS: Final = ("joint", "kafka")


@click.group()
def txn() -> None:
    """List, describe and abort transactions."""


@txn.command("list")
@click.option("--state", type=click.Choice(_STATES), help="Only those in this state.")
@click.option("--kind", type=click.Choice(_KINDS), help="Only joint ones, or only Kafka producers'.")
@answer_options
def list_transactions(state: str | None, kind: str | None, out: Output, rest: Rest) -> None:
    """List transactions, the newest first; as JSON, one line each."""
    found = rest.get("v1", "transactions", state=state, kind=kind)["transactions"]
    columns: dict[str, Column] = {
        "transaction": lambda row: printable(row["transaction"]),
        "kind": "kind",
        "state": "state",
        "age": lambda row: duration_text(row["age_ms"]),
        "timeout": lambda row: duration_text(row["timeout_ms"]),
        "producers": lambda row: len(row["producer_ids"]),
        "partitions": "partitions",
    }
    out.rows(found, columns)


@txn.command()
@click.argument("transaction")
@click.option("--kind", type=click.Choice(_KINDS), help="Which one, if both kinds have this id.")
@answer_options
def describe(transaction: str, kind: str | None, out: Output, rest: Rest) -> None:
    """Show a transaction with its writers and partitions. Exit code 3 if it does not exist."""
    detail = rest.get("v1", "transactions", transaction, kind=kind)
    if out.printed_json(detail):
        return
    reason = "" if detail["reason"] is None else f" ({detail['reason']})"
    age = "" if detail["age_ms"] is None else f", begun {duration_text(detail['age_ms'])} ago"
    name = printable(detail["transaction"])
    click.echo(f"{detail['kind']} transaction {name}: {detail['state']}{reason}{age}")
    if detail["expires_at"] is not None:
        click.echo(f"Aborted if still open at {detail['expires_at']}.")
    for what in ("committed", "aborted"):
        if detail[f"{what}_writers"]:
            click.echo(f"{what.capitalize()}: {', '.join(detail[f'{what}_writers'])}")
    writers = detail["writers"] or [
        {"writer": None, "producer_id": producer_id, "partitions": detail["places"]}
        for producer_id in detail["producer_ids"]
    ]
    rows = [[row["writer"] or "-", row["producer_id"], _places(row["partitions"])] for row in writers]
    echo_table(("writer", "producer", "partitions"), rows)


@txn.command()
@click.argument("transaction")
@click.option("--kind", type=click.Choice(_KINDS), help="Which one, if both kinds have this id.")
@yes_option
@answer_options
def abort(transaction: str, kind: str | None, yes: bool, out: Output, rest: Rest) -> None:
    """Abort an open transaction: readers never see what it wrote. Exit code 4 if it has ended already.

    The producer of a Kafka transaction is fenced: it has to restart.
    """
    confirm(f"Abort transaction {transaction} and all that was written into it?", is_sure=yes)
    end = rest.post("v1", "transactions", transaction, "abort", body=None, kind=kind)
    if not out.is_table:
        echo_json(end)
    click.echo(f"Aborted transaction {transaction}.", err=True)


def _places(places: list[dict[str, Any]]) -> str:
    """Such as ``orders:0,1,2 bills:0``; how many, where that would be long."""
    topics: dict[str, list[str]] = {}
    for place in places:
        topics.setdefault(place["topic"], []).append(str(place["partition"]))
    text = " ".join(f"{topic}:{','.join(indexes)}" for topic, indexes in topics.items())
    return text if len(text) <= 60 else f"{count_of(len(places), 'partition')} of {count_of(len(topics), 'topic')}"
