"""Who holds how many messages. Rows name consumers by number; a number is free again once nothing is held under it."""

from __future__ import annotations


class Consumers:
    """Consumers that hold messages."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: dict[int, str] = {}
        self._holds: dict[int, int] = {}
        self._spare: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def number_of(self, name: str) -> int:
        """A consumer's number, a new one if it has none; it stays while something is held."""
        number = self._numbers.get(name)
        if number is None:
            number = self._spare.pop() if self._spare else len(self._names)
            self._numbers[name] = number
            self._names[number] = name
            self._holds[number] = 0
        return number

    def name_of(self, number: int) -> str:
        return self._names[number]

    def names(self) -> dict[int, str]:
        """Names by number, as they are now."""
        return dict(self._names)

    def held_by(self, name: str) -> int:
        """How many messages a consumer holds."""
        number = self._numbers.get(name)
        return 0 if number is None else self._holds[number]

    def take(self, number: int, messages: int) -> None:
        self._holds[number] += messages

    def release(self, number: int, messages: int) -> None:
        self._holds[number] -= messages
        if self._holds[number] == 0:
            del self._holds[number], self._numbers[self._names.pop(number)]
            self._spare.append(number)

    def in_flight(self) -> dict[str, int]:
        """How many messages each consumer holds, by name."""
        return {name: self._holds[number] for name, number in self._numbers.items()}
