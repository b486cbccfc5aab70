"""``penstock user``: users with passwords, and who the caller is."""

from __future__ import annotations

import click

from penstock.cli.credentials import new_password
from penstock.cli.options import confirm, output_option, url_option, yes_option
from penstock.cli.output import echo_json, is_for_people, printable, show_rows
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
@output_option
@url_option
def list_users(output: str | None, url: str) -> None:
    """List users that have a password."""
    found = Rest(url).get("v1", "users")["users"]
    columns = {
        "user": lambda row: printable(row["user"]),
        "mechanisms": lambda row: " ".join(each["mechanism"] for each in row["mechanisms"]),
    }
    show_rows(found, output, columns)


@user.command("set")
@click.argument("name")
@password_option
@output_option
@url_option
def set_user(name: str, password_file: str | None, output: str | None, url: str) -> None:
    """Create a user, or give it another password."""
    answer = Rest(url).put("v1", "users", name, body={"password": new_password(password_file)})
    if not is_for_people(output):
        echo_json(answer)
    click.echo(f"User {printable(name)} can log in with this password.", err=True)


@user.command()
@click.argument("name")
@yes_option
@url_option
def delete(name: str, yes: bool, url: str) -> None:
    """Delete a user's password. Rules about the user stay. Exit code 3 if there is none."""
    confirm(f"Delete the password of {name}?", is_sure=yes)
    Rest(url).delete("v1", "users", name)
    click.echo(f"Deleted the password of {printable(name)}.", err=True)


@user.command()
@output_option
@url_option
def whoami(output: str | None, url: str) -> None:
    """Tell who you are to the node."""
    answer = Rest(url).get("v1", "whoami")
    if is_for_people(output):
        click.echo(printable(answer["principal"]) + (" (super user)" if answer["super_user"] else ""))
        if not answer["security"]:
            click.echo("Security is off: every client may do everything.", err=True)
    else:
        echo_json(answer)
