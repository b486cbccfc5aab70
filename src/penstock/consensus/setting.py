"""One row of a table of settings, and how the values of settings are read: numbers, names, lists.

A table says of each setting what it means, what values it takes and which field it ends up in. Anything not in the
table is refused with the nearest known name, because a setting that is accepted and ignored is a promise broken.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final, TypeVar

from penstock.errors import InvalidConfig

INT32_MAX: Final = (1 << 31) - 1

SettingsT = TypeVar("SettingsT")
Parse = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: how a value is read, shown and taken over. ``path`` names its field, as ``log.segment_ms``.

    ``to_text`` and ``to_fields`` are for those whose field is not simply their value.
    """

    name: str
    path: str
    kind: str
    parse: Parse
    doc: str
    is_of_group: bool = True  # of queue settings: whether a group may have its own
    to_text: Callable[[Any], str] | None = None
    to_fields: Callable[[Any, Any], Any] | None = None

    def read(self, text: str, table: str) -> Any:
        """The value that a text stands for; `InvalidConfig` if it is none."""
        try:
            return self.parse(text)
        except InvalidConfig as error:
            raise InvalidConfig(f"{table} setting {self.name}: {error.message}") from None

    def show(self, settings: object) -> str:
        """The value in force, as text."""
        if self.to_text is not None:
            return self.to_text(settings)
        value: Any = settings
        for field in self.path.split("."):
            value = getattr(value, field)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        return str(value.value) if isinstance(value, Enum) else str(value)

    def take(self, settings: SettingsT, value: Any) -> SettingsT:
        """The settings with this value in them."""
        changed: SettingsT = self.to_fields(settings, value) if self.to_fields else _replace(settings, self.path, value)
        return changed


def _replace(settings: Any, path: str, value: Any) -> Any:
    field, _, rest = path.partition(".")
    return replace(settings, **{field: _replace(getattr(settings, field), rest, value) if rest else value})


def find_setting(settings: Mapping[str, Setting], name: str, table: str) -> Setting:
    """The row of that name; `InvalidConfig` names the nearest one where there is none."""
    setting = settings.get(name)
    if setting is None:
        near = difflib.get_close_matches(name, settings, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else f" Known are: {', '.join(settings)}."
        raise InvalidConfig(f"There is no {table.lower()} setting {name!r}.{hint}")
    return setting


# -- reading values ----------------------------------------------------------------------------------------------------


def integer(low: int, high: int, minus_one: str | None = None) -> Parse:
    """A whole number within bounds; or -1, where ``minus_one`` says what that is for."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise InvalidConfig(f"{text!r} is not a whole number.") from None
        if not low <= value <= high and not (minus_one is not None and value == -1):
            extra = "" if minus_one is None else f" or -1 for {minus_one}"
            raise InvalidConfig(f"{value} is out of range: give {low} to {high}{extra}.")
        return value

    return parse


def number(low: float, high: float) -> Parse:
    """A number within bounds."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise InvalidConfig(f"{text!r} is not a number.") from None
        if not low <= value <= high:  # nor is what is not a number between them
            raise InvalidConfig(f"{text} is out of range: give {low:g} to {high:g}.")
        return value

    return parse


def choice(values: Mapping[str, object]) -> Parse:
    """One of these names, which stand for these values."""

    def parse(text: str) -> object:
        if text not in values:
            raise InvalidConfig(f"{text!r} is not one of {', '.join(values)}.")
        return values[text]

    return parse


def one_of(kind: type[Enum]) -> Parse:
    return choice({each.value: each for each in kind})


boolean: Final = choice({"true": True, "false": False})
