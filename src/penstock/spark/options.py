"""Options as Spark hands them over: texts under names whose case does not count.

A name that is not known is refused with the nearest one that is, and so is one that means nothing where it is given: an
option is never ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from penstock.client.trust import Trust
from penstock.errors import InvalidConfig, InvalidTopicName
from penstock.model import check_topic_name
from penstock.spark.connection import instead_of

_NUMBER_MAX: Final = (1 << 63) - 1
_SECRETS: Final = frozenset({"token", "apikey", "user", "username", "password"})


class OptionTexts:
    """The options of a source or a sink by the names we use.

    ``elsewhere`` has options that mean nothing here, each with what to say of it; ``aliases`` has other names in lower
    case, and ``hints`` what to say of names that are not ours; names in ``passed_over`` are for Spark itself.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        what: str,
        allowed: Sequence[str],
        *,
        elsewhere: Mapping[str, str],
        aliases: Mapping[str, str] | None = None,
        hints: Mapping[str, str] | None = None,
        passed_over: Collection[str] = (),
    ) -> None:
        names = {name.lower(): name for name in (*allowed, *elsewhere)} | dict(aliases or {})
        self._texts: dict[str, str] = {}
        for name, text in given.items():
            lower = name.lower()
            known = names.get(lower)
            if known is None and lower in passed_over:
                continue
            if known is None:
                hint = (hints or {}).get(lower) or _instead_of_secret(name) or instead_of(name)
                raise InvalidConfig(hint or f"The {what} has no option {name!r}; {_nearest(name, allowed)}")
            if known in elsewhere:
                raise InvalidConfig(elsewhere[known])
            if known in self._texts:
                raise InvalidConfig(f"{name} is another name for {known}: give one of them.")
            self._texts[known] = str(text).strip()

    def get(self, name: str) -> str | None:
        text = self._texts.get(name)
        if text == "":
            raise InvalidConfig(f"Option {name!r} is empty; leave it out or give it a value.")
        return text

    def whole(self, name: str) -> int | None:
        text = self.get(name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and 0 < int(text) <= _NUMBER_MAX):
            raise InvalidConfig(f"Option {name!r} is a whole number above 0, not {text!r}.")
        return int(text)

    def number(self, name: str, default: float, least: float, most: float) -> float:
        text = self.get(name)
        if text is None:
            return default
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number <= most:
            raise InvalidConfig(f"Option {name!r} is a number from {least:g} to {most:g}, not {text!r}.")
        return number

    def switch(self, name: str, *, default: bool) -> bool:
        return str(self.one_of(name, ("true", "false"), str(default).lower())) == "true"

    def one_of(self, name: str, values: Sequence[str], default: str) -> Any:
        text = (self.get(name) or default).lower()
        if text not in values:
            raise InvalidConfig(f"Option {name!r} is one of {', '.join(values)}, not {text!r}.")
        return text


def nearest_of(name: str, known: Sequence[str]) -> str | None:
    """The known name that is most like one that is not known."""
    lower = {each.lower(): each for each in known}
    found = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
    return lower[found[0]] if found else None


def _nearest(name: str, allowed: Sequence[str]) -> str:
    named = sorted(set(allowed) - {"path"})
    found = nearest_of(name, named)
    return f"did you mean {found!r}?" if found else f"it knows {', '.join(named)}."


def _instead_of_secret(name: str) -> str | None:
    if name.lower() not in _SECRETS:
        return None
    return (
        f"{name} is not an option, because options are shown in plans and logs: put an API key or a token in a file "
        "that the driver and every executor have at the same path, and give that as `tokenFile`."
    )


def trust_in(texts: OptionTexts) -> Trust:
    """Whom the options ``ca``, ``certificate`` and ``key`` trust."""
    return Trust.of(texts.get("ca"), texts.get("certificate"), texts.get("key"))


def check_name(name: str, option: str) -> None:
    """Refuse what is not the name of a topic."""
    try:
        check_topic_name(name)
    except InvalidTopicName as error:
        raise InvalidConfig(f"Option {option!r}: {error.message}") from None
