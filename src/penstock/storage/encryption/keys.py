"""Master keys: 32 bytes each, numbered. They wrap the data keys of files, and never touch data themselves.

The text form, in a file, a variable or what a command prints, is ``version:base64`` once or several times, separated by
white space; lines that begin with ``#`` are comments. The highest version wraps what is written from now on; the others
are there to read what they once wrapped. Keys are never part of a message, a repr or a log line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from penstock.errors import EncryptionKeyError

KEY_BYTES: Final = 32
VERSION_MAX: Final = 0xFFFFFFFF
_COMMAND_TIMEOUT_S: Final = 30  # a KMS that is asked over a network answers within this, or the node does not start
_FINGERPRINT_OF: Final = b"penstock master key"
_HOW: Final = "Each key is VERSION:BASE64, a number and 32 random bytes in base64: echo 1:$(openssl rand -base64 32)."


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A data key as it is stored: useless without the master key of that version."""

    version: int
    wrapped: bytes


class MasterKeys:
    """Some versions of the master key."""

    def __init__(self, keys: Mapping[int, bytes]) -> None:
        assert keys, "parse refuses an empty text"
        self._keys = dict(keys)
        self.current = max(keys)

    def __repr__(self) -> str:
        return f"<MasterKeys {sorted(self._keys)}>"

    @property
    def versions(self) -> list[int]:
        return sorted(self._keys)

    @classmethod
    def parse(cls, text: str, origin: str) -> MasterKeys:
        """The keys of a text; `EncryptionKeyError` says what is wrong with it, without quoting it."""
        keys: dict[int, bytes] = {}
        lines = (line for line in text.splitlines() if not line.lstrip().startswith("#"))
        for word in " ".join(lines).split():
            version, separator, encoded = word.partition(":")
            if not separator or not version.isascii() or not version.isdigit() or not 0 < int(version) <= VERSION_MAX:
                raise EncryptionKeyError(f"{origin} holds something that is no master key. {_HOW}")
            try:
                key = base64.b64decode(encoded, validate=True)
            except (binascii.Error, ValueError):
                raise EncryptionKeyError(f"Master key {version} of {origin} is not base64. {_HOW}") from None
            if len(key) != KEY_BYTES:
                raise EncryptionKeyError(
                    f"Master key {version} of {origin} has {len(key)} bytes, not {KEY_BYTES}. {_HOW}"
                )
            if keys.setdefault(int(version), key) != key:
                raise EncryptionKeyError(
                    f"{origin} holds two different master keys {version}. Give the new one another number."
                )
        if not keys:
            raise EncryptionKeyError(f"{origin} holds no master key. {_HOW}")
        return cls(keys)

    def fingerprint(self, version: int) -> str | None:
        """What tells a key from another one of the same version without telling the key; None for one not here."""
        key = self._keys.get(version)
        return None if key is None else hmac.digest(key, _FINGERPRINT_OF, hashlib.sha256).hex()[:16]

    def wrap(self, data_key: bytes) -> WrappedKey:
        return WrappedKey(self.current, aes_key_wrap(self._keys[self.current], data_key))

    def unwrap(self, key: WrappedKey, path: Path) -> bytes:
        """The data key of a file; `EncryptionKeyError` where the master key is missing or another one."""
        master = self._keys.get(key.version)
        if master is None:
            raise EncryptionKeyError(
                f"{path} needs master key {key.version}, and there are only {_listed(self.versions)}. Add the missing "
                "one to security.encryption.master_key_file (or _env, or _command); nothing was changed."
            )
        try:
            return aes_key_unwrap(master, key.wrapped)
        except InvalidUnwrap:
            raise EncryptionKeyError(
                f"{path} was written with another master key {key.version} than the one given. Give the right one; "
                "nothing was changed."
            ) from None


@dataclass(frozen=True, slots=True)
class KeySource:
    """Where master keys come from: exactly one of a file, an environment variable or a command that prints them."""

    file: Path | None = None
    variable: str | None = None
    command: str | None = None

    @property
    def origin(self) -> str:
        if self.file is not None:
            return str(self.file)
        if self.variable is not None:
            return f"The environment variable {self.variable}"
        return "What security.encryption.master_key_command prints"

    def load(self) -> MasterKeys:
        """Read the keys, each time anew: rotation begins with another key in the same place."""
        return MasterKeys.parse(self._text(), self.origin)

    def _text(self) -> str:
        if self.file is not None:
            try:
                return self.file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not text"
                raise EncryptionKeyError(f"The master key file {self.file} cannot be read: {reason}.") from error
        if self.variable is not None:
            text = os.environ.get(self.variable)
            if text is None:
                raise EncryptionKeyError(
                    f"The environment variable {self.variable}, which is to hold the master key, is not set."
                )
            return text
        assert self.command is not None, "a source is one of three"
        return _output_of(self.command)


def _output_of(command: str) -> str:
    try:
        done = subprocess.run(
            shlex.split(command), stdin=subprocess.DEVNULL, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=False
        )
    except (OSError, ValueError) as error:
        raise EncryptionKeyError(f"security.encryption.master_key_command could not be run: {error}.") from error
    except subprocess.TimeoutExpired:
        raise EncryptionKeyError(
            f"security.encryption.master_key_command gave no key within {_COMMAND_TIMEOUT_S} s. Run it by hand."
        ) from None
    if done.returncode != 0:
        raise EncryptionKeyError(
            f"security.encryption.master_key_command ended with code {done.returncode}. Run it by hand to see why."
        )
    return done.stdout.decode("ascii", "replace")


def _listed(versions: list[int]) -> str:
    return ", ".join(map(str, versions))
