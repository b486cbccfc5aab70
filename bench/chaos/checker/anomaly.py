"""One thing that must not be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What kind it is, where it was seen, and what was seen."""

    kind: str
    place: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}: {self.detail}"
