"""Profiles: which node commands ask, whom they trust and who they are, under a name, in one file of the user.

``penstock login`` writes them. A command goes by its own options first, then by the environment, then by the profile
that ``--profile`` or ``PENSTOCK_PROFILE`` names, else by the profile ``default``. Tokens lie in files of their own
beside it, which only their owner can read.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click
import msgspec

from penstock.cli.exits import DEFAULT_URL, CommandError, Exit
from penstock.client.login import Login
from penstock.client.trust import Trust
from penstock.errors import InvalidRequest

DEFAULT: Final = "default"
OPTIONS: Final = "penstock.connection"  # where options leave their values for every connection of a command
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a command needs to know to reach a node. Paths are absolute."""

    url: str = DEFAULT_URL
    ca: str | None = None
    token_file: str | None = None
    certificate: str | None = None
    key: str | None = None


def directory() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "penstock"


def read_profiles() -> dict[str, Profile]:
    """All profiles by name; `CommandError` if the file cannot be used."""
    path = directory() / "profiles.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Profile])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as error:
        raise CommandError(f"{path} cannot be used: {error}. Mend or remove it.", Exit.USAGE) from error


def write_profile(name: str, profile: Profile) -> Path:
    """Keep a profile, in place of one of that name."""
    profiles = {**read_profiles(), name: profile}
    data = msgspec.json.format(msgspec.json.encode(profiles, order="sorted"))
    return _write(directory() / "profiles.json", data)


def write_token(name: str, token: str) -> Path:
    """Keep the token of a profile."""
    return _write(directory() / f"{name}.token", f"{token}\n".encode())


def remove_profile(name: str) -> bool:
    """Forget a profile and its token; False if there is none."""
    profiles = read_profiles()
    if profiles.pop(name, None) is None:
        return False
    (directory() / f"{name}.token").unlink(missing_ok=True)
    _write(directory() / "profiles.json", msgspec.json.format(msgspec.json.encode(profiles, order="sorted")))
    return True


def _write(path: Path, data: bytes) -> Path:
    """Replace a file as a whole; no other user can read it at any moment."""
    aside = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _FILE_MODE), "wb") as file:
            file.write(data)
        aside.replace(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}.") from error
    return path


def chosen() -> Profile:
    """The profile of the command that runs."""
    name = _option("profile") or os.environ.get("PENSTOCK_PROFILE")
    profiles = read_profiles()
    if name is None:
        return profiles.get(DEFAULT, Profile())
    if name not in profiles:
        known = ", ".join(sorted(profiles)) or "none"
        reason = f"There is no profile {name!r}; there are: {known}. Make one with `penstock login`."
        raise CommandError(reason, Exit.USAGE)
    return profiles[name]


def trust() -> Trust:
    """Whom the command that runs trusts, and the certificate that it shows."""
    profile, environ = chosen(), os.environ
    return Trust.of(
        _option("ca") or environ.get("PENSTOCK_CA") or profile.ca,
        environ.get("PENSTOCK_CERTIFICATE") or profile.certificate,
        environ.get("PENSTOCK_KEY") or profile.key,
    )


def login(url: str) -> Login:
    """Who the command that runs is; `CommandError` if its credentials cannot be read.

    A profile's token is for the profile's own node: it is not shown to another one that a command names.
    """
    try:
        found = Login.of(token_file=_option("token_file"))
        profile = chosen()
        return Login.of(token_file=profile.token_file) if not found and profile.url == url else found
    except InvalidRequest as error:
        raise CommandError(error.message, Exit.USAGE) from error


def _option(name: str) -> str | None:
    command = click.get_current_context(silent=True)
    found: str | None = None if command is None else command.meta.get(OPTIONS, {}).get(name)
    return found
