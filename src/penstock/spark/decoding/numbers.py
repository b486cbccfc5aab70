"""Variable-length numbers of many records, decoded at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptRecords

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

_BYTES_MAX: Final = 10


def read_numbers(array: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """The zigzag varints at these places, and where each of them ends. Past the array's end it raises IndexError."""
    signs = array[at]
    values = (signs & 0x7F).astype(np.uint64)
    after = at + 1
    longer = np.flatnonzero(signs & 0x80)
    shift = 7
    while len(longer):
        if shift >= 7 * _BYTES_MAX:
            raise CorruptRecords("A number takes more bytes than any does.")
        if len(longer) == len(at):
            signs = array[after]
            values |= (signs & 0x7F).astype(np.uint64) << np.uint64(shift)
            after += 1
            longer = np.flatnonzero(signs & 0x80)
        else:
            signs = array[after[longer]]
            values[longer] |= (signs & 0x7F).astype(np.uint64) << np.uint64(shift)
            after[longer] += 1
            longer = longer[(signs & 0x80) != 0]
        shift += 7
    halves = (values >> np.uint64(1)).astype(np.int64)
    return halves ^ -(values & np.uint64(1)).astype(np.int64), after
