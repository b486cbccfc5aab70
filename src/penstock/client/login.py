"""How a client says who it is: an API key or token, or a user with a password.

What is not given comes from the environment: ``PENSTOCK_TOKEN_FILE`` names a file, ``PENSTOCK_TOKEN`` holds the token
itself; ``PENSTOCK_USER`` names a user whose password is in the file ``PENSTOCK_PASSWORD_FILE``. The file of a token is
read again when it has changed, so that short-lived tokens can be renewed in place. Credentials never leave in the
clear: without TLS they go to this machine alone. Nothing here shows one.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from penstock.errors import InvalidRequest

LoginFile = str | os.PathLike[str]

_TOKEN_BYTES_MAX: Final = 16 * 1024  # a JWT with many groups; headers may not be much larger


class Login:
    """One client's credentials; without any, `header` is None."""

    __slots__ = ("_at", "_fixed", "_from_file", "_path")

    def __init__(self, fixed: bytes | None = None, path: str | None = None) -> None:
        self._fixed = fixed
        self._path = path
        self._from_file: bytes | None = None
        self._at: tuple[int, int, int] | None = None  # which state of the file that is

    def __repr__(self) -> str:
        return "<Login>" if self else "<Login without credentials>"

    def __bool__(self) -> bool:
        return self._fixed is not None or self._path is not None

    @classmethod
    def of(
        cls,
        token: str | None = None,
        token_file: LoginFile | None = None,
        user: str | None = None,
        password: str | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> Login:
        """What is given, or else what the environment says."""
        given = [name for name, value in (("token", token), ("token_file", token_file), ("user", user)) if value]
        if len(given) > 1:
            raise InvalidRequest(f"Give one of token, token_file and user with password; got {' and '.join(given)}.")
        if (user is None) != (password is None):
            raise InvalidRequest("A user logs in with a password, and a password needs a user: give both.")
        if user is not None and password is not None:
            if ":" in user:
                raise InvalidRequest("The name of a user that logs in with a password has no colon.")
            return cls(b"Basic " + base64.b64encode(f"{user}:{password}".encode()))
        if token:
            return cls(_bearer(token, "token"))
        path = os.fspath(token_file) if token_file else environ.get("PENSTOCK_TOKEN_FILE")
        if path:
            login = cls(path=path)
            login.header()  # a file that is not there is told now
            return login
        held, user = environ.get("PENSTOCK_TOKEN"), environ.get("PENSTOCK_USER")
        if user:
            return cls.of(user=user, password=_password(user, environ.get("PENSTOCK_PASSWORD_FILE")))
        return cls(_bearer(held, "PENSTOCK_TOKEN") if held else None)

    def header(self) -> bytes | None:
        """The value of the ``Authorization`` header, or None; `InvalidRequest` if the file cannot be used."""
        if self._path is None:
            return self._fixed
        try:
            state = os.stat(self._path)
            at = (state.st_mtime_ns, state.st_size, state.st_ino)
            if at != self._at:
                with Path(self._path).open(encoding="ascii") as file:
                    text = file.read(_TOKEN_BYTES_MAX + 1)
                self._from_file = _bearer(text.strip(), self._path)
                self._at = at
        except OSError as error:
            raise InvalidRequest(f"The token in {self._path} cannot be read: {error.strerror}.") from error
        except UnicodeDecodeError:
            raise InvalidRequest(f"{self._path} does not hold a token.") from None
        return self._from_file

    def check_address(self, host: str, *, is_tls: bool) -> None:
        """Raise `InvalidRequest` where the credentials could be read on the way."""
        if self and not is_tls and not _is_here(host):
            raise InvalidRequest(
                f"Credentials are not sent to {host} without TLS, for others could read them: give an https:// URL."
            )


def _bearer(token: str, origin: str) -> bytes:
    if not token or len(token) > _TOKEN_BYTES_MAX or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest(f"{origin} does not hold a token: one word, as `penstock key issue` shows it.")
    return b"Bearer " + token.encode()


def _password(user: str, path: str | None) -> str:
    if not path:
        raise InvalidRequest(f"Set PENSTOCK_PASSWORD_FILE to a file with the password of {user!r}.")
    try:
        return Path(path).read_text().partition("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The password in {path} cannot be read: {error}.") from error


def _is_here(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
