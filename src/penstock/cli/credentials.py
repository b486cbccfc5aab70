"""What commands show a node to say who calls. Secrets come from files, never from the command line, which others see.

``PENSTOCK_TOKEN_FILE`` names a file with an API key or a token; ``PENSTOCK_USER`` a user, whose password stands in the
file that ``PENSTOCK_PASSWORD_FILE`` names.
"""

from __future__ import annotations

import base64
import os
import sys
from pathlib import Path

import click

from penstock.cli.exits import CommandError, Exit

TOKEN_FILE = "PENSTOCK_TOKEN_FILE"
USER = "PENSTOCK_USER"
PASSWORD_FILE = "PENSTOCK_PASSWORD_FILE"


def authorization() -> str | None:
    """The Authorization header of a call; None if the environment names no credential."""
    token_file, user = os.environ.get(TOKEN_FILE), os.environ.get(USER)
    if token_file and user:
        raise CommandError(f"Set {TOKEN_FILE} or {USER}, not both.", Exit.USAGE)
    if token_file:
        return f"Bearer {read_secret(token_file)}"
    if user:
        password_file = os.environ.get(PASSWORD_FILE)
        if not password_file:
            raise CommandError(f"Set {PASSWORD_FILE} to a file with the password of {user!r}.", Exit.USAGE)
        pair = f"{user}:{read_secret(password_file)}"
        return f"Basic {base64.b64encode(pair.encode()).decode()}"
    return None


def read_secret(path: str) -> str:
    """The first line of a file; ``-`` is standard input."""
    try:
        text = sys.stdin.readline() if path == "-" else Path(path).read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CommandError(f"Cannot read the secret in {path}: {reason}.", Exit.USAGE) from error
    secret = text.rstrip("\r\n")
    if not secret:
        raise CommandError(f"{path} holds no secret in its first line.", Exit.USAGE)
    return secret


def new_password(path: str | None) -> str:
    """A password for a user: from a file, else asked for twice on a terminal."""
    if path is not None:
        return read_secret(path)
    if not sys.stdin.isatty():
        raise CommandError("Give the password in a file with --password-file, or - for standard input.", Exit.USAGE)
    password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    return password
