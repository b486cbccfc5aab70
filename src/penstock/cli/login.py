"""``penstock login``: keep how to reach a cluster, and who you are there, under a name."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from penstock.cli import profiles
from penstock.cli.credentials import read_secret
from penstock.cli.exits import CommandError, Exit
from penstock.cli.options import output_option
from penstock.cli.output import Output
from penstock.cli.rest import Rest
from penstock.client.login import Login
from penstock.client.trust import Trust
from penstock.errors import InvalidRequest

_file = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command()
@click.argument("url")
@click.option("--profile", default=profiles.DEFAULT, show_default=True, help="The name to keep it under.")
@click.option("--ca", type=_file, help="The authority to trust, in PEM, in place of the system's.")
@click.option("--token-file", metavar="FILE", help="A file with an API key or token; - for standard input.")
@click.option("--certificate", type=_file, help="A client certificate to log in with, in PEM.")
@click.option("--key", type=_file, help="Its private key.")
@output_option
def login(
    url: str,
    profile: str,
    ca: Path | None,
    token_file: str | None,
    certificate: Path | None,
    key: Path | None,
    out: Output,
) -> None:
    """Log in to the cluster at URL, and have later commands go there.

    Without --token-file and --certificate it asks for an API key. The key is kept in a file that only you can read.
    """
    if not profile or not profile.replace("-", "").replace("_", "").isalnum():
        raise CommandError("The name of a profile has letters, digits, - and _.", Exit.USAGE)
    token = None
    if token_file is not None:
        token = read_secret(token_file)
    elif certificate is None:
        if not sys.stdin.isatty():
            raise CommandError("Give an API key with --token-file, or - for standard input.", Exit.USAGE)
        token = click.prompt("API key", hide_input=True, err=True)
    trust = Trust(_absolute(ca), _absolute(certificate), _absolute(key))
    try:
        who = Rest(url, trust=trust, login=Login.of(token, environ={})).get("v1", "whoami")
    except InvalidRequest as error:
        raise CommandError(error.message, Exit.USAGE) from error
    kept = profiles.Profile(
        url=url,
        ca=trust.ca,
        certificate=trust.certificate,
        key=trust.key,
        token_file=None if token is None else str(profiles.write_token(profile, token)),
    )
    path = profiles.write_profile(profile, kept)
    option = "" if profile == profiles.DEFAULT else f" Use it with --profile {profile}."
    out.done(
        {"profile": profile, "principal": who["principal"], "file": path},
        f"Logged in to {url} as {who['principal']}.{option}",
    )


@click.command()
@click.option("--profile", default=profiles.DEFAULT, show_default=True, help="The profile to forget.")
@output_option
def logout(profile: str, out: Output) -> None:
    """Forget a profile and its API key. The key itself stays good: revoke it with `penstock key revoke`."""
    if not profiles.remove_profile(profile):
        raise CommandError(f"There is no profile {profile!r}.", Exit.NOT_FOUND)
    out.done({"profile": profile}, f"Forgot the profile {profile!r}.")


@click.command("profiles")
@output_option
def list_profiles(out: Output) -> None:
    """List the profiles that `penstock login` has kept."""
    rows = [
        {"profile": name, "url": each.url, "ca": each.ca, "token_file": each.token_file}
        for name, each in sorted(profiles.read_profiles().items())
    ]
    columns = {"Profile": "profile", "URL": "url", "Authority": "ca", "API key in": "token_file"}
    out.rows(rows, columns)


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())
