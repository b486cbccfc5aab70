"""Columns of integers as bytes, little-endian whatever machine this is."""

from __future__ import annotations

import sys
from array import array


def to_bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def from_bytes(code: str, data: bytes) -> array[int]:
    column: array[int] = array(code)
    column.frombytes(data)
    if sys.byteorder == "big":
        column.byteswap()
    return column
