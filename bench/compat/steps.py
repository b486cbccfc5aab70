"""A step: one thing that a client is asked to do, which passes or fails and takes its time.

Steps never raise: what goes wrong is part of the result. Those after a failed one still run, because they tell more.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.install import InstallError
from bench.process import BrokerError

PROGRAMS = Path(__file__).with_name("programs")
STEP_LIMIT_S = 60.0
INSTALL_LIMIT_S = 600.0
_SAID_MAX = 400


class StepFailedError(Exception):
    """A client said no, was silent too long, or read something else than what was written."""


@dataclass(frozen=True, slots=True)
class Result:
    """One row of the table."""

    client: str
    step: str
    passed: bool
    seconds: float
    detail: str = ""


def step(client: str, name: str, do: Callable[[], str | None]) -> Result:
    """Do it, and tell how it went."""
    began = time.monotonic()
    expected = (StepFailedError, InstallError, BrokerError, AssertionError, OSError, subprocess.SubprocessError)
    try:
        detail = do() or ""
    except expected as error:
        return Result(client, name, passed=False, seconds=time.monotonic() - began, detail=str(error))
    return Result(client, name, passed=True, seconds=time.monotonic() - began, detail=detail)


def run(
    command: Sequence[str | Path],
    *,
    given: Sequence[str] = (),
    cwd: Path | None = None,
    limit_s: float = STEP_LIMIT_S,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """Run a program on some lines of input; the lines of its output."""
    text = "".join(f"{line}\n" for line in given)
    environment = {**os.environ, **(env or {})}
    try:
        done = subprocess.run(
            [str(part) for part in command],
            input=text,
            capture_output=True,
            text=True,
            timeout=limit_s,
            cwd=cwd,
            env=environment,
        )
    except subprocess.TimeoutExpired as error:
        said = (error.stderr or b"").decode(errors="replace")[-_SAID_MAX:]
        raise StepFailedError(f"no end after {limit_s:.0f} s; it said: {said}") from None
    if done.returncode:
        raise StepFailedError(f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-_SAID_MAX:]}")
    return done.stdout.splitlines()
