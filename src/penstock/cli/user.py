"""``penstock user``: users with passwords, and who the caller is."""

from __future__ import annotations

import click

from penstock.cli.credentials import new_password
from penstock.cli.options import answer_options, confirm, url_option, yes_option
from penstock.cli.output import Output, printable
from penstock.cli.rest import Rest

password_option = click.option(
    "--password-file",
    metavar="PATH",
    help="Read the password from the first line of a file; - is standard input. [default: ask]",
)


@click.group()
def user() -> None:
    """Create, list and delete users; tell who you are."""


@user.command("list")
@answer_options
def list_users(out: Output, rest: Rest) -> None:
    """List users that have a password."""
    found = rest.get("v1", "users")["users"]
    columns = {
        "user": lambda row: printable(row["user"]),
        "mechanisms": lambda row: " ".join(each["mechanism"] for each in row["mechanisms"]),
    }
    out.rows(found, columns)


@user.command("set")
@click.argument("name")
@password_option
@answer_options
def set_user(name: str, password_file: str | None, out: Output, rest: Rest) -> None:
    """Create a user, or give it another password."""
    out.printed_json(rest.put("v1", "users", name, body={"password": new_password(password_file)}))
    click.echo(f"User {printable(name)} can log in with this password.", err=True)


@user.command()
@click.argument("name")
@yes_option
@url_option
def delete(name: str, yes: bool, rest: Rest) -> None:
    """Delete a user's password. Rules about the user stay. Exit code 3 if there is none."""
    confirm(f"Delete the password of {name}?", is_sure=yes)
    rest.delete("v1", "users", name)
    click.echo(f"Deleted the password of {printable(name)}.", err=True)


@user.command()
@answer_options
def whoami(out: Output, rest: Rest) -> None:
    """Tell who you are to the node."""
    answer = rest.get("v1", "whoami")
    if out.printed_json(answer):
        return
    click.echo(printable(answer["principal"]) + (" (super user)" if answer["super_user"] else ""))
    if not answer["security"]:
        click.echo("Security is off: every client may do everything.", err=True)
