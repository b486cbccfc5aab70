"""The kinds of values a setting can have: how each is read from text, shown again, and described when it is wrong.

Every source delivers text, whether a YAML scalar, an environment variable or a flag, so a value means the same wherever
it is written. `parse` raises `ValueError` with what was wrong; `allowed` says what would have been right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

import msgspec

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
UNLIMITED: Final = -1

_DURATION_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_SIZE_BYTES: Final = {
    "b": 1,
    "kb": 1_000,
    "mb": 1_000_000,
    "gb": 1_000_000_000,
    "tb": 1_000_000_000_000,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}
_HOST_NAME: Final = re.compile(r"\*|(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?")
_AMOUNT: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")
_TRUE: Final = {"true", "yes", "on", "1"}
_FALSE: Final = {"false", "no", "off", "0"}
_UNLIMITED: Final = {"unlimited", str(UNLIMITED)}
_NOTHING: Final = {"", "null", "~", "none"}


class ValueKind(msgspec.Struct, frozen=True):
    """How one kind of value is read and shown."""

    @property
    def allowed(self) -> str:
        """What may be written, to end the sentence 'give ...'."""
        raise NotImplementedError

    def parse(self, text: str) -> object:
        """The value that ``text`` stands for, or `ValueError`."""
        raise NotImplementedError

    def show(self, value: object) -> str:
        """The value as a person would write it; `parse` reads it back."""
        return str(value)


class Address(NamedTuple):
    """A host and a port, as people write them: ``127.0.0.1:9092``, ``[::1]:9092``."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Whole(ValueKind, frozen=True):
    """A whole number."""

    low: int
    high: int = INT32_MAX

    @property
    def allowed(self) -> str:
        return f"a whole number from {self.low} to {self.high}"

    def parse(self, text: str) -> object:
        try:
            value = int(text)
        except ValueError:
            raise ValueError("is not a whole number") from None
        return _within(value, self.low, self.high)


class Count(ValueKind, frozen=True):
    """A whole number from 0 on, or unlimited."""

    high: int = INT32_MAX

    @property
    def allowed(self) -> str:
        return f"{Whole(0, self.high).allowed}, or unlimited"

    def parse(self, text: str) -> object:
        return UNLIMITED if text.lower() in _UNLIMITED else Whole(0, self.high).parse(text)

    def show(self, value: object) -> str:
        return "unlimited" if value == UNLIMITED else str(value)


