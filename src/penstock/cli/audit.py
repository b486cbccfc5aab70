"""``penstock audit``: who changed what, and who was refused."""

from __future__ import annotations

from datetime import datetime

import click

from penstock.cli.options import answer_options
from penstock.cli.output import Column, Output, echo_rows, printable
from penstock.cli.rest import Rest
from penstock.cli.times import PastTime, time_text


@click.command()
@click.option("--principal", help="Only what this one did, such as User:alice.")
@click.option(
    "--decision",
    type=click.Choice(["allowed", "failed", "denied", "login_failed"]),
    help="Only events with this decision.",
)
@click.option("--since", type=PastTime(), help="Only from then on: 15m, 2h, 3d ago, or RFC 3339.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="How many at most.")
@answer_options
def audit(
    principal: str | None, decision: str | None, since: datetime | None, limit: int, out: Output, rest: Rest
) -> None:
    """Show the audit log, the newest event first."""
    told = None if since is None else since.isoformat()
    page = rest.get("v1", "audit", principal=principal, decision=decision, since=told, limit=limit)
    if out.printed_json(page):
        return
    columns: dict[str, Column] = {
        "time": lambda row: time_text(row["time"]),
        "principal": lambda row: printable(row["principal"] or "-"),
        "from": lambda row: printable(row["host"]),
        "operation": lambda row: printable(row["operation"]),
        "resource": lambda row: printable(row["resource"]),
        "decision": "decision",
        "request": lambda row: printable(row["request_id"]),
    }
    echo_rows(page["events"], columns)
    if page["scanned"] < page["total"]:
        click.echo(f"Looked at {page['scanned']} of {page['total']} events.", err=True)
