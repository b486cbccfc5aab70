"""``penstock acl``: rules, and the roles that stand for some of them together."""

from __future__ import annotations

from typing import Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import answer_options, combined, confirm, yes_option
from penstock.cli.output import Column, Output, count_of, printable
from penstock.cli.rest import Rest

RESOURCES: Final = ("topic", "group", "cluster", "transactional_id")
_ACTIONS: Final = (
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "cluster_action",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
)
_COLUMNS: Final[dict[str, Column]] = {
    "principal": lambda row: printable(row["principal"]),
    "permission": "permission",
    "action": "action",
    "resource": "resource",
    "name": lambda row: printable(row["name"]) + ("*" if row["pattern"] == "prefixed" else ""),
    "host": "host",
}


@click.group()
def acl() -> None:
    """List, add and remove rules; grant and revoke roles."""


_filters = combined(
    click.option("--principal", help="As User:alice."),
    click.option("--action", type=click.Choice(_ACTIONS)),
    click.option("--resource", type=click.Choice(RESOURCES)),
    click.option("--name", help="Of the resource."),
    click.option(
        "--pattern",
        type=click.Choice(("literal", "prefixed", "match")),
        help="match: all rules that apply to the name.",
    ),
    click.option("--permission", type=click.Choice(("allow", "deny"))),
    click.option("--host", help="The address that a rule is for."),
)


@acl.command("list")
@_filters
@answer_options
def list_acls(out: Output, rest: Rest, **chosen: Any) -> None:
    """List rules."""
    out.rows(rest.get("v1", "acls", **chosen)["acls"], _COLUMNS)


@acl.command()
@click.argument("principal")
@click.argument("action", type=click.Choice(_ACTIONS))
@click.argument("resource", type=click.Choice(RESOURCES))
@click.argument("name", required=False)
@click.option("--prefixed", is_flag=True, help="For all names that begin with NAME.")
@click.option("--deny", is_flag=True, help="Deny it, whatever other rules allow.")
@click.option("--host", default="*", show_default=True, help="Only from this address.")
@answer_options
def add(
    principal: str,
    action: str,
    resource: str,
    name: str | None,
    prefixed: bool,
    deny: bool,
    host: str,
    out: Output,
    rest: Rest,
) -> None:
    """Add a rule: PRINCIPAL may do ACTION to the RESOURCE of that NAME ('*' means all)."""
    rule = {
        "principal": principal,
        "action": action,
        "resource": resource,
        "name": _name_of(resource, name),
        "pattern": "prefixed" if prefixed else "literal",
        "permission": "deny" if deny else "allow",
        "host": host,
    }
    out.rows(rest.post("v1", "acls", body={"acls": [rule]})["acls"], _COLUMNS)


@acl.command()
@_filters
@yes_option
@answer_options
def remove(yes: bool, out: Output, rest: Rest, **chosen: Any) -> None:
    """Remove the rules that match. At least one option says which."""
    if not any(chosen.values()):
        raise CommandError("Say which rules to remove, with at least one option.", Exit.USAGE)
    found = rest.get("v1", "acls", **chosen)["acls"]
    if found:
        confirm(f"Remove {count_of(len(found), 'rule')}?", is_sure=yes)
    out.rows(rest.delete("v1", "acls", **chosen)["acls"], _COLUMNS)


_role = combined(
    click.argument("role"),
    click.argument("principal"),
    click.argument("resource", type=click.Choice(RESOURCES)),
    click.argument("name", required=False),
    click.option("--prefixed", is_flag=True, help="For all names that begin with NAME."),
    click.option("--host", default="*", show_default=True, help="Only from this address."),
)


@acl.command()
@_role
@answer_options
def grant(out: Output, rest: Rest, **given: Any) -> None:
    """Grant a role on a resource: reader, writer, worker, operator or admin. Shows the rules that it adds."""
    out.rows(rest.post("v1", "roles", "grant", body=_role_body(**given))["acls"], _COLUMNS)


@acl.command()
@_role
@yes_option
@answer_options
def revoke(yes: bool, out: Output, rest: Rest, **given: Any) -> None:
    """Revoke a role on a resource. Shows the rules that were there."""
    confirm(f"Revoke the role {given['role']} from {given['principal']}?", is_sure=yes)
    out.rows(rest.post("v1", "roles", "revoke", body=_role_body(**given))["acls"], _COLUMNS)


def _role_body(
    role: str, principal: str, resource: str, name: str | None, prefixed: bool, host: str
) -> dict[str, object]:
    return {
        "role": role,
        "principal": principal,
        "resource": resource,
        "name": _name_of(resource, name),
        "pattern": "prefixed" if prefixed else "literal",
        "host": host,
    }


def _name_of(resource: str, name: str | None) -> str:
    if name is None and resource != "cluster":
        raise CommandError(f"Give the name of the {resource}, or '*' for all.", Exit.USAGE)
    return name or "kafka-cluster"
