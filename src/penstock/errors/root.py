"""What all errors are."""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Anything that went wrong for a reason outside our own code."""

    code: ClassVar[str] = "internal_error"
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        return str(self.args[0]) if self.args else (self.__doc__ or self.code).strip().splitlines()[0]
