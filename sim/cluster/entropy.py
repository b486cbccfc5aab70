"""Chance, all of it from the seed: whatever asks the operating system for random bytes is given ours."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded_entropy(seed: int) -> Iterator[None]:
    """For as long as this lasts, ``os.urandom`` and with it ``uuid4`` give the same every time."""
    source = random.Random(f"entropy {seed}")
    real, state = os.urandom, random.getstate()
    os.urandom = source.randbytes
    random.seed(seed)
    try:
        yield
    finally:
        os.urandom = real
        random.setstate(state)
