"""Python source in the making: lines at a depth, constants with names, and the function it all becomes.

The reader and the writer of a message are generated as one straight function each, nested loops and all, because a
call and a dispatch for each field is what makes generic codecs slow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Source:
    """A function being written."""

    def __init__(self, name: str, parameters: str, title: str) -> None:
        self._lines = [f"def {name}({parameters}):"]
        self._depth = 1
        self._name = name
        self._title = title
        self._constants: dict[str, Any] = {}
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str | None) -> Iterator[None]:
        """What is written inside is indented under the opening; without an opening it is not."""
        if opening is None:
            yield
            return
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, stem: str) -> str:
        """A variable that nothing else in this function uses."""
        self._names += 1
        return f"{stem}_{self._names}"

    def constant(self, stem: str, value: Any) -> str:
        name = self.name(stem)
        self._constants[name] = value
        return name

    def compile(self) -> Callable[..., Any]:
        names = dict(self._constants)
        code = compile("\n".join([*self._lines, "    pass"]), f"<{self._title}>", "exec")
        exec(code, names)  # noqa: S102  (the text is made of our own descriptions, never of what a peer sent)
        function: Callable[..., Any] = names[self._name]
        return function


def packer(codes: str) -> struct.Struct:
    return struct.Struct(">" + codes)
