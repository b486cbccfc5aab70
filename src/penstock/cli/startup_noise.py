"""What programs print while they start, kept back: shown if they do not, or if it is asked for."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Held:
    """What came on standard error so far; from `let_go` on, everything is passed on."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target
        self._parts: list[bytes] | None = []
        self._lock = threading.Lock()
        threading.Thread(target=self._pass_on, name="standard-error", daemon=True).start()

    def let_go(self, *, shows: bool) -> None:
        with self._lock:
            if self._parts is not None and shows:
                os.write(self._target, b"".join(self._parts))
            self._parts = None

    def _pass_on(self) -> None:
        while part := os.read(self._source, 65536):
            with self._lock:
                if self._parts is None:
                    os.write(self._target, part)
                else:
                    self._parts.append(part)


@contextmanager
def startup_noise_held() -> Iterator[None]:
    """Keep back what is printed to standard error meanwhile, also by programs that are started; unless it fails.

    Those programs keep what they were given as standard error, so it is passed on from then on.
    """
    sys.stderr.flush()
    source, sink = os.pipe()
    own = os.dup(2)
    held = _Held(source, own)
    os.dup2(sink, 2)
    os.close(sink)
    is_started = False
    try:
        yield
        is_started = True
    finally:
        sys.stderr.flush()
        os.dup2(own, 2)
        held.let_go(shows=not is_started)