class Number(ValueKind, frozen=True):
    """A number that need not be whole."""

    low: float
    high: float

    @property
    def allowed(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    def parse(self, text: str) -> object:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("is not a number") from None
        if not self.low <= value <= self.high:  # nor is what is not a number between them
            raise ValueError("is out of range")
        return value


class _Amount(ValueKind, frozen=True):
    """A whole number of some smallest unit, written as a number of them or with a larger unit."""

    low: int = 0
    high: int = INT64_MAX
    may_be_unlimited: bool = False

    units: ClassVar[dict[str, int]]
    unit: ClassVar[str]  # that of a number alone
    noun: ClassVar[str]
    examples: ClassVar[str]

    @property
    def allowed(self) -> str:
        low = f", at least {self.format(self.low)}" if self.low else ""
        high = f", at most {self.format(self.high)}" if self.high != INT64_MAX else ""
        unlimited = ", or unlimited" if self.may_be_unlimited else ""
        return f"{self.unit} or a number with {self.examples}{low}{high}{unlimited}"

    def parse(self, text: str) -> object:
        if self.may_be_unlimited and text.lower() in _UNLIMITED:
            return UNLIMITED
        match = _AMOUNT.fullmatch(text.strip().replace("_", ""))
        if match is None:
            raise ValueError(f"is not {self.noun}")
        number, unit = match[1], match[2].lower()
        if unit and unit not in self.units:
            raise ValueError(f"has the unknown unit {match[2]!r}")
        value = (float(number) if "." in number else int(number)) * self.units.get(unit, 1)
        if value != int(value):
            raise ValueError(f"is not a whole number of {self.unit}")
        return _within(int(value), self.low, self.high)

    def show(self, value: object) -> str:
        assert isinstance(value, int)
        return "unlimited" if value == UNLIMITED else self.format(value)

    @staticmethod
    def format(amount: int) -> str:
        """An amount in the largest unit that needs no fraction."""
        raise NotImplementedError


class Duration(_Amount, frozen=True):
    """Milliseconds, written as a number of them or with a unit."""

    units: ClassVar[dict[str, int]] = _DURATION_MS
    unit: ClassVar[str] = "milliseconds"
    noun: ClassVar[str] = "a duration"
    examples: ClassVar[str] = "ms, s, m, h, d or w, such as 30s or 168h"

    @staticmethod
    def format(amount: int) -> str:
        for unit in ("h", "m", "s"):
            if amount and amount % _DURATION_MS[unit] == 0:
                return f"{amount // _DURATION_MS[unit]}{unit}"
        return f"{amount}ms"


class Size(_Amount, frozen=True):
    """Bytes, written as a number of them or with a unit."""

    units: ClassVar[dict[str, int]] = _SIZE_BYTES
    unit: ClassVar[str] = "bytes"
    noun: ClassVar[str] = "a size"
    examples: ClassVar[str] = "KiB, MiB, GiB, kB, MB or GB, such as 64MiB"

    @staticmethod
    def format(amount: int) -> str:
        for unit in ("TiB", "GiB", "MiB", "KiB"):
            if amount and amount % _SIZE_BYTES[unit.lower()] == 0:
                return f"{amount // _SIZE_BYTES[unit.lower()]}{unit}"
        return f"{amount}B"


class Choice(ValueKind, frozen=True):
    """One of a few words, or what each of them stands for."""

    words: tuple[str, ...]
    of: Callable[[str], object] = str

    @property
    def allowed(self) -> str:
        return ", ".join(self.words[:-1]) + f" or {self.words[-1]}"

    def parse(self, text: str) -> object:
        word = text.lower()
        if word not in self.words:
            raise ValueError("is not one of the choices")
        return self.of(word)


class Flag(ValueKind, frozen=True):
    """Yes or no."""

    allowed: str = "true or false"

    def parse(self, text: str) -> object:
        word = text.lower()
        if word not in _TRUE | _FALSE:
            raise ValueError("is neither true nor false")
        return word in _TRUE

    def show(self, value: object) -> str:
        return "true" if value else "false"


class Words(ValueKind, frozen=True):
    """Any text that is not empty."""

    allowed: str = "some text"

    def parse(self, text: str) -> object:
        if not text.strip():
            raise ValueError("is empty")
        return text


class Secret(ValueKind, frozen=True):
    """Text that is never shown: what is printed says only that it is set."""

    allowed: str = "some text"
    hidden: ClassVar[str] = "(hidden)"

    def parse(self, text: str) -> object:
        if text == self.hidden:
            raise ValueError("is what stands for a secret that is not shown; give the secret itself")
        return Words().parse(text)

    def show(self, value: object) -> str:
        del value
        return self.hidden


class Directory(ValueKind, frozen=True):
    """A path, taken as seen from where the process starts."""

    allowed: str = "the path of a directory"

    def parse(self, text: str) -> object:
        if not text.strip() or "\0" in text:
            raise ValueError("is not a path")
        return Path(text).expanduser()


class FilePath(Directory, frozen=True):
    """The path of a file; in a settings file it is taken as seen from that file's directory."""

    allowed: str = "the path of a file"


class HostPort(ValueKind, frozen=True):
    """An address to listen on or to be reached at."""

    low: int = 0  # port 0 lets the system choose

    @property
    def allowed(self) -> str:
        any_port = "; port 0 takes a free one" if self.low == 0 else ""
        return f"host:port, such as 127.0.0.1:9092 or [::1]:9092{any_port}"

    def parse(self, text: str) -> object:
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal():
            raise ValueError("has no port" if not port.isdecimal() else "has no host")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("is an IPv6 address without brackets")
        if not host or any(char.isspace() for char in host):
            raise ValueError("has no host")
        _within(int(port), self.low, 65_535)
        return Address(host, int(port))


class PeerAddress(NamedTuple):
    """A node and where it is reached by other nodes: ``1@10.0.0.1:9093``."""

    node_id: int
    address: Address

    def __str__(self) -> str:
        return f"{self.node_id}@{self.address}"


class PeerList(ValueKind, frozen=True):
    """Nodes with their addresses, separated by commas; nothing for none."""

    allowed: str = "id@host:port for each node, with commas, such as 1@10.0.0.1:9093,2@10.0.0.2:9093,3@10.0.0.3:9093"

    def parse(self, text: str) -> object:
        peers = [self._parse_one(part.strip()) for part in text.split(",") if part.strip()]
        if len({peer.node_id for peer in peers}) < len(peers):
            raise ValueError("names a node twice")
        return tuple(peers)

    @staticmethod
    def _parse_one(text: str) -> PeerAddress:
        node_id, at, address = text.partition("@")
        if not at or not node_id.isdecimal():
            raise ValueError(f"has no node id before the address in {text!r}")
        parsed = HostPort(low=1).parse(address)
        assert isinstance(parsed, Address)
        return PeerAddress(_within(int(node_id), 0, INT32_MAX), parsed)

    def show(self, value: object) -> str:
        assert isinstance(value, tuple)
        return ",".join(str(peer) for peer in value)


class _Listed(ValueKind, frozen=True):
    """Values of one kind with a separator between them; nothing for none."""

    separator: ClassVar[str] = ","

    def parse(self, text: str) -> object:
        found = (part.strip() for part in text.split(self.separator))
        return tuple(self.parse_one(part) for part in found if part)

    def parse_one(self, part: str) -> object:
        raise NotImplementedError

    def show(self, value: object) -> str:
        assert isinstance(value, tuple)
        return self.separator.join(map(str, value))


class HostNames(_Listed, frozen=True):
    """Names of hosts."""

    allowed: str = "names with commas, such as queue.example.com,*.svc.cluster.local; * allows every name"

    def parse_one(self, part: str) -> object:
        if not _HOST_NAME.fullmatch(part):
            raise ValueError(f"has {part!r} in it, which is no name of a host (leave out scheme, port and path)")
        return part


class Networks(_Listed, frozen=True):
    """Addresses or networks."""

    allowed: str = "addresses or networks with commas, such as 10.0.0.7,192.168.0.0/16"

    def parse_one(self, part: str) -> object:
        try:
            ip_network(part, strict=False)
        except ValueError:
            raise ValueError(f"has {part!r} in it, which is neither an address nor a network") from None
        return part


class Choices(_Listed, frozen=True):
    """Some of a few words."""

    words: tuple[str, ...]

    @property
    def allowed(self) -> str:
        return f"some of these with commas: {', '.join(self.words)}"

    def parse(self, text: str) -> object:
        found = super().parse(text)
        if not found:
            raise ValueError("is empty")
        return found

    def parse_one(self, part: str) -> object:
        if part not in self.words:
            raise ValueError(f"has {part!r} in it")
        return part


class Principals(_Listed, frozen=True):
    """Principals, separated by semicolons because names may hold commas."""

    allowed: str = "principals with semicolons, such as User:admin;User:CN=ops,O=example"
    separator: ClassVar[str] = ";"

    def parse_one(self, part: str) -> object:
        kind, colon, name = part.partition(":")
        if not colon or not kind.isalnum() or not name or name == "*":
            raise ValueError(f"has {part!r} in it, which is no principal; write User:name")
        return part


class CertificateRule(NamedTuple):
    """How the subject of a certificate becomes the name of a user, in Kafka's notation: ``RULE:pattern/name/case``."""

    pattern: re.Pattern[str]
    name: str  # with $1 and so on for the groups of the pattern
    case: str  # L or U for lower or upper case, else empty

    def __str__(self) -> str:
        return f"RULE:{self.pattern.pattern}/{self.name}/{self.case}"

    def user_of(self, subject: str) -> str | None:
        """The user's name; None where the rule does not fit."""
        found = self.pattern.fullmatch(subject)
        if found is None:
            return None
        name = re.sub(r"\$(\d+)", lambda group: found[int(group[1])] or "", self.name)
        return {"L": name.lower(), "U": name.upper()}.get(self.case, name)


_CERTIFICATE_RULE: Final = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")


class CertificateRules(_Listed, frozen=True):
    """Rules as in Kafka's ``ssl.principal.mapping.rules``, separated by semicolons; the first that fits counts."""

    allowed: str = "rules with semicolons, such as RULE:^CN=([^,]+).*$/$1/L; DEFAULT is the whole subject"
    separator: ClassVar[str] = ";"

    def parse_one(self, part: str) -> object:
        found = _CERTIFICATE_RULE.fullmatch("RULE:(.*)/$1/" if part == "DEFAULT" else part)
        if found is None:
            raise ValueError(f"has {part!r} in it, which is no rule")
        try:
            pattern = re.compile(found[1])
        except re.error as error:
            raise ValueError(f"has a pattern in it that is wrong: {error}") from None
        if any(int(number) > pattern.groups for number in re.findall(r"\$(\d+)", found[2])):
            raise ValueError(f"names a group in {part!r} that the pattern does not have")
        return CertificateRule(pattern, found[2], found[3])


class Maybe(ValueKind, frozen=True):
    """Another kind, or nothing."""

    kind: ValueKind

    @property
    def allowed(self) -> str:
        return f"{self.kind.allowed}, or null"

    def parse(self, text: str) -> object:
        return None if text.lower() in _NOTHING else self.kind.parse(text)

    def show(self, value: object) -> str:
        return "null" if value is None else self.kind.show(value)


def is_secret(kind: ValueKind) -> bool:
    """Whether values of this kind are never shown."""
    return isinstance(kind.kind if isinstance(kind, Maybe) else kind, Secret)


def located(kind: ValueKind, text: str, directory: Path) -> str:
    """The text of a value as it means the same from everywhere: paths of files are put behind their directory."""
    inner = kind.kind if isinstance(kind, Maybe) else kind
    if not isinstance(inner, FilePath) or not text.strip() or text.lower() in _NOTHING or text.startswith(("~", "/")):
        return text
    return str(directory / text)


def _within(value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise ValueError("is out of range")
    return value
