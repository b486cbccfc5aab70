"""Secrets that commands take: from files and prompts, never from the command line, which others see."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from penstock.cli.exits import CommandError, Exit


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
