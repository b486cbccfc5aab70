"""The first user and the first API key of a cluster, as `penstock secure init` leaves them for its first node.

The file has only what a server keeps (SCRAM keys, the hash of a secret), never a password. The first node gives it to
the controller at its start. That takes it while the cluster has no user and no key, and never again: what was
removed since does not come back.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.access.api_keys import ApiKey
from penstock.access.principal import check_name
from penstock.access.scram import ScramCredential
from penstock.errors import StartupError


class Bootstrap(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who can log in to a cluster that is new."""

    user: str
    credentials: tuple[ScramCredential, ...]
    key: ApiKey

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


def read_bootstrap(path: Path) -> Bootstrap:
    """The bootstrap in a file; `StartupError` says what is wrong with it."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Bootstrap)
        check_name(found.user)
    except OSError as error:
        raise StartupError(
            f"security.bootstrap_file: {path} cannot be read: {error.strerror}. Restore it, or remove the setting if "
            "the cluster has its users already."
        ) from error
    except msgspec.MsgspecError as error:
        raise StartupError(
            f"security.bootstrap_file: {path} is not what `penstock secure init` writes: {error}."
        ) from None
    return found
